"""All that reports know about an algorithm: label, colour, marker, order, line style, symbols and tuning knob.

The algorithms are those of the library's registry. The paper's algorithms have fixed attributes here; any other one
gets its label from its name, an unused colour and marker, and its own settings as its knob.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from dpfest.algorithms.algorithm import PrivateAlgorithm
from dpfest.algorithms.rules import ALGORITHMS

NORM = "algorithm.clipping_norm"


@dataclass(frozen=True)
class Algorithm:
    """Name and appearance of an algorithm, or of one of its variants in a stream.

    Attributes:
        name: as in the configuration; for a variant `<algorithm>/<source of its frequencies>`.
        colour, marker: the same in every figure; the marker also identifies it without colour (but for real data in the
            map, whose markers are data sets).
        knob: settings to sweep for larger reductions.
        dashes: line style, for references.
        breadth: width of its curve; of variants that often coincide, the broad one is drawn below the narrow one.
        symbols: symbols of its settings that differ from the usual ones.
    """

    name: str
    label: str
    colour: str
    marker: str
    knob: str = ""
    dashes: Any = "-"
    breadth: float = 1.0
    symbols: Mapping[str, str] = field(default_factory=lambda: {NORM: "C"})


_ROWS = "smaller algorithm.selection.rows"
_THRESHOLD = "larger algorithm.threshold"

# In the order of tables and legends; colours are Okabe and Ito's, which colour-blind readers can distinguish.
_KNOWN = {
    known.name: known
    for known in (
        Algorithm("nonprivate", "Non-private", "#444444", "P", dashes=":"),
        Algorithm("dpsgd", "DP-SGD", "#000000", "*", dashes=(0, (5, 2))),
        Algorithm("dpsgd_banded", "DP-SGD, correlated noise", "#7F7FFF", "P"),
        Algorithm("threshold", "DP-SGD, thresholded", "#8C510A", "p", "smaller algorithm.false_rate"),
        Algorithm(
            "smaller_tables", "DP-SGD, smaller tables", "#B2182B", "h",
            "smaller algorithm.max_rows or algorithm.max_dimension",
        ),
        Algorithm("fest_equal", "DP-FEST (k/p a table)", "#56B4E9", "d", _ROWS),
        Algorithm("fest", "DP-FEST (one k)", "#0072B2", "s", _ROWS),
        Algorithm("fest_banded", "DP-FEST (one k), correlated noise", "#003F7F", "X", _ROWS),
        Algorithm("adafest", "DP-AdaFEST", "#D55E00", "o", _THRESHOLD, symbols={}),
        Algorithm(
            "adafest_plus_equal", "DP-AdaFEST+ (k/p a table)", "#7BC8A4", "<",
            f"{_THRESHOLD} or {_ROWS}", symbols={},
        ),
        Algorithm("adafest_plus", "DP-AdaFEST+ (one k)", "#009E73", "D", f"{_THRESHOLD} or {_ROWS}", symbols={}),
        Algorithm(
            "exponential", "Exponential selection", "#AA4499", "^", "smaller algorithm.rows_per_step",
            symbols={NORM: "S₂", "algorithm.noise_ratio": "noise ratio"},
        ),
        Algorithm("frozen", "Frozen embeddings", "#777777", "X", dashes=(0, (4, 1.5, 1, 1.5))),
        Algorithm("lora_embedding", "LoRA on embeddings", "#E69F00", "v", "smaller algorithm.rank"),
        Algorithm("fest_equal/first_day", "DP-FEST (k/p a table, first day)", "#E69F00", "v", _ROWS, breadth=3.4),
        Algorithm("fest_equal/all_days", "DP-FEST (k/p a table, all days)", "#999933", "^", _ROWS, breadth=2.2),
        Algorithm("fest_equal/streaming", "DP-FEST (k/p a table, streaming)", "#56B4E9", "d", _ROWS),
        Algorithm("fest/streaming", "DP-FEST (one k, streaming)", "#0072B2", "s", _ROWS),
    )
}  # fmt: skip
_FREE = (("#CC79A7", ">"), ("#999999", "8"), ("#35978F", "H"))

SOURCES = ("fest_equal/first_day", "fest_equal/streaming", "fest_equal/all_days")
"""The paper's DP-FEST by the days that it counts."""

REFERENCES = ("nonprivate", "dpsgd", "frozen")
"""The algorithms that the others are compared with; they choose no rows."""


def algorithm(name: str) -> Algorithm:
    """Return the entry of an algorithm or variant; for an unknown variant, that of its algorithm."""
    return _KNOWN.get(name) or _KNOWN.get(name.partition("/")[0]) or _unknown(name.partition("/")[0])


def label(name: str) -> str:
    """Return an algorithm's name for readers."""
    return algorithm(name).label


def ordered(names: Iterable[str]) -> list[str]:
    """Return distinct names in the order of tables and legends, unknown ones last."""
    places = list(_KNOWN)
    return sorted(set(names), key=lambda name: (places.index(name) if name in places else len(places), name))


@cache
def _unknown(name: str) -> Algorithm:
    new = [known for known in ALGORITHMS if known not in _KNOWN]
    colour, marker = _FREE[new.index(name) % len(_FREE) if name in new else -1]
    inherited = {setting.name for setting in fields(PrivateAlgorithm)}
    own = fields(ALGORITHMS[name]) if name in new else ()
    knob = " or ".join(f"algorithm.{setting.name}" for setting in own if setting.name not in inherited)
    return Algorithm(name, name.replace("_", " ").capitalize() if name in new else name, colour, marker, knob)
