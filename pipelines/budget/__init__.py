"""`dpfest budget`: the noise that a privacy budget requires, without training.

The calculation is that of `dpfest.planning.plan`, which `train` calls, too; that of a private search is
`sweep`'s.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dpfest.accounting import accountant, calibration
from dpfest.accounting.accountant import Event, cost_alone, to_record
from dpfest.algorithms.adafest import AdaFEST, AdaFESTPlus
from dpfest.errors import UserError
from dpfest.planning.other_samplers import TruncatedPoisson
from dpfest.planning.plan import plan
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.planning.search import SearchPlan, plan_search
from dpfest.planning.search_law import Search
from dpfest.planning.seen import seen_by_map, seen_by_selection, survival, threshold_for
from dpfest.planning.unproven import epsilon_at_own_rates
from pipelines.budget import bands as correlated
from pipelines.config.schema import in_keys
from pipelines.config.settings import Config, SearchConfig
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.stream import Stream
from pipelines.data.units import identifiers
from pipelines.preprocess import dataset_folder
from pipelines.system.files import write_json

_FALSE_ROWS = 10
"""Untouched survivors a step for which the budget names a threshold."""

_LEAST_SPENT = 0.9
"""Share of a target that a remembered noise multiplier must spend: where it spends less, it was edited."""


@dataclass(frozen=True)
class Budget:
    """A plan, printed as a table; for a stream, with a table of its periods.

    Attributes:
        plan: of a run; within a private search, of one of its runs.
        search: the private search over this one setting, if one is asked for.
        alone: the plan of a run that no search chooses.
        independent: of a plan with correlated noise, the plan of a run with independent noise.
        rows_per_example: rows of each feature that an example touches at most; None where that is unknown.
        rows: of all tables; None where that is unknown.
        bands: of independent noise that may be correlated, what would accumulate in a row by number of bands.
    """

    plan: PrivacyPlan
    search: SearchPlan | None = None
    alone: PrivacyPlan | None = None
    independent: PrivacyPlan | None = None
    rows_per_example: Sequence[int] | None = None
    rows: int | None = None
    bands: Mapping[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        plan, stream, step = self.plan, self.plan.periods[0].days is not None, self.plan.step()
        lines = {
            "algorithm": plan.algorithm.name,
            ("examples N" if plan.unit is None else f"units N ({plan.unit.name})"): f"{plan.examples:,}",
            "batch size B": f"{plan.batch_size:,}",
            "steps T": f"{plan.steps:,}",
        }
        if isinstance(plan.sampler, TruncatedPoisson):
            lines["largest batch"] = f"{plan.sampler.max_batch_size:,}"
        one_rate = not stream or plan.fidelity == "paper"
        if one_rate:
            rate = step.sampling_probability if step else plan.batch_size / plan.examples
            of = f" within one of {step.bands} groups" if step and step.bands else " q"
            lines[f"sampling probability{of}"] = f"{rate:.6g}"
        if plan.target_epsilon is None:
            lines["privacy"] = "none: no guarantee"
        else:
            lines["epsilon"] = (
                f"{plan.epsilon:.6g} of {plan.target_epsilon:g} ({plan.fidelity}, "
                f"{plan.sampling.replace('_', ' ')} batches; "
                f"add-or-remove-one{f' {plan.unit.name}' if plan.unit else ''} adjacency)"
            )
            if stream and plan.fidelity == "paper":
                lines["epsilon at each period's own q"] = f"{epsilon_at_own_rates(plan):.6g}"
            lines["delta"] = f"{plan.delta:.4g}"
            lines |= _noise(step) if one_rate else {}
            lines |= self._accumulated()
            if plan.vocabulary:
                alone = accountant.epsilon(plan.vocabulary.events, plan.delta)
                lines["epsilon of the vocabulary alone"] = f"{alone:.6g}"
                lines["a value has a row from about"] = f"{plan.vocabulary.threshold:,.0f} training examples"
            if plan.selections:
                selection = plan.selections[0]
                claim = selection.claimed_epsilon
                cost = f"{accountant.epsilon([selection], plan.delta):.6g}"
                claimed = f" (the paper claims {claim:g})" if claim is not None else ""
                lines["epsilon of selection alone"] = cost + claimed
            lines |= self._seen() | self._searched()
        width = max(map(len, lines))
        table = [f"{name:<{width}}  {value}" for name, value in lines.items()]
        return "\n".join([*table, *(self._periods() if stream else ())])

    def _seen(self) -> dict[str, str]:
        """Return how often a row must occur to be told from the noise (:mod:`dpfest.planning.seen`); of clicks alone,
        where an example touches a row of each feature, or a bag of them."""
        plan, lines, whose = self.plan, {}, "examples" if self.plan.unit is None else f"{self.plan.unit.name}s"
        if self.rows_per_example is None:
            return {}
        if isinstance(plan.algorithm, AdaFEST):
            seen = seen_by_map(plan, sum(self.rows_per_example))
            assert seen.in_batch is not None
            of = f"{seen.in_batch:,.1f} of a batch" + ("" if plan.periods[0].days is None else ", in the first period")
            lines["a row is seen by the map in"] = f"{seen.in_all:,.0f} training {whose} ({of})"
            lines |= self._untouched(sum(self.rows_per_example))
        if counted := seen_by_selection(plan, self.rows_per_example):
            of = "" if plan.periods[0].days is None else " of the days counted"
            lines["a row is seen by the selection in"] = f"{counted.in_all:,.0f} training {whose}{of}"
        return lines

    def _untouched(self, rows_per_example: int) -> dict[str, str]:
        """Return how many rows that no example touches survive a step, as the threshold decides: of all rows, or of
        those chosen beforehand."""
        plan, rows = self.plan, self.rows
        assert isinstance(plan.algorithm, AdaFEST)
        if isinstance(plan.algorithm, AdaFESTPlus) and rows is not None:
            rows = min(rows, plan.algorithm.selection.rows)
        if rows is None or rows <= _FALSE_ROWS:
            return {}
        survive = rows * survival(plan, 0, rows_per_example)
        advised = threshold_for(plan, rows=rows, false_rows=_FALSE_ROWS)
        now = f"{survive:,.3g} of {rows:,} at algorithm.threshold={plan.algorithm.threshold:g}"
        return {"untouched rows that survive a step": f"{now}; {_FALSE_ROWS} at {advised:.3g}"}

    def _accumulated(self) -> dict[str, str]:
        """Return how much noise accumulates in a row under correlated noise, or would; of one period alone."""
        if self.independent is None:
            would = correlated.advice(self.bands)
            line = f"{would} ({correlated.PROMISE})" if would else "would leave no less noise in a row"
            return {"correlated noise": line} if self.bands else {}
        if len(self.plan.periods) > 1:
            return {}
        share = correlated.accumulated(self.plan, self.independent)
        more = ": leave algorithm.bands out" if share >= 1 else f" ({correlated.PROMISE})"
        return {"noise accumulated in a row": f"{share:.3g} of that of independent noise{more}"}

    def _searched(self) -> dict[str, str]:
        """Return what a private search costs, beside a run alone and as many runs by plain composition."""
        if self.search is None or self.alone is None:
            return {}
        runs = math.ceil(self.search.search.mean)
        composed = [event for _ in range(runs) for event in self.plan.events]
        lines = {
            "private search": self.search.search.law,
            "epsilon of the search": f"{self.search.epsilon:.6g} of {self.search.target_epsilon:g}",
            f"epsilon of {runs} runs, all released": f"{accountant.epsilon(composed, self.plan.delta):.6g}",
        }
        if self.alone.noise_multiplier is not None:
            of = f"σ of a run alone at epsilon {self.search.target_epsilon:g}"
            lines[of] = f"{self.alone.noise_multiplier:.6g}"
        return lines

    def _periods(self) -> list[str]:
        """Return a header line and a line per period."""
        rows = []
        for number, period in enumerate(self.plan.periods):
            days, step = period.days or range(1), self.plan.step(number)
            rate = step.sampling_probability if step else self.plan.batch_size / period.examples
            q = "q" if self.independent is None else "q of a group"
            sizes = {"N": f"{period.examples:,}", "T": f"{period.steps:,}", q: f"{rate:.6g}"}
            row = {"period": f"{number + 1}", "days": f"{days[0]}-{days[-1]}", **sizes, **_noise(step)}
            if self.independent is not None:
                row["noise in a row"] = f"{correlated.accumulated(self.plan, self.independent, number):.3g}"
            rows.append(row)
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]


def _noise(step: Event | None) -> dict[str, str]:
    """Return the noise of a step by name and symbol; empty without noise."""
    names = {
        "noise multiplier σ": "noise_multiplier",
        "map σ1": "map_noise_multiplier",
        "gradient σ2": "gradient_noise_multiplier",
        "epsilon of one drawn row": "epsilon_per_draw",
    }
    values = {name: getattr(step, field, None) for name, field in names.items()}
    return {name: f"{value:.6g}" for name, value in values.items() if value is not None}


def budget(config: Config) -> Budget:
    """Return the plan that `train` would follow under this configuration.

    N is `budget.examples`, or else the number of training rows of the processed dataset or stream. Calibrations are
    cached in `paths.runs`, where `train` finds them.

    Raises:
      UserError: N is unknown, or no noise meets the target.
    """
    examples, features = data_sizes(config)
    alone = planned(config, examples, features)
    independent = None
    if config.algorithm.bands is not None:
        independent = planned(correlated.with_bands(config, None), examples, features)
    rows_per_example = None
    if config.data.task == "clicks" and alone.unit is None:
        bags = [bag.most for bag in config.data.bags.values()]
        singles = (features if isinstance(features, int) else len(features)) - len(bags)
        rows_per_example = [1] * singles + bags
    rows = None if isinstance(features, int) else sum(features)
    if not config.search.asked:
        may = correlated.may_be_correlated(config)
        found = correlated.by_bands(alone, partial(roughly, config, examples, features)) if may else {}
        return Budget(alone, independent=independent, rows_per_example=rows_per_example, rows=rows, bands=found)
    search = search_plan([config], examples, features)
    return Budget(search.plans[0], search, alone, rows_per_example=rows_per_example, rows=rows)


def data_sizes(config: Config) -> tuple[int | list[Any], int | Sequence[int]]:
    """Return what `planned` plans for: N (of a stream by day), and the features' vocabulary sizes or their number.

    Raises:
        UserError: N is unknown.
    """
    folder = _folder(config)
    stream = Stream.open(folder) if folder else None
    return _examples(config, stream), stream.vocabulary_sizes if stream else config.data.features()


def roughly(config: Config, examples: Any, features: Any, bands: int) -> PrivacyPlan:
    """Return the plan with so many bands, its noise known to about half a percent."""
    rough = partial(calibration.calibrate, rough=True)
    return planned(correlated.with_bands(config, bands), examples, features, rough)


@in_keys()
def planned(
    config: Config,
    examples: int | Sequence[Any],
    features: int | Sequence[int],
    calibrate: Callable[..., float] | None = None,
) -> PrivacyPlan:
    """Return the plan of a run on this `population`; see `dpfest.plan`. Its calibration is remembered, unless given.

    Raises:
      UserError: no noise meets the target, or settings do not go together.
    """
    privacy, train = config.privacy, config.train
    vocabulary, seeds = None, [privacy.noise_seed]
    count = features if isinstance(features, int) else len(features)
    if isinstance(config.data, ClickConfig) and isinstance(examples, int):
        vocabulary = config.data.vocabulary.release(examples, count)
        seeds += [config.data.vocabulary.noise_seed] if vocabulary else []
    return plan(
        config.algorithm,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        examples=examples,
        batch_size=train.batch_size,
        steps=train.steps,
        epochs=train.epochs if train.steps is None else None,
        period=None if isinstance(examples, int) else config.stream.period,
        unit=config.unit_of_privacy,
        features=features,
        fidelity=privacy.fidelity,
        sampling=privacy.sampling,
        max_batch_size=privacy.max_batch_size,
        fixed_noise_seed=any(seed is not None for seed in seeds),
        vocabulary=vocabulary,
        calibrate=calibrate or remembered_calibration(Path(config.paths.runs)),
    )


@in_keys()
def search_plan(settings: Sequence[Config], examples: int | Sequence[int], features: int | Sequence[int]) -> SearchPlan:
    """Return the plan of a private search on this number of examples, or on a stream of days with these.

    Raises:
        UserError: no noise meets the target.
    """
    if any(isinstance(one.data, ClickConfig) and one.data.vocabulary.policy == "private" for one in settings):
        raise UserError(
            "data.vocabulary.policy=private is one release for all runs, and a search counts what each run releases: "
            "take tables of public sizes, or search.distribution=none."
        )
    made: dict[str, PrivacyPlan] = {}

    def maker(config: Config) -> Callable[..., PrivacyPlan]:
        train = (config.train.batch_size, config.train.steps, config.train.epochs)
        same = json.dumps([config.algorithm.name, asdict(config.algorithm), train, config.stream.period])

        def make(epsilon: float, delta: float | None) -> PrivacyPlan:
            key = f"{same} {epsilon!r}"
            if key not in made:  # settings that differ in learning rates cost the same
                privacy = replace(config.privacy, epsilon=epsilon, delta=delta)
                made[key] = planned(replace(config, privacy=privacy), examples, features)
            return made[key]

        return make

    first = settings[0]
    return plan_search(
        law_of(first.search), [maker(config) for config in settings],
        epsilon=first.privacy.epsilon, delta=first.privacy.delta,
    )  # fmt: skip


def law_of(search: SearchConfig) -> Search:
    """Return the law of the number of runs of a private search."""
    return Search(search.mean, search.distribution, search.shape)


def remembered_calibration(runs: Path) -> Callable[..., float]:
    """Return `calibration.calibrate` with a cache in `runs`, which later runs and commands share, whatever algorithm
    they train: its noise follows from what is spent alone.

    A cached result is used only if it meets the target and spends most of it; otherwise, or if it cannot be read, it is
    computed again. A folder that may only be read keeps none.
    """
    folder = runs / ".calibration"

    def calibrate(make_events: Callable[[float], Sequence[Event]], target: float, delta: float) -> float:
        probes = [[to_record(cost_alone(event)) for event in make_events(sigma)] for sigma in (1.0, 2.0)]
        question = {"events": probes, "epsilon": target, "delta": delta, "dp_accounting": version("dp_accounting")}
        name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
        entry = folder / f"{name}.json"
        try:
            sigma = json.loads(entry.read_text(encoding="utf-8"))["noise_multiplier"]
            number = isinstance(sigma, float) and math.isfinite(sigma)
            if number and _LEAST_SPENT * target <= accountant.epsilon(make_events(sigma), delta) <= target:
                return sigma
        except (OSError, ValueError, KeyError, TypeError):
            pass
        sigma = calibration.calibrate(make_events, target, delta)
        with suppress(OSError):
            write_json(entry, {**question, "noise_multiplier": sigma})
        return sigma

    return calibrate


def _folder(config: Config) -> Path | None:
    """Return the folder of the data, or None if they are not preprocessed yet."""
    try:
        folder = dataset_folder(config)
    except UserError:
        # The source is missing; budget.examples may suffice.
        return None
    return folder if folder.exists() else None


def population(config: Config, stream: Stream) -> int | list[Any]:
    """Return what a plan samples from: number of training rows, or of units; of a stream by training day.

    Of a stream with units, the units' identifiers, since a unit may be in several days.
    """
    if config.unit_of_privacy is None:
        return stream.examples(config.stream.train_days)
    found = identifiers(stream.split_days(config.stream.train_days)[0], config.privacy.unit)
    return found if stream.is_stream else len(np.unique(found[0]))


def _examples(config: Config, stream: Stream | None) -> int | list[Any]:
    """Return `budget.examples`, split into equal days for a stream, or else the number of processed training rows."""
    days, examples = config.stream.train_days, config.budget.examples
    if examples is not None and config.unit_of_privacy and config.data.is_stream:
        raise UserError(
            f"budget.examples={examples} does not say which units are in which days: leave it null, and make the data "
            f"first (dpfest preprocess data={config.data.name} privacy.unit={config.privacy.unit})."
        )
    if examples is not None:
        return (
            [examples // days + (day < examples % days) for day in range(days)] if config.data.is_stream else examples
        )
    if stream is None:
        of = f" (over all {days} training days)" if config.data.is_stream else ""
        raise UserError(
            f"The number of training examples is unknown: set budget.examples{of}, or make the data first "
            f"(dpfest preprocess data={config.data.name})."
        )
    return population(config, stream)
