"""All artifacts, in the order of the report: the paper's, and ours after them."""

from __future__ import annotations

from reports.artifact import Artifact
from reports.artifacts import (
    audit,
    bias_variance,
    contribution,
    corrections,
    fig1a,
    fig1b,
    fig2,
    fig3,
    fig4,
    fig5,
    fig6,
    fig7,
    fig8,
    fig9,
    frontier,
    speed,
    tab_frozen,
    tab_large_vocab,
    tab_lora,
    tab_streaming,
    tab_vocab,
    tab_wallclock,
)

ARTIFACTS: tuple[Artifact, ...] = tuple(
    module.ARTIFACT
    for module in (
        # The paper's text, its appendix, and ours.
        fig1a, fig1b, fig2, fig3, fig4, fig5, fig6, tab_lora, tab_large_vocab, fig7,
        tab_vocab, fig8, fig9, tab_wallclock, tab_streaming, tab_frozen,
        frontier, speed, audit, corrections, bias_variance, contribution,
    )
)  # fmt: skip
