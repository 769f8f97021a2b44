"""Write outputs all at once, with the same bytes for the same content."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG

from pipelines.system.processes import cores
from reports.style import Drawing, settle, style
from reports.svg import tidy
from reports.tables import Table

# Omit metadata that would differ between builds or machines.
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
}
# Figure.savefig would draw each figure twice, the first time for its layout, which is settled.
_PRINTED: dict[str, Callable[[Drawing], Callable[..., Any]]] = {
    "png": lambda figure: FigureCanvasAgg(figure).print_png,
    "pdf": lambda figure: FigureCanvasPdf(figure).print_pdf,
    "svg": lambda figure: FigureCanvasSVG(figure).print_svg,
}

Printer = Callable[[Drawing, str], Callable[[], dict[str, bytes]]]
"""Of a figure and its name: what gives it in each form."""


class Draft:
    """The files of a report, all rendered before the first is written.

    A killed build leaves the old report intact. Publishing writes every file under a temporary name, then renames them
    in the order of `put`: for milliseconds, files of two reports coexist.
    """

    def __init__(self, folder: Path, print: Printer | None = None) -> None:
        self.folder = folder
        self.print = print or _here
        self._files: dict[str, bytes | Callable[[], bytes]] = {}
        self._removed: list[Path] = []

    def put(self, name: str, content: bytes | str | Callable[[], bytes]) -> str:
        """Set the content of the file `name` of the folder (`figures/fig8.svg`), or what gives it; returns the name."""
        self._files[name] = content.encode("utf-8") if isinstance(content, str) else content
        return name

    def text(self, name: str) -> str:
        """Return the content that a file will have, whether rendered now or left by an earlier report."""
        content = self._content(name) if name in self._files else (self.folder / name).read_bytes()
        return content.decode("utf-8")

    def _content(self, name: str) -> bytes:
        content = self._files[name]
        return content() if callable(content) else content

    def remove(self, path: Path) -> None:
        """Remove a file of an earlier report when this one is published."""
        self._removed.append(path)

    def publish(self) -> None:
        """Write all files; raises OSError if the folder cannot be written to."""
        parts: dict[Path, Path] = {}
        try:
            for name in self._files:
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                parts[path] = path.with_name(f".{path.name}.{os.getpid()}.part")
                parts[path].write_bytes(self._content(name))
        except OSError:
            for part in parts.values():
                part.unlink(missing_ok=True)
            raise
        for path, part in parts.items():
            os.replace(part, path)
        for path in self._removed:
            path.unlink(missing_ok=True)


@contextmanager
def printing(beside: bool) -> Iterator[Printer]:
    """Yield what prints figures: a process for each core, beside the drawing of the next figure, or the caller."""
    if not beside or cores() < 2:
        yield _here
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(cores(), context) as pool:
        pool.submit(int)  # it imports what it needs while the runs are read
        try:
            yield lambda figure, name: pool.submit(_forms, figure, name).result
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _here(figure: Drawing, name: str) -> Callable[[], dict[str, bytes]]:
    return partial(_forms, figure, name)


def put_figure(draft: Draft, name: str, figure: Drawing) -> list[str]:
    """Add PNG, PDF and SVG under one name."""
    forms = cache(draft.print(figure, name))

    def form(kind: str) -> Callable[[], bytes]:
        return lambda: forms()[kind]

    return [draft.put(f"figures/{name}.{kind}", form(kind)) for kind in _METADATA]


def _forms(figure: Drawing, name: str) -> dict[str, bytes]:
    """Return a figure in each form."""
    with style():
        settle(figure)
        forms, dpi = {}, figure.dpi
        for kind in _METADATA:
            figure.dpi = dpi  # printing to PDF or SVG changes it
            drawn = printed(figure, kind)
            forms[kind] = tidy(drawn, name, figure.hovers, figure.footer).encode() if kind == "svg" else drawn
    return forms


def printed(figure: Drawing, kind: str, **metadata: str) -> bytes:
    """Return a settled figure as a file of this kind; call it inside `style()`."""
    out = io.BytesIO()
    _PRINTED[kind](figure)(out, metadata=_METADATA[kind] | metadata)
    return out.getvalue()


def put_table(draft: Draft, name: str, table: Table, title: str) -> list[str]:
    """Add CSV, HTML and LaTeX under one name."""
    forms = {"csv": table.csv(), "html": table.html(title), "tex": table.latex()}
    return [draft.put(f"tables/{name}.{kind}", text) for kind, text in forms.items()]
