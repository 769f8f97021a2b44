"""Private search: one epsilon for the best of several runs (Liu and Talwar 2019; Papernot and Steinke 2022).

A search makes K runs, K random and secret. Each draws its setting uniformly from a grid and its noise from a key of its
own, and has a score. The best run leaves, with its setting and score; nothing of the others does, not even their
number. ``dpfest.accounting.search_cost`` bounds what that costs.

The scores are not noised. They may depend on what the run releases and on data that epsilon does not cover, such as
validation rows: for a fixed set of those, a run and its score are post-processing of what the run paid for.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event, from_record, to_record
from dpfest.accounting.calibration import LEAST_EPSILON
from dpfest.errors import UserError
from dpfest.noise.distributions import distinct
from dpfest.noise.key import NoiseKey
from dpfest.planning.ledger import Ledger
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.planning.search_law import Search

_TOLERANCE = 2e-3  # of a planned search below its target


@dataclass(frozen=True)
class SearchPlan:
    """A search and the plan of a run of each setting, so that neither can be used with another.

    Attributes:
        search: the law of the number of runs.
        plans: one for each setting, drawn with equal probability.
        target_epsilon: of the whole search, at the plans' delta.

    Raises:
        UserError: no plan, or no search; or plans that have no common guarantee: without privacy, accounted as the
            paper does, of other data or another delta.
    """

    search: Search
    plans: tuple[PrivacyPlan, ...]
    target_epsilon: float

    def __post_init__(self) -> None:
        if not isinstance(self.search, Search):
            raise UserError(f"search={self.search!r} must be a dpfest.Search(mean), the law of the number of runs.")
        if not self.plans:
            raise UserError("The grid is empty: a search needs one setting or more.")
        for plan in self.plans:
            if not isinstance(plan, PrivacyPlan):
                raise UserError(f"A setting gave {_kind(plan)} in place of a plan: return dpfest.plan(...) from it.")
            if not plan.algorithm.private or plan.fidelity != "rigorous":
                raise UserError(
                    f"{plan.algorithm.name} with fidelity={plan.fidelity} has no proven epsilon, so a search that may "
                    "choose it has none: leave it out of the grid."
                )
            if (plan.examples, plan.delta) != (self.plans[0].examples, self.plans[0].delta):
                raise UserError(
                    f"The settings of a search share the examples and delta: {plan.examples:,} at {plan.delta:.4g} and "
                    f"{self.plans[0].examples:,} at {self.plans[0].delta:.4g} cannot be compared."
                )
            if plan.unit != self.plans[0].unit:
                raise UserError("The settings of a search protect one unit of privacy: leave the others out.")
            if plan.vocabulary:
                raise UserError(
                    "A search counts all that its runs release once for each run, and a vocabulary of noised counts is "
                    "released once for all: take tables of public sizes."
                )
            if plan.fixed_noise_seed != self.plans[0].fixed_noise_seed:
                raise UserError("Either all settings of a search have a fixed noise seed, or none has.")

    @property
    def delta(self) -> float:
        """Delta of the whole search."""
        return self.plans[0].delta

    @cached_property
    def epsilon(self) -> float:
        """What the search costs, at ``delta``."""
        return self.search.epsilon([plan.events for plan in self.plans], self.delta)

    @property
    def epsilon_of_run(self) -> float:
        """What a single run costs, at ``delta``: the largest of the grid."""
        return max(plan.epsilon or 0.0 for plan in self.plans)

    @property
    def epsilon_of_all(self) -> float:
        """What a run of each setting costs by plain composition, at ``delta``; quick, an upper bound within 1%."""
        events = [event for plan in self.plans for event in plan.events]
        if len({len(plan.periods) for plan in self.plans}) > 1:  # a period of one is not the same days as of another
            events = [replace(event, part=()) for event in events]
        return accountant.epsilon(events, self.delta, accountant.COARSE_INTERVAL)

    def draws(self, key: NoiseKey) -> list[int]:
        """Return the setting of each of the K runs, a function of the key alone; secret, and so is their number."""
        number = self.search.number(key.stream("number of runs"))
        return [int(distinct(key.stream("setting", run), len(self.plans), 1)[0]) for run in range(number)]

    def key_of(self, key: NoiseKey) -> NoiseKey:
        """Return this search's part of a key: two searches under one key share neither draws nor noise."""
        return key.derive(f"search {hashlib.sha256(repr(self).encode()).hexdigest()}")

    @property
    def statement(self) -> str:
        """What epsilon means for the best run, in full sentences."""
        return search_statement(self.to_json())

    def ledger(self, run: Ledger | Mapping[str, Any]) -> dict[str, Any]:
        """Return the ledger of the search as a JSON object, from that of its best run.

        Its epsilon is the search's; ``search`` holds what :func:`recount` recounts it from.

        Args:
            run: ledger of the run, or its JSON form.

        Raises:
            UserError: the run spent, or was to spend, what no setting of the search does.
        """
        record, search = run.to_json() if isinstance(run, Ledger) else dict(run), self.to_json()
        if _counted(record["planned"]) not in list(map(_counted, search["runs"])):
            raise UserError(
                "The ledger is not of a run of this search, whose epsilon therefore does not cover it: give that of "
                "the best run, trained under its own plan alone."
            )
        return {
            **record,
            "epsilon": self.epsilon,
            "sound_epsilon": self.epsilon,
            "target_epsilon": self.target_epsilon,
            "search": search,
            "statements": [*record["statements"], self.statement],
        }

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object from which a reviewer can recompute epsilon: it depends on no draw."""
        return {
            "distribution": self.search.distribution,
            "mean": self.search.mean,
            "shape": self.search.shape if self.search.distribution == "negative_binomial" else None,
            "settings": len(self.plans),
            "target_epsilon": self.target_epsilon,
            "epsilon": self.epsilon,
            "epsilon_of_run": self.epsilon_of_run,
            "runs": [list(map(to_record, run)) for run in dict.fromkeys(tuple(plan.events) for plan in self.plans)],
        }


def search_statement(search: Mapping[str, Any]) -> str:
    """What epsilon means for the best run of a search, given the search's JSON form."""
    law = Search(search["mean"], search["distribution"], search["shape"] or 0.0).law
    return (
        f"This run is the best on validation of {law} over {search['settings']} settings, and epsilon covers the "
        f"choice: alone a run costs {search['epsilon_of_run']:.4g}. It holds while nothing else of the search leaves, "
        "not even the number of runs. It does not cover the validation rows."
    )


