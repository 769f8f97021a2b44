"""All artifacts in the order of the report: the paper's, then ours."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from dpfest.errors import UserError
from reports.artifacts import (
    audit,
    best_reduction,
    calibration,
    correlated,
    fig1a,
    fig1b,
    fig2,
    fig7,
    fig8,
    fig9,
    finding,
    frontier,
    map,
    private_search,
    speed,
    tab_frozen,
    tab_large_vocab,
    tab_lora,
    tab_streaming,
    tab_units,
    tab_vocab,
    tab_wallclock,
)
from reports.entry import Entry

_CLICKS_AND_TEXT = ("clicks", "text")
_CONTROLS = ("dpsgd", "frozen")
_ALL = ("nonprivate", *_CONTROLS, *fig8.COMPARED)

ENTRIES = (
    # The paper's main part.
    Entry("fig1a", "An embedding's look-up and its gradient", fig1a.content),
    Entry(
        "fig1b", "Gradient sparsity of the largest features", fig1b.content,
        experiment="comparison", algorithms=("nonprivate",),
    ),
    Entry("fig2", "One step of DP-AdaFEST on 20 buckets", fig2.content),
    Entry(
        "fig3", "Best reduction at utility-loss thresholds", best_reduction.fig3,
        experiment="comparison", algorithms=(*_CONTROLS, *best_reduction.FIG3), kinds=_CLICKS_AND_TEXT,
    ),
    Entry(
        "fig4", "DP-AdaFEST+ against DP-FEST and DP-AdaFEST alone", best_reduction.fig4,
        experiment="comparison", algorithms=(*_CONTROLS, *best_reduction.FIG4),
    ),
    Entry(
        "fig5", "DP-AdaFEST against DP-FEST in streams", best_reduction.fig5,
        experiment="streaming", algorithms=(*_CONTROLS, "fest_equal", "fest", "adafest"), kinds=("stream",),
    ),
    Entry(
        "fig6", "DP-AdaFEST+ in a stream", best_reduction.fig6,
        experiment="streaming", algorithms=(*_CONTROLS, *best_reduction.FIG4), kinds=("stream",),
    ),
    Entry(
        "tab_lora", "LoRA on the embedding table", tab_lora.content,
        experiment="text", algorithms=("dpsgd", "adafest", "lora_embedding"), kinds=("text",), figure=False,
    ),
    Entry(
        "tab_large_vocab", "Larger vocabularies", tab_large_vocab.content,
        experiment="text_large_vocabulary", algorithms=("dpsgd", "adafest"), kinds=("large_text",), figure=False,
    ),
    Entry(
        "fig7", "Effect of σ₁/σ₂ and of τ", fig7.content,
        experiment="comparison", algorithms=("adafest", *_CONTROLS), kinds=_CLICKS_AND_TEXT,
    ),
    # Its appendix.
    Entry(
        "tab_vocab", "Vocabulary sizes", tab_vocab.content,
        experiment="comparison", algorithms=("nonprivate",), figure=False,
    ),
    Entry("fig8", "Utility and efficiency of every setting", fig8.content, experiment="comparison", algorithms=_ALL),
    Entry(
        "fig9", "Joint effect of σ₁/σ₂ and τ", fig9.content,
        experiment="comparison", algorithms=("adafest", "frozen"),
    ),
    Entry(
        "tab_wallclock", "Wall-clock time by vocabulary size", tab_wallclock.content,
        measured=(tab_wallclock.COMMAND,), figure=False,
    ),
    Entry(
        "tab_streaming", "Utility by streaming period", tab_streaming.content,
        experiment="streaming", algorithms=("nonprivate", "dpsgd"), kinds=("stream",), figure=False,
    ),
    Entry(
        "tab_frozen", "Word embeddings trained and frozen", tab_frozen.content,
        experiment="text", algorithms=("nonprivate", *_CONTROLS), kinds=("text",), figure=False,
    ),
    # Ours.
    Entry(
        "frontier", "Every algorithm's frontier", frontier.content,
        experiment="comparison", algorithms=_ALL, kinds=_CLICKS_AND_TEXT, figure=False,
    ),
    Entry(
        "calibration", "Are probabilities right?", calibration.content,
        experiment="comparison", algorithms=(*_CONTROLS, "fest", "adafest"),
    ),
    Entry(
        "correlated", "Noise that is correlated over steps", correlated.content,
        experiment="correlated", algorithms=correlated.NEEDED, kinds=("clicks", "stream"),
        where_trained=True,
    ),
    Entry(
        "private_search", "The price of choosing among runs", private_search.content,
        experiment="comparison", algorithms=_CONTROLS, kinds=(*_CLICKS_AND_TEXT, "stream"), figure=False,
    ),
    Entry(
        "map", "Where sparsity pays", map.content,
        experiment="map", algorithms=("frozen", "dpsgd", *map.RULES), kinds=("map",), together=True,
    ),
    Entry(
        "tab_units", "Utility by unit of privacy", tab_units.content,
        experiment="units", algorithms=("dpsgd", "threshold", "adafest", "frozen"), kinds=("unit",), figure=False,
        together=True,
    ),
    Entry(
        "speed", "Time of a step by vocabulary size", speed.content, measured=(speed.COMMAND, speed.STEP_COMMAND)
    ),
    Entry("audit", "Audit: empirical lower bounds and claimed ε", audit.steps, measured=(audit.COMMAND,)),
    Entry(
        "audit_trainings", "Audit of whole trainings: empirical lower bounds and claimed ε", audit.trainings,
        measured=(audit.COMMAND,),
    ),
    Entry("corrections", "The cost of the corrections", finding.of("corrections"), figure=False),
    Entry("bias_variance", "Bias against variance, measured", finding.of("bias_variance"), figure=False),
    Entry("contribution", "Contribution clipping of texts", finding.of("contribution"), figure=False),
)  # fmt: skip


def chosen(only: Sequence[str] | None) -> list[Entry]:
    """Return the artifacts with these ids, in the order of the report; all if none is named.

    Raises:
        UserError: there is no such artifact.
    """
    known = {entry.id: entry for entry in ENTRIES}
    for name in only or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"There is no artifact {name}; {hint}The artifacts are {', '.join(known)}.")
    return [entry for entry in ENTRIES if not only or entry.id in only]
