"""Ranges of numeric settings, as in `Annotated[int, Within(1, 10**9)]`, and common ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Within:
    """An inclusive range of a number, for use in `Annotated`.

    Attributes:
        least: smallest value.
        most: largest value.
        above: whether `least` itself is excluded.
    """

    least: float = -math.inf
    most: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        least, most = (f"{end:,}" if isinstance(end, int) else f"{end:,g}" for end in (self.least, self.most))
        return f"above {least} and at most {most}" if self.above else f"from {least} to {most}"


Share = Annotated[float, Within(0, 1)]
Count = Annotated[int, Within(1, 10**9)]
Day = Annotated[int, Within(0, 10_000)]
Days = Annotated[int, Within(1, 10_000)]
Jobs = Annotated[int, Within(1, 4096)]
Length = Annotated[int, Within(1, 100_000)]
Width = Annotated[int, Within(1, 2**16)]
Rate = Annotated[float, Within(0, 1e300, above=True)]
Seed = Annotated[int, Within(0, 2**63 - 1)]
