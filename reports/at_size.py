"""What runs at Criteo-Kaggle's size show, on generated rows (`experiment=criteo_size`), from their cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.runs.cards import read_cards

FILE = Path("docs", "search", "criteo_size.jsonl.xz")


@dataclass(frozen=True)
class Sized:
    """A run: its algorithm, its share of the signal in numbers, coordinates of a step, reduction, and test AUC."""

    algorithm: str
    share: float
    coordinates: float
    reduction: float | None
    auc: float


def sized(file: Path) -> list[Sized]:
    """Return the runs of a file of cards."""
    found = []
    for card in read_cards(file)[0]:
        gradient = card.summary["embedding_gradient"]
        run = Sized(
            card.config["algorithm"]["name"],
            card.config["data"]["numeric_share"],
            gradient["coordinates_mean"],
            gradient["reduction"],
            card.summary["utility"]["value"],
        )
        found.append(run)
    return found


def sparsest(runs: Sequence[Sized], share: float) -> tuple[Sized, Sized, Sized]:
    """Return DP-SGD, frozen embeddings and the sparsest DP-AdaFEST where the numbers carry this share of the signal."""
    of = {name: [run for run in runs if (run.algorithm, run.share) == (name, share)] for name in _COMPARED}
    return of["dpsgd"][0], of["frozen"][0], min(of["adafest"], key=lambda run: run.coordinates)


_COMPARED = ("dpsgd", "frozen", "adafest")
