"""Origin and licence of real data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """Origin and licence of a dataset; recorded in dataset.json, and not part of the hash of the data.

    Attributes:
        line: meaning of a line and of its label.
        source: collector of the data, and the package that contains them.
        licence: licences, each with the party that states it.
        remarks: caveats for conclusions from the data.
    """

    line: str
    source: str
    licence: str
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [("line", self.line), ("source", self.source), ("licence", self.licence)]
        return "\n".join(f"{name + ':':9}{text}" for name, text in [*parts, *(("note", text) for text in self.remarks)])
