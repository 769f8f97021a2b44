"""Where real data come from, and what may be done with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """What a dataset states of its origin; recorded in dataset.json, outside the hash of the data.

    Attributes:
        line: what a line is, and its label.
        source: who collected the data, and the package that brings them.
        licence: each with who states it.
        remarks: what a user must know before drawing conclusions.
    """

    line: str
    source: str
    licence: str
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [("line", self.line), ("source", self.source), ("licence", self.licence)]
        return "\n".join(f"{name + ':':9}{text}" for name, text in [*parts, *(("note", text) for text in self.remarks)])
