"""Settings and numbers as text for tables and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from reports.algorithms import algorithm, label
from reports.comparison import Population
from reports.runs import Run
from reports.setting import Setting

METRIC = {"auc": "AUC", "accuracy": "accuracy"}

SYMBOL = {
    "algorithm.noise_ratio": "σ₁/σ₂",
    "algorithm.threshold": "τ",
    "algorithm.contribution_clipping_norm": "C₁",
    "algorithm.clipping_norm": "C₂",
    "algorithm.selection_clipping_norm": "S₁",
    "algorithm.rows_per_step": "m",
    "algorithm.max_rows": "rows",
    "algorithm.max_dimension": "dim",
    "algorithm.bands": "bands",
    "algorithm.selection.rows": "k",
    "algorithm.selection.mechanism": "selection",
    "algorithm.selection.noise_multiplier": "selection σ",
    "algorithm.selection.epsilon": "selection ε",
    "algorithm.selection.source": "days counted",
    "stream.period": "period",
    "algorithm.rank": "rank",
    "optimizer.dense.learning_rate": "dense lr",
    "optimizer.tables.learning_rate": "table lr",
    "optimizer.dense.name": "dense optimizer",
    "optimizer.tables.name": "table optimizer",
}

GENERATED = "text_synthetic"

# Settings of the selection, each with the mechanisms that use it.
SELECTION_COST = {
    "algorithm.selection.noise_multiplier": ("gaussian",),
    "algorithm.selection.epsilon": ("laplace", "gumbel"),
}


def seeds(runs: Iterable[Run]) -> str:
    """Name the seeds: seed 0 only; seeds 0, 1, 2; seeds 0 to 9."""
    numbers = sorted({run.seed for run in runs})
    if len(numbers) == 1:
        return f"seed {numbers[0]} only"
    if len(numbers) > 3 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"seeds {numbers[0]} to {numbers[-1]}"
    return f"seeds {', '.join(map(str, numbers))}"


def seeds_of(population: Population) -> str:
    """Name the seeds, with their number per setting if some have fewer: seeds 0, 1, 2 (1 to 3 per setting)."""
    counts = sorted({len({run.seed for run in setting.runs}) for setting in population.settings})
    few = f" ({counts[0]} to {counts[-1]} per setting)" if len(counts) > 1 or counts[0] < len(population.seeds) else ""
    return seeds(population.runs) + (few if len(population.seeds) > 1 else "")


def generated(population: Population) -> str:
    """Return a sentence for the caption if the texts are generated; else empty."""
    if population.dataset != GENERATED:
        return ""
    return (
        " These texts are generated and the encoder's weights are random: the run shows that the pipeline works, but "
        "cannot test the paper's claim about pretrained encoders on real texts."
    )


def described(population: Population) -> str:
    """Describe a population's runs, without the name of the data."""
    epsilons = ", ".join(number(epsilon) for epsilon in population.epsilons)
    rows = population.embedding_rows
    parts = (
        f"{plural(len(population.runs), 'run')} of {population.model}",
        f"N = {population.examples:,}",
        f"{rows:,} embedding rows" if rows else "",
        f"ε = {epsilons} ({population.fidelity} accounting)" if epsilons else "no privacy",
        seeds_of(population),
        population.profile and f"profile {population.profile}",
    )
    return ", ".join(filter(None, parts))


def metric(population: Population) -> str:
    return METRIC.get(population.metric, population.metric)


_ORIGIN = ("algorithm.name", "algorithm.kind", "algorithm.target")  # of which a reader is told the name


def settings_text(setting: Setting, population: Population) -> str:
    """Return the algorithm's own settings, and any other hyper-parameter that varies in the population.

    A value that all private settings share is omitted even if training without privacy has another one.
    """
    values = population.values if setting.epsilon is None else population.private_values
    mechanism = setting.values.get("algorithm.selection.mechanism")
    shown = []
    for key, value in setting.values.items():
        if mechanism is not None and mechanism not in SELECTION_COST.get(key, (mechanism,)):
            continue
        own = key.startswith("algorithm.") and key not in _ORIGIN
        if key == "algorithm.code":  # told where there are several versions of one
            own = any(s.values.get(key) != value for s in population.settings if s.algorithm == setting.algorithm)
        # A setting that a card lacks is null: it was made before there was one.
        varies = not key.startswith("algorithm.") and any(other != value for other in values.get(key, (None,)))
        if value is not None and (own or varies):
            text = value[:8] if key == "algorithm.code" else number(value)
            shown.append(f"{_symbol(setting.algorithm, key)}={text}")
    return ", ".join(shown) or "—"


def tooltip(setting: Setting, population: Population) -> str:
    """Return the tooltip of a setting's marker."""
    return (
        f"{label(setting.variant)}: test {metric(population)} {utility(setting.test, setting.spread)}, "
        f"reduction {multiple(setting.reduction)} ({settings_text(setting, population)})"
    )


def _symbol(name: str, key: str) -> str:
    return algorithm(name).symbols.get(key) or SYMBOL.get(key, key)


def capitalized(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def plural(count: int, noun: str) -> str:
    """Return count and noun: 1 setting, 2 settings."""
    return f"{count} {noun}{'s' * (count != 1)}"


def number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def multiple(reduction: float) -> str:
    """Format a reduction factor: 1×, 3.91×, 69,300×, 3.65·10⁵×, ∞."""
    return "∞" if math.isinf(reduction) else f"{significant(reduction)}×"


def significant(value: float) -> str:
    """Format three significant digits: 0.324, 69,300, 3.65·10⁵."""
    rounded = float(f"{value:.3g}")
    if rounded >= 1e5:
        return power_of_ten(value, 2)
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def power_of_ten(value: float, digits: int = 1) -> str:
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('0123456789-', '⁰¹²³⁴⁵⁶⁷⁸⁹⁻'))}"


def signed(value: float, word: Callable[[float], str] = "{:.4f}".format) -> str:
    """Format a difference; by default of utilities."""
    return ("−" if value < 0 else "+") + word(abs(value))


def flag(value: bool) -> str:
    """Format a flag: yes, in bold, or no."""
    return "**yes**" if value else "no"


def utility(value: float, spread: float | None = None) -> str:
    return f"{value:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def epsilon(value: float | None) -> str:
    """Format an ε spent to four significant digits; None is unknown."""
    return "unknown" if value is None else f"{value:.4g}"


def delta(value: float | None) -> str:
    return "—" if value is None else power_of_ten(value)
