"""What artifacts of texts share: which populations are texts, and what generated ones cannot show."""

from __future__ import annotations

from reports.comparison import Population

GENERATED = "text_synthetic"
LARGE_VOCABULARY = 200_000
"""Rows of a word embedding from which on it stands for XLM-R's 250,002 and not for RoBERTa's 50,265."""


def kind(population: Population) -> str:
    """``text``; ``large_text``, of a large vocabulary; ``stream``; or ``clicks``."""
    if population.metric == "accuracy":
        return "large_text" if vocabulary(population) >= LARGE_VOCABULARY else "text"
    return "stream" if population.periods else "clicks"


def vocabulary(population: Population) -> int:
    """Rows of the word embedding; 0 where no run tells."""
    return max((table.rows for run in population.runs for table in run.tables), default=0)


def generated(population: Population) -> str:
    """A sentence for the caption where the texts are generated; empty elsewhere."""
    if population.dataset != GENERATED:
        return ""
    return (
        " These texts are generated and the encoder's weights are random: the path is shown to work, and the paper's "
        "claim, which is of pretrained encoders on real texts, cannot be tested here."
    )
