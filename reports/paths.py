"""The table of which algorithm trains on which path, in docs/LIBRARY.md: `python -m reports.paths`.

Each cell is tried: a small training of that algorithm is made on that path, and takes a step. A test compares.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from pipelines.system.files import write_atomically
from reports.combinations import PATHS, refusal, variants

BEGIN = "<!-- paths: `make readme` writes what follows, from small trainings of each -->"
END = "<!-- end of paths -->"

DOCUMENTS = (Path("docs") / "LIBRARY.md",)


def table() -> str:
    """Return, in Markdown, the paths of every algorithm, a row for each other path, and the reasons of refusals."""
    algorithms = variants()
    lines = ["| |" + "".join(f" {name} |" for name in algorithms), "|---|" + ":-:|" * len(algorithms)]
    reasons: list[str] = []
    everywhere = []
    for path in PATHS.values():
        refused = [refusal(algorithm, path) for algorithm in algorithms.values()]
        reasons += [reason for reason in dict.fromkeys(refused) if reason is not None and reason not in reasons]
        cells = ["yes" if reason is None else f"no [{reasons.index(reason) + 1}]" for reason in refused]
        if any(refused):
            lines.append(f"| {path.words} | " + " | ".join(cells) + " |")
        else:
            everywhere.append(path.words)
    numbered = [f"[{number}] {reason}  " for number, reason in enumerate(reasons, 1)]
    trained = textwrap.fill(f"Every algorithm trains: {', '.join(everywhere)}.", 120)
    return "\n".join([trained, "", *lines, "", *numbered])


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
