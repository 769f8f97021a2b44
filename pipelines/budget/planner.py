"""`dpfest budget --plan`: batch size and steps for N, epsilon, delta and a compute budget, from accounting alone.

The compute budget is the number of examples that all steps read, B·T. A step releases the mean of B clipped gradients
with noise of standard deviation C·σ/B. McKenna et al. ("Scaling Laws for Differentially Private Language Models", 2025)
find that what is learnt depends on T and on this *noise-to-batch ratio* σ/B alone. Which ratio is worth how many steps
depends on model and data; but accounting says from which batch size on larger batches save no more noise. At a fixed
B·T, doubling B halves T, and

- where σ stays as it is (a small sampling probability), σ/B halves, and √T·B/σ, what T steps add up of a constant
  gradient over what they add up of noise, grows by √2;
- where σ grows by √2 (q·√T/σ is constant), √T·B/σ stays as it is: steps are lost for nothing. (Total noise is constant
  there: Sander, Stock and Sablayrolles, "TAN Without a Burn", 2023; Räisä, Jälkö and Honkela, "Subsampling is not
  Magic", 2024.)

The rule: double the batch as long as σ grows by at most 2^(1/4), halfway between the two, and `LEAST_STEPS` steps are
left. It reads no data, and knows neither them nor the model: `EVIDENCE` says what it is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from dpfest.accounting import calibration
from dpfest.accounting.bands import strategy
from dpfest.errors import UserError
from dpfest.planning.plan import training_steps
from dpfest.planning.privacy_plan import PrivacyPlan
from pipelines.budget import data_sizes, planned, roughly
from pipelines.budget.bands import PROMISE, accumulated, advice, by_bands, may_be_correlated, with_bands
from pipelines.config.settings import Config

LEAST_STEPS = 64
"""Fewer learn too little, however little noise they have. Where σ hardly grows, as at large epsilon, this decides."""

MOST_GROWTH = 2**0.25
"""Of σ, where the batch is doubled at the same number of examples seen."""

EVIDENCE = """\
How sure: not very. On three data sets of 0.26 to 1.18 million examples, with batches of 1,024 to 65,536 and the same
examples seen (DP-SGD at ε = 1, on two of them at 8, and frozen embeddings at 1; one seed), the suggestion's validation
AUC was 0.003 below that of the best batch tried on average, and 0.009 at worst. A batch drawn from those tried loses
0.009 on average, the worst one 0.024; always taking the recipes' 8,192, at which their learning rates were chosen,
0.001. The fewest steps that are suggested, 64, were chosen on these runs. Another clipping norm than 1 was better in
1 of 10 pairs of runs of DP-SGD, and in 8 of 11 of frozen embeddings. Runs: docs/search, made at commits 761bfd7,
493af51, 48683d0 and f122a6f."""


@dataclass(frozen=True)
class Setting:
    """One way to spend the compute budget.

    Attributes:
        batch_size: B.
        steps: T.
        noise_multiplier: σ, that of the gradient, to about half a percent.
        accumulated: a, noise that accumulates in a row at this σ, relative to independent noise: 1 but for
            correlated noise.
    """

    batch_size: int
    steps: int
    noise_multiplier: float
    accumulated: float = 1.0

    @property
    def noise_to_batch(self) -> float:
        """σ/B: standard deviation of a step's noise, in clipping norms."""
        return self.noise_multiplier / self.batch_size

    @property
    def signal_to_noise(self) -> float:
        """√T·B/(σ·a): what all steps add up of a gradient of one clipping norm, over what they add up of noise."""
        return math.sqrt(self.steps) / (self.noise_to_batch * self.accumulated)


