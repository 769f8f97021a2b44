"""The table of which algorithm trains on which path, in docs/LIBRARY.md: `python -m tests.paths`.

Each combination is tried: a small training of that algorithm is made on that path, and takes a step. A test compares.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from pipelines.system.files import write_atomically
from tests.dpfest.combinations import PATHS, refusal, variants

BEGIN = "<!-- paths: `make readme` writes what follows, from small trainings of each -->"
END = "<!-- end of paths -->"

DOCUMENTS = (Path("docs") / "LIBRARY.md",)


def table() -> str:
    """Return, in Markdown, the paths of every algorithm, and a row for each reason to refuse some on others."""
    algorithms = {_words(name): algorithm for name, algorithm in variants().items()}
    everywhere = []
    rows: dict[tuple[str, str], list[str]] = {}  # by reason and algorithms, the paths that refuse them
    for path in PATHS.values():
        refused: dict[str, list[str]] = {}
        for name, algorithm in algorithms.items():
            if (reason := refusal(algorithm, path)) is not None:
                refused.setdefault(reason, []).append(name)
        for reason, names in refused.items():
            listed = "all" if len(names) == len(algorithms) else ", ".join(names)
            rows.setdefault((reason, listed), []).append(path.words)
        if not refused:
            everywhere.append(path.words)
    known = (
        f"The algorithms are {', '.join(algorithms)}. All train with {'; '.join(everywhere)}. On other paths all train "
        "but those of the table, which are refused before anything is spent."
    )
    lines = ["| path | refused | why |", "|---|---|---|"]
    lines += [f"| {'; '.join(paths)} | {listed} | {reason} |" for (reason, listed), paths in rows.items()]
    return "\n\n".join([textwrap.fill(known, 120), "\n".join(lines)])


def _words(name: str) -> str:
    """Return the name of an algorithm with its way in brackets: ``dpsgd (lazy)``."""
    algorithm, _, way = name.partition(", ")
    return f"{algorithm} ({way})" if way else algorithm


def with_table(text: str, written: str) -> str:
    """Return a document with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{written}\n\n{END}{after}"


def write(documents: Iterable[Path]) -> None:
    """Write the table into documents that have its marks."""
    written = table()
    for document in documents:
        text = with_table(document.read_text(encoding="utf-8"), written)
        write_atomically(document, lambda partial, text=text: partial.write_text(text, encoding="utf-8"))  # type: ignore[misc]


if __name__ == "__main__":
    write(Path(__file__).parents[1] / document for document in DOCUMENTS)