def recount(ledger: Mapping[str, Any]) -> float:
    """Return the epsilon of a search from the JSON form of its best run's ledger, which holds that of its plan.

    Raises:
        ValueError, KeyError: not such a ledger; or the search is not one that could have made the run.
    """
    record = ledger["search"]
    if _counted(ledger["planned"]) not in list(map(_counted, record["runs"])):
        raise ValueError("the search that it describes cannot have made this run.")
    search = Search(record["mean"], record["distribution"], record["shape"] or 0.0)
    return search.epsilon([[from_record(event) for event in run] for run in record["runs"]], ledger["delta"])


def _counted(records: Sequence[Mapping[str, Any]]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for event in map(from_record, records):
        counts[replace(event, count=1)] += event.count
    return counts


def plan_search(
    search: Search, settings: Sequence[Callable[..., PrivacyPlan]], *, epsilon: float, delta: float | None = None
) -> SearchPlan:
    """Calibrate the noise of a run so that the whole search meets (epsilon, delta).

    Args:
        search: the law of the number of runs.
        settings: for each setting of the grid, :func:`dpfest.plan` with all of its arguments but epsilon and delta, as
            ``functools.partial(dpfest.plan, dpfest.DPSGD(), examples=..., batch_size=..., epochs=...)``.
        epsilon: target of the whole search.
        delta: target of the whole search; None for 1 / N.

    Formal guarantee: :func:`select_best` under the plan is (epsilon, delta)-DP.

    Raises:
        UserError: no noise meets the target; or the settings have no common guarantee.
    """
    if not isinstance(settings, Sequence) or not all(map(callable, settings)):
        raise UserError(
            f"settings={settings!r} must be a list with a functools.partial(dpfest.plan, ...), or another function of "
            "epsilon and delta that returns a plan, for each setting of the grid."
        )
    if not (isinstance(epsilon, Real) and 0 < epsilon < math.inf):
        raise UserError(f"epsilon={epsilon!r}, the target of the whole search, must be a number greater than 0.")
    first = _calibrated(search, settings[:1], epsilon, delta, epsilon / 3)  # quick, and nearly right for all
    return _calibrated(search, settings, epsilon, delta, first.epsilon_of_run) if len(settings) > 1 else first


def _calibrated(
    search: Search, settings: Sequence[Callable[..., PrivacyPlan]], epsilon: float, delta: float | None, of_run: float
) -> SearchPlan:
    """Find the epsilon of a run at which the search costs ``epsilon``, or slightly less."""
    best, low, high = None, 0.0, epsilon
    while best is None or (best.epsilon < epsilon * (1 - _TOLERANCE) and high - low > 1e-4 * high):
        if of_run < LEAST_EPSILON:
            raise UserError(
                f"epsilon={epsilon:g} leaves a run of the search less than {LEAST_EPSILON:g}: raise it, or "
                f"search less (mean={search.mean:g})."
            )
        found = SearchPlan(search, tuple(make(epsilon=of_run, delta=delta) for make in settings), epsilon)
        if found.epsilon <= epsilon:
            best, low = found, of_run
        else:
            high = of_run
        # A search costs nearly in proportion to what a run may cost.
        of_run *= epsilon * (1 - _TOLERANCE / 2) / found.epsilon if 0 < found.epsilon < math.inf else 0.0
        if not low < of_run < high:
            of_run = (low + high) / 2
    return best


class Best(NamedTuple):
    """What a search releases: the best run's plan, its score, whatever else it returned, and the plan of the search.

    The plan's own epsilon, and that of the run's ledger, leave out the choice: quote :attr:`epsilon`.
    """

    plan: PrivacyPlan
    score: float
    result: Any
    search: SearchPlan

    @property
    def epsilon(self) -> float:
        """Epsilon of the release, at the search's delta."""
        return self.search.epsilon

    def ledger(self, run: Ledger | Mapping[str, Any]) -> dict[str, Any]:
        """Return the ledger to publish, from that of the run; see :meth:`SearchPlan.ledger`."""
        return self.search.ledger(run)


def select_best(
    run: Callable[[PrivacyPlan, NoiseKey], tuple[float, Any]],
    planned: SearchPlan,
    *,
    key: NoiseKey | None = None,
    noise_seed: int | None = None,
) -> Best | None:
    """Make the runs of a private search, and return the best one.

    Args:
        run: ``run(plan, key)`` trains by one of the plans and returns (score, result); the highest score is the best,
            and NaN, as of weights that diverged, the worst. All of its random numbers come from ``key``
            (:func:`dpfest.make_private` takes both), and it keeps nothing of earlier calls. The score depends on what
            the run releases under its plan and on data that epsilon does not cover. It must not catch an error that a
            training example can cause and return a score instead.
        planned: from :func:`plan_search`.
        key: secret, from ``NoiseKey.fresh()``. Whoever keeps it can repeat a call that was cut off or failed: the same
            runs are drawn, with the same noise as long as plan, model, initial weights, loss and data are the same
            (:func:`dpfest.make_private` draws other noise for others). None for a fresh one, which nobody keeps: a
            second call after a failure is then a second search, and both have to be paid for.
        noise_seed: in place of a key; a number makes the search reproducible, on public data.

    Returns:
        The best run, of equals the first; None if the search makes none, as a Poisson number of runs may be 0.

    Formal guarantee: the result is ``(planned.epsilon, planned.delta)``-DP, provided that nothing else of the search
    leaves: no other run, no log, no error, neither the number of runs nor the time that they took.

    Raises:
        UserError: the search costs more than its target; the key or seed does not fit the plans; or a run returned no
            score.
    """
    if not isinstance(planned, SearchPlan):
        raise UserError(f"planned must be what dpfest.plan_search(...) returns, not {_kind(planned)}.")
    if not planned.epsilon <= planned.target_epsilon:
        raise UserError(
            f"The search would cost epsilon {planned.epsilon:.6g}, past its target {planned.target_epsilon:.6g}: plan "
            "it with dpfest.plan_search(...)."
        )
    if key is not None and noise_seed is not None:
        raise UserError("Give select_best a key= or a noise_seed=, not both.")
    if key is None:
        key = NoiseKey.fresh() if noise_seed is None else NoiseKey.from_seed(noise_seed, "search")
    if planned.plans[0].fixed_noise_seed != key.fixed:
        raise UserError(
            "noise_seed= (or a key of NoiseKey.from_seed) and the plans' fixed_noise_seed= go together, so that the "
            "ledger says so."
        )
    key = planned.key_of(key)
    best: Best | None = None
    for number, setting in enumerate(planned.draws(key)):
        plan = planned.plans[setting]
        score, result = _scored(run(plan, key.derive("run", number)))
        if best is None or score > best.score:
            best = Best(plan, score, result, planned)
    return best


def _scored(returned: Any) -> tuple[float, Any]:
    """Return the score and the result of a run; of NaN, the worst score."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise UserError(f"run(plan, key) returned {_kind(returned)}: it must return a pair, (score, result).")
    score, result = returned
    try:
        value = float("" if isinstance(score, str | bytes) else score)  # "0.5" is no number
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"run(plan, key) returned {_kind(score)} as its score: it must be a number.") from error
    return (-math.inf if math.isnan(value) else value), result


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
