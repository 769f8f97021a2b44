"""How far `dpfest bench` goes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class BenchConfig:
    """What a benchmark may take.

    Attributes:
        seconds: a competitor that has run so long at one size takes no more turns, once it has had three.
        largest_rows: of all tables together; larger sizes are cut to it, and to what memory holds.
        dense_coordinates: tables of more coordinates are not timed with dense noise; the default is the paper's
            largest, 10 million rows of 64.
        preprocess_rows: rows of each generated file.
    """

    seconds: float = 30.0
    largest_rows: int = 100_000_000
    dense_coordinates: int = 640_000_000
    preprocess_rows: list[int] = field(default_factory=lambda: [1_000_000, 10_000_000])

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"bench.seconds={self.seconds} must be above 0.")
        if self.largest_rows < 100:
            raise ValueError(f"bench.largest_rows={self.largest_rows} must be 100 or more.")
        if self.dense_coordinates < 0:
            raise ValueError(f"bench.dense_coordinates={self.dense_coordinates} must be 0 or more.")
        if not self.preprocess_rows or min(self.preprocess_rows) < 1:
            raise ValueError(f"bench.preprocess_rows={self.preprocess_rows} must be a list of positive numbers.")
