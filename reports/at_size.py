"""What runs at Criteo-Kaggle's size show, on generated rows (`experiment=criteo_size`), from their cards."""

from __future__ import annotations

from pathlib import Path

from pipelines.runs.cards import Card, read_cards
from reports.wording import significant

FILE = Path("docs", "search", "criteo_size.jsonl.xz")


def said(file: Path) -> str:
    """Say what the sparsest DP-AdaFEST has beside the controls, where the tables carry most of the signal and where
    they carry least of it; nothing without cards."""
    if not file.exists():
        return ""
    cards = read_cards(file)[0]
    shares = {card.config["data"]["numeric_share"] for card in cards}
    most, least = min(shares), max(shares)
    cut = max(map(_reduction, _of(cards, "adafest", most)))
    return (
        f"DP-AdaFEST has, at {significant(cut)}×, an AUC of {_aucs(cards, most)}; if the tables carry {1 - least:.0%} "
        f"of the signal, {_aucs(cards, least)}"
    )


def _aucs(cards: list[Card], share: float) -> str:
    sparsest = max(_of(cards, "adafest", share), key=_reduction)
    runs = sparsest, *_of(cards, "frozen", share), *_of(cards, "dpsgd", share)
    own, frozen, dense = (run.summary["utility"]["value"] for run in runs)
    return f"{own:.3f} (frozen {frozen:.3f}, DP-SGD {dense:.3f})"


def _of(cards: list[Card], name: str, share: float) -> list[Card]:
    alike = (card for card in cards if card.config["data"]["numeric_share"] == share)
    return [card for card in alike if card.config["algorithm"]["name"] == name]


def _reduction(card: Card) -> float:
    return float(card.summary["embedding_gradient"]["reduction"])
