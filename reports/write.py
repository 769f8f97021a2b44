"""Writing outputs: atomically, and the same bytes whenever the content is the same."""

from __future__ import annotations

import io
import os
from pathlib import Path

from reports.style import Drawing, settle
from reports.svg import tidy
from reports.tables import Table

# Metadata that would differ between two builds, or between two machines, is left out.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
}


def write(path: Path, content: bytes | str) -> None:
    """Write beside `path`, then rename, so that a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    draft.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    os.replace(draft, path)


def write_figure(stem: Path, figure: Drawing) -> list[Path]:
    """Write PNG, PDF and SVG under one name; call it inside `style()`."""
    settle(figure)
    paths = []
    for kind, metadata in _METADATA.items():
        out = io.BytesIO()
        figure.savefig(out, format=kind, metadata=metadata)
        path = stem.with_name(f"{stem.name}.{kind}")
        drawn = out.getvalue()
        write(path, tidy(drawn, stem.name, figure.hovers, figure.footer) if kind == "svg" else drawn)
        paths.append(path)
    return paths


def write_table(stem: Path, table: Table, title: str) -> list[Path]:
    """Write CSV, HTML and LaTeX under one name."""
    forms = {"csv": table.csv(), "html": table.html(title), "tex": table.latex()}
    paths = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in forms}
    for kind, text in forms.items():
        write(paths[kind], text)
    return list(paths.values())
