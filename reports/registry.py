"""All artifacts, in the order of the report."""

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
        fig8, fig3, fig4, frontier, fig7, fig9, fig1a, fig1b, tab_vocab, fig2, fig5, fig6, tab_streaming,
        tab_lora, tab_large_vocab, tab_frozen, tab_wallclock, speed, audit, corrections, bias_variance,
        contribution,
    )
)  # fmt: skip
