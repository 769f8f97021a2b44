"""The table of which algorithm trains on which path, in docs/LIBRARY.md: `python -m reports.paths`.

Each cell is tried: a small training of that algorithm is made on that path, and takes a step. A test compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipelines.analysis.paths import PATHS, refusal, variants
from pipelines.system.files import write_atomically

BEGIN = "<!-- paths: `make readme` writes what follows, from small trainings of each -->"
END = "<!-- end of paths -->"

DOCUMENTS = (Path("docs") / "LIBRARY.md",)


def table() -> str:
    """Return the table, a row for each path, and below it the reasons of refusals, in Markdown."""
    algorithms = variants()
    lines = ["| |" + "".join(f" {name} |" for name in algorithms), "|---|" + ":-:|" * len(algorithms)]
    reasons: list[str] = []
    for path in PATHS.values():
        cells = []
        for algorithm in algorithms.values():
            reason = refusal(algorithm, path)
            if reason is not None and reason not in reasons:
                reasons.append(reason)
            cells.append("yes" if reason is None else f"no [{reasons.index(reason) + 1}]")
        lines.append(f"| {path.words} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"[{number}] {reason}  " for number, reason in enumerate(reasons, 1))])


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