@dataclass(frozen=True)
class Suggestion:
    """The suggested setting among its neighbours, printed as a table.

    Attributes:
        plan: that of the suggested setting, its noise known to about half a percent.
        examples_seen: the compute budget B·T.
        suggested: what `largest_paying` chose.
        settings: ways to spend the compute budget, by batch size: the suggested one, its neighbours, and the batch size
            that is configured.
        configured: batch size of the configuration.
        bands: by batch size, the suggested and the configured one: numbers of bands (those that are set, or else powers
            of two), each with the noise that would accumulate in a row, relative to independent noise.
    """

    plan: PrivacyPlan
    examples_seen: int
    suggested: Setting
    settings: tuple[Setting, ...]
    configured: int
    bands: Mapping[int, Mapping[int, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        plan, what = self.plan, "examples" if self.plan.unit is None else f"units ({self.plan.unit.name})"
        lines = {
            "algorithm": plan.algorithm.name,
            f"{what} N": f"{plan.examples:,}",
            f"{what} seen B·T": f"{self.examples_seen:,} ({self.examples_seen / plan.examples:.3g} epochs)",
            "epsilon": f"{plan.target_epsilon:g} at delta {plan.delta:.3g} ({plan.fidelity}, "
            f"{plan.sampling.replace('_', ' ')} batches)",
        }
        width = max(map(len, lines))
        head = [f"{name:<{width}}  {value}" for name, value in lines.items()]
        return "\n".join([*head, "", *self._table(), "", *self._advice(), "", EVIDENCE])

    def _table(self) -> list[str]:
        """Return a header line and a line for each setting."""
        correlated = self.plan.algorithm.bands is not None
        rows = [["B", "T", "q", "σ", "σ/B", *(["a", "√T·B/(σ·a)"] if correlated else ["√T·B/σ"]), ""]]
        for one in self.settings:
            marks = {"suggested": one == self.suggested, "configured": one.batch_size == self.configured}
            rows.append(
                [
                    f"{one.batch_size:,}",
                    f"{one.steps:,}",
                    f"{one.batch_size / self.plan.examples:.3g}",
                    f"{one.noise_multiplier:.3g}",
                    f"{one.noise_to_batch:.2e}",
                    *([f"{one.accumulated:.3g}"] if correlated else []),
                    f"{one.signal_to_noise / self.suggested.signal_to_noise:.0%}",
                    ", ".join(mark for mark, holds in marks.items() if holds),
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths[-1] = 0
        return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def _advice(self) -> list[str]:
        """Return what to set, and what else changes with it."""
        best, factor = self.suggested, self.suggested.batch_size / self.configured
        lines = [f"suggested: train.batch_size={best.batch_size} train.steps={best.steps}"]
        larger = next((one for one in self.settings if one.batch_size == 2 * best.batch_size), None)
        if larger and pays(best, larger):
            lines.append(
                f"A larger batch would save more noise, but leave fewer than {LEAST_STEPS} steps: these decide, and a "
                "smaller batch may well be better."
            )
        if factor != 1:
            lines.append(
                f"Learning rates that suit batches of {self.configured:,} suit these times {factor:.3g} (SGD, the "
                f"tables) and times {math.sqrt(factor):.3g} (Adam, the dense part)."
            )
        clipping = f"Clipping norm: {self.plan.algorithm.clipping_norm:g}, as configured; σ/B does not depend on it."
        for size, found in self.bands.items():
            would = advice(found) or "Correlated noise would leave no less noise in a row"
            lines.append(f"{would}, at B = {size:,}.")
        return [*lines, *([f"({PROMISE}.)"] if self.bands else []), clipping]


def suggest(config: Config) -> Suggestion:
    """Return the suggested batch size and number of steps for a configuration's N, epsilon, delta and compute budget.

    The compute budget is `budget.examples_seen`, or else what the configured steps read. Batch sizes are powers of two.

    Raises:
        UserError: nothing to plan (no noise), or several plans in one (a stream, a private search); N is unknown; the
            compute budget is too small; no noise meets the target.
    """
    _refuse(config)
    examples, features = data_sizes(config)
    train, rough = config.train, partial(calibration.calibrate, rough=True)
    assert isinstance(examples, int), "a list of days is a stream's"
    epochs = train.epochs if train.steps is None else None
    seen = config.budget.examples_seen
    if seen is None:
        seen = train.batch_size * training_steps(examples, train.batch_size, epochs=epochs, steps=train.steps)
    most = min(seen // LEAST_STEPS, examples)
    if most < 1:
        raise UserError(
            f"budget.examples_seen={seen} leaves no batch in {LEAST_STEPS} steps, the fewest that are planned: raise "
            "it (batch size times steps)."
        )

    bands = config.algorithm.bands
    most = min(most, examples // (bands or 1))  # correlated noise samples one of b groups
    if most < 1:
        raise UserError(f"algorithm.bands={bands} leaves groups of less than one of {examples} examples: choose fewer.")

    @cache
    def at(batch_size: int, bands: int | None = bands) -> Config:
        spent = replace(train, batch_size=batch_size, steps=seen // batch_size)
        return replace(with_bands(config, bands), train=spent)

    @cache
    def plan_of(batch_size: int, bands: int | None = bands) -> PrivacyPlan:
        return planned(at(batch_size, bands), examples, features, rough)

    def setting(batch_size: int, bands: int | None = bands) -> Setting:
        plan = plan_of(batch_size, bands)
        share = strategy(bands, plan.steps).accumulated(plan.steps) if bands else 1.0
        return Setting(batch_size, plan.steps, plan.gradient_noise_multiplier or math.inf, share)

    # The rule, and what is known of it, are of independent noise: correlated noise would have the steps for its gain.
    best = setting(largest_paying(partial(setting, bands=None), most).batch_size)
    shown = {best.batch_size * 2**power // 4 for power in range(5)} | {train.batch_size}
    largest = min(seen, examples) // (bands or 1)  # of as many steps as bands, and of a group's examples
    settings = tuple(setting(size) for size in sorted(shown) if 1 <= size <= largest)
    correlated: dict[int, dict[int, float]] = {}
    for size in dict.fromkeys((best.batch_size, train.batch_size)):
        if bands and size <= largest:
            correlated[size] = {bands: accumulated(plan_of(size), plan_of(size, None))}
        elif may_be_correlated(config) and size <= largest:
            correlated[size] = by_bands(plan_of(size), partial(roughly, at(size), examples, features))
    return Suggestion(plan_of(best.batch_size), seen, best, settings, train.batch_size, correlated)


def largest_paying(setting: Callable[[int], Setting], most: int) -> Setting:
    """Return the setting of the largest power of two, up to ``most``, to which doubling the batch `pays`. ``setting``
    returns that of a batch size, at the same number of examples seen."""
    batch_size = 2 ** (most.bit_length() - 1)
    while batch_size > 1:
        larger, smaller = setting(batch_size), setting(batch_size // 2)
        if pays(smaller, larger):
            break
        batch_size //= 2
    return setting(batch_size)


def pays(smaller: Setting, larger: Setting) -> bool:
    """Return whether doubling the batch saves enough noise: σ grows by at most `MOST_GROWTH`."""
    return larger.noise_multiplier <= MOST_GROWTH * smaller.noise_multiplier


def _refuse(config: Config) -> None:
    """Refuse what has no one noise-to-batch ratio."""
    if not config.algorithm.private:
        raise UserError(
            f"algorithm={config.algorithm.name} adds no noise, and --plan weighs noise against steps: choose a private "
            "algorithm, such as algorithm=dpsgd."
        )
    if config.data.is_stream:
        raise UserError(
            f"data={config.data.name} is a stream, each of whose periods has its own N and its own noise: plan one "
            "period as data that are no stream, with budget.examples set to its size (--plan data=journey "
            "budget.examples=60000)."
        )
    if config.search.asked:
        raise UserError(
            "--plan plans one run: leave out search=..., then ask `dpfest budget` what a search over the plan costs."
        )
