"""The paper's numbers: every value of every table of Ghazi et al. (NeurIPS 2023).

Artifacts show these numbers beside ours. The paper's figures print no numbers to copy; its statements about them are in
the register of claims (:mod:`reports.claims`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from reports.tables import Column
from reports.wording import signed

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class PublishedTable(Generic[Key]):
    """One table of the paper: its label in the paper's source, its data, and its cells.

    `rows` are keyed by the paper's first column, each with a value for every name in `columns`.
    """

    label: str
    data: str
    columns: tuple[str, ...]
    rows: Mapping[Key, tuple[float, ...]]

    def value(self, row: Key, column: str) -> float | None:
        """Return a cell; None if the paper's table lacks the row or column."""
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]

    def beside(self, row: Key, column: str, ours: float | None) -> tuple[float | None, float | None, float | None]:
        """Return a cell, our value, and their difference if both exist: the cells of the columns of :func:`beside`."""
        paper = self.value(row, column)
        return paper, ours, None if paper is None or ours is None else ours - paper


def beside(name: str, heading: str, word: Callable[[float], str]) -> list[Column]:
    """Return the columns of a quantity that the paper prints: the paper's value, ours, and the difference."""
    return [
        Column(f"{name}_paper", f"{heading}, paper", word),
        Column(name, f"{heading}, ours", word),
        Column(f"{name}_difference", f"{heading}, ours − paper", partial(signed, word=word)),
    ]


TAB_VOCAB = PublishedTable(
    "tab:feature_size",
    "Criteo",
    ("vocabulary_size",),
    {
        f"categorical-feature-{number}": (size,)
        for number, size in enumerate(
            (
                1472, 577, 82741, 18940, 305, 23, 1172, 633, 3, 9090, 5918, 64300, 3207,
                27, 1550, 44262, 10, 5485, 2161, 3, 56473, 17, 15, 27360, 104, 12934,
            ),
            start=14,
        )
    },
)  # fmt: skip
"""Vocabulary size by categorical feature, numbered after the 13 numeric features."""

TAB_LORA = PublishedTable(
    "tab:compare_w_lora",
    "SST-2, RoBERTa, ε = 1",
    ("adafest", "lora_embedding"),
    {0.001: (14.59, 5.91), 0.005: (53.90, 23.64), 0.01: (53.90, 47.28)},
)
"""Best reduction of the word embeddings' gradient by loss of accuracy against DP-SGD."""

TAB_LARGE_VOCAB = PublishedTable(
    "tab:large_vocab",
    "SST-2 (RoBERTa) and XNLI (XLM-R), ε = 1",
    ("roberta", "xlm_r"),
    {0.001: (14.59, 17.21), 0.005: (53.90, 64.75), 0.01: (53.90, 152.94)},
)
"""Best reduction by DP-AdaFEST by loss of accuracy against DP-SGD: vocabularies of 50,265 and of about 250,000."""

TAB_WALLCLOCK = PublishedTable(
    "tab:comparison",
    "TensorFlow, dimension 64, batch size 1,024",
    ("dpsgd", "adafest", "factor"),
    {
        100_000: (0.985, 0.324, 3.045),
        200_000: (1.676, 0.312, 5.376),
        1_000_000: (6.607, 0.318, 20.746),
        2_000_000: (13.09, 0.323, 40.515),
        5_000_000: (31.326, 0.332, 94.340),
        10_000_000: (62.473, 0.353, 176.760),
    },
)
"""Seconds of 100 steps by rows of the embedding, and how many times less DP-AdaFEST takes."""

TAB_STREAMING = PublishedTable(
    "tab:auc_streaming",
    "Criteo-1TB",
    ("epsilon_1", "epsilon_3", "epsilon_8", "nonprivate"),
    {
        1: (0.7313, 0.7323, 0.7345, 0.7846),
        2: (0.7313, 0.7324, 0.7346, 0.7848),
        4: (0.7314, 0.7326, 0.7352, 0.7847),
        8: (0.7316, 0.7328, 0.7352, 0.7820),
        16: (0.7318, 0.7331, 0.7356, 0.7848),
        18: (0.7320, 0.7332, 0.7358, 0.7848),
    },
)
"""AUC of DP-SGD at three ε, and without privacy, by the days of a streaming period."""

TAB_FROZEN = PublishedTable(
    "tab:dp_train_vs_frozen",
    "RoBERTa",
    ("sst2", "qnli"),
    {
        ("nonprivate", None): (0.9431, 0.9238),
        ("dpsgd", 1.0): (0.9185, 0.8349),
        ("frozen", 1.0): (0.9143, 0.8311),
        ("dpsgd", 3.0): (0.9243, 0.8432),
        ("frozen", 3.0): (0.9151, 0.8402),
        ("dpsgd", 8.0): (0.9287, 0.8634),
        ("frozen", 8.0): (0.9266, 0.8628),
    },
)
"""Accuracy by algorithm and ε, with word embeddings trained (`dpsgd`) and not (`frozen`)."""

TABLES: Mapping[str, PublishedTable] = {
    "tab_vocab": TAB_VOCAB,
    "tab_lora": TAB_LORA,
    "tab_large_vocab": TAB_LARGE_VOCAB,
    "tab_wallclock": TAB_WALLCLOCK,
    "tab_streaming": TAB_STREAMING,
    "tab_frozen": TAB_FROZEN,
}
"""Tables by the id of the artifact that reproduces them."""

DATA: Mapping[str, tuple[str, ...]] = {
    "fig1b": ("criteo_kaggle",),
    "fig3": ("criteo_kaggle", "sst2", "qnli", "qqp"),
    "fig4": ("criteo_kaggle",),
    "fig5": ("criteo_1tb",),
    "fig6": ("criteo_1tb",),
    "fig7": ("criteo_kaggle", "sst2"),
    "fig8": ("criteo_kaggle",),
    "fig9": ("criteo_kaggle",),
    "tab_vocab": ("criteo_kaggle",),
    "tab_lora": ("sst2",),
    "tab_large_vocab": ("sst2", "xnli"),
    "tab_streaming": ("criteo_1tb",),
    "tab_frozen": ("sst2", "qnli"),
}
"""Data of the paper's figures and tables, by artifact."""

NAMES = {
    "criteo_kaggle": "Criteo-Kaggle",
    "criteo_1tb": "Criteo-1TB",
    "sst2": "SST-2",
    "qnli": "QNLI",
    "qqp": "QQP",
    "xnli": "XNLI",
}


def other_data(artifact: str, dataset: str) -> str:
    """Return a sentence for the caption of an artifact on other data than the paper's; empty on the same data, or if
    the artifact is not the paper's."""
    theirs = DATA.get(artifact, (dataset,))
    if dataset in theirs:
        return ""
    named = ", ".join(NAMES[name] for name in theirs)
    theirs_and_ours = ("numbers are", "ours") if artifact in TABLES else ("figure is", "this one")
    return (
        f" The data differ: the paper's {theirs_and_ours[0]} for {named}, {theirs_and_ours[1]} for {dataset}. Compare "
        "trends, not levels."
    )
