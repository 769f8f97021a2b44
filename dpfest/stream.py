"""Training on a stream: days of examples, a budget for each period of days, and one ledger for all.

An example lies in one day, and a day in one period. It pays for the steps of its period and for the noised histogram
that it is counted in; all else that is released was made from other examples, and what follows from what it paid for
is post-processing. So epsilon is the largest over periods (parallel composition; the weights that one period hands to
the next make it adaptive, as in composition), each calibrated to the target on its own examples:

- a period of N_p examples takes steps at q = B / N_p, its own rate. The paper samples at the stream's q = B / N, at
  which examples that are there in one period only are not sampled: under fidelity `paper` the noise is the paper's, and
  `Ledger.sound_epsilon` and `StreamPlan.epsilon_at_own_rates` say what it is worth.
- histograms (`algorithm.selection.source`): `streaming` noises each day's once and adds up those of all days up to a
  period's last (the paper's "running sum updated per streaming period"); `first_day` noises the first day's and no
  other; `all_days` one of all days, before the first step.
- delta is 1 / N of the whole stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dpfest import accounting
from dpfest.accounting import Event
from dpfest.budget import Budget, plan, training_steps
from dpfest.errors import UserError
from dpfest.ledger import Ledger
from dpfest.noise import NoiseKey
from dpfest.privacy import PrivacyConfig
from dpfest.rules import Algorithm


@dataclass(frozen=True)
class StreamPlan:
    """What training on a stream may spend.

    Attributes:
      whole: the target, and the stream's examples and steps; without a step of its own but under fidelity `paper`.
      days: the days of each period, from 0.
      periods: what each period's training may spend, on a part of the examples that its step names.
      histograms: what the noised histograms spend, each on its part.
    """

    whole: Budget
    days: tuple[range, ...]
    periods: tuple[Budget, ...]
    histograms: tuple[Event, ...]

    @property
    def steps(self) -> list[Event]:
        """The steps of all periods; none without privacy."""
        return [replace(period.step, count=period.steps) for period in self.periods if period.step]

    @property
    def events(self) -> list[Event]:
        """All that is to be spent."""
        return [*self.histograms, *self.steps]

    @property
    def epsilon(self) -> float | None:
        """What the whole plan costs as the fidelity counts it, at most the target; None without privacy."""
        return self.whole.cost(self.events, self.whole.delta) if self.steps else None

    def ledger(self, finished: int = 0) -> Ledger:
        """The stream's ledger, its histograms and its first `finished` periods spent.

        Raises:
          BudgetExceeded: the plan passes the target.
        """
        ledger = Ledger(self.whole, plan=self.events)
        for event in (*self.histograms, *self.steps[:finished]):
            ledger.spend(event)
        return ledger

    def epsilon_at_own_rates(self) -> float:
        """Epsilon of the plan were the batches Poisson samples of their periods: the target or less but under `paper`,
        which counts them as samples of the whole stream."""
        rates = {period.step.part: period.sampling_probability for period in self.periods if period.step}
        own = [replace(step, sampling_probability=rates[step.part]) for step in self.steps]
        return accounting.epsilon([*self.histograms, *own], self.whole.delta)


def plan_stream(
    algorithm: Algorithm,
    privacy: PrivacyConfig,
    *,
    examples: Sequence[int],
    period: int,
    batch_size: int,
    features: int | Sequence[int],
    epochs: float = 1.0,
    steps: int | None = None,
    calibrate: Callable[..., float] = accounting.calibrate,
) -> StreamPlan:
    """The noise that makes each period of a stream meet the target.

    Formal guarantee: under fidelity `rigorous`, a run that spends no more than `StreamPlan.events`, each period's steps
    on Poisson samples of its own examples under its own `period_key` and each histogram once, is
    (privacy.epsilon, delta)-DP for one example more or less of the stream.

    Args:
      examples: of each day, in the order of time.
      period: days of a period; the last one may be shorter, and is calibrated on its own.
      epochs, steps: of each period, see `training_steps`.
      features, calibrate: see `dpfest.budget.plan`.

    Raises:
      UserError: no noise meets the target; a period has fewer examples than a batch; streaming histograms of a
        mechanism that noises none.
    """
    selection = algorithm.selection
    source = (selection.source or "streaming") if selection else None
    if selection and selection.mechanism == "gumbel" and source == "streaming":
        raise UserError(
            "algorithm.selection.mechanism=gumbel names rows and releases no counts, so the days of a stream do not "
            "add up: take gaussian or laplace, or algorithm.selection.source=first_day or all_days."
        )
    days = tuple(range(first, min(first + period, len(examples))) for first in range(0, len(examples), period))
    sizes = [sum(examples[day] for day in of_period) for of_period in days]
    for number, (size, of_period) in enumerate(zip(sizes, days, strict=True), 1):
        if size < batch_size:
            raise UserError(
                f"Period {number} ({_words(of_period)}) has {size:,} examples, fewer than a batch of train.batch_size="
                f"{batch_size}: lower it, or raise stream.period={period}."
            )
    total = sum(sizes)
    privacy = replace(privacy, delta=1 / total if privacy.delta is None else privacy.delta)
    lengths = [training_steps(size, batch_size, epochs, steps) for size in sizes]

    @cache
    def budget(size: int, length: int, selects: bool = True) -> Budget:
        return plan(
            algorithm, privacy, examples=size, batch_size=batch_size, steps=length, features=features,
            calibrate=calibrate, selects=selects,
        )  # fmt: skip

    parts = [(f"period {number}",) for number in range(1, len(days) + 1)]
    if privacy.fidelity == "paper":
        whole = budget(total, sum(lengths))
        budgets = [replace(whole, examples=size, steps=length) for size, length in zip(sizes, lengths, strict=True)]
    else:
        counted = [number == 0 or source != "first_day" for number in range(len(days))]
        budgets = [budget(*settings) for settings in zip(sizes, lengths, counted, strict=True)]
        whole = replace(budgets[0], examples=total, steps=sum(lengths), step=None)
    periods = tuple(_on(part, each) for part, each in zip(parts, budgets, strict=True))
    noised: dict[str, list[tuple[str, ...]]] = {
        "first_day": [(*parts[0], "day 0")],
        "all_days": [()],
        "streaming": [(*part, f"day {day}") for part, of_period in zip(parts, days, strict=True) for day in of_period],
    }
    histogram = whole.selection
    histograms = [replace(histogram, part=part) for part in noised[source]] if histogram and source else []
    return StreamPlan(whole, days, periods, tuple(histograms))


def period_key(key: NoiseKey, number: int) -> NoiseKey:
    """The key of a period, from 0: steps are counted anew in each, and no two may share a draw."""
    return key.derive("period", number)


def _on(part: tuple[str, ...], budget: Budget) -> Budget:
    """The budget with steps that are spent on a part of the examples; its histograms are the stream's."""
    if budget.step is None:
        return budget
    every = budget.examples // budget.batch_size if budget.fidelity == "paper" else None
    return replace(budget, selection=None, step=replace(budget.step, part=part, steps_per_epoch=every))


def _words(days: range) -> str:
    return f"day {days[0]}" if len(days) == 1 else f"days {days[0]}-{days[-1]}"
