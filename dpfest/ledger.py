"""The ledger of a run: what was spent, what it adds up to, and the refusal to spend past the target.

A planned run is verified once, before it starts; each step then only counts against the plan. Whatever the
plan does not cover is accounted in full before it may happen. The JSON form holds every event with its
parameters, so that a reviewer can recount it with `dp_accounting` alone (exponential selection with
`dpfest.dominating_pair`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dpfest import accounting
from dpfest.accounting import Event, PureEvent
from dpfest.errors import UserError
from dpfest.privacy import FIDELITIES

if TYPE_CHECKING:
    from dpfest.budget import Budget

_OUTSIDE = (
    "The number of examples is public, and so is every setting.",
    "Outside the guarantee: the search for hyper-parameters, vocabularies and normalisation taken from the "
    "data, evaluation on other splits, floating-point effects of the noise, and pseudo-random generators that are not "
    "cryptographic.",
    "Not part of the release: checkpoints, raw histograms, training losses and other diagnostics.",
)


class BudgetExceeded(UserError):
    """The spending asked for would pass the target; it has not happened."""


class Ledger:
    """Counts events against a target.

    Formal guarantee: as long as every access to the training data is preceded by the `spend` of an event that
    dominates it, everything released is (target_epsilon, delta)-DP for one example more or less: `spend`
    raises before the composition of all events (adaptive: Zhu, Dong and Wang 2022, Theorem 10) passes the
    target. Under fidelity `paper` the epsilon that is held to the target is the paper's claim, not a proven
    one.

    Args:
      target_epsilon: positive, or None for training without privacy, which spends nothing.
      delta: in (0, 1).
      fidelity: `rigorous` (Poisson batches, sound costs) or `paper` (fixed-size shuffled batches counted as
        if Poisson; a selection's claimed epsilon added).
      steps_per_epoch: steps between two visits to an example, of `paper`: for the bound without
        amplification.
      fixed_noise_seed: the noise and the batches come from a seed that the user set.
    """

    def __init__(
        self,
        *,
        target_epsilon: float | None,
        delta: float,
        fidelity: str = "rigorous",
        steps_per_epoch: int | None = None,
        fixed_noise_seed: bool = False,
    ) -> None:
        if fidelity not in FIDELITIES:
            raise UserError(f"privacy.fidelity={fidelity} is not one of {', '.join(FIDELITIES)}.")
        if fidelity == "paper" and not steps_per_epoch:
            raise ValueError("fidelity paper needs steps_per_epoch, at least 1")
        self.target_epsilon = target_epsilon
        self.delta = delta
        self.fidelity = fidelity
        self.steps_per_epoch = steps_per_epoch
        self.fixed_noise_seed = fixed_noise_seed
        self.step: Event | None = None
        self.selection: Event | None = None
        # Keys are events of count 1.
        self._spent: Counter[Event] = Counter()
        self._verified: Counter[Event] = Counter()

    @classmethod
    def of(cls, budget: Budget) -> Ledger:
        """The ledger of a planned run: its plan verified, its row selection spent, its steps still to spend.

        Raises:
          BudgetExceeded: the plan passes the target.
        """
        ledger = cls(
            target_epsilon=budget.target_epsilon,
            delta=budget.delta,
            fidelity=budget.fidelity,
            steps_per_epoch=budget.steps_per_epoch,
            fixed_noise_seed=budget.fixed_noise_seed,
        )
        ledger.plan(budget.events)
        ledger.step = budget.step
        if budget.selection is not None:
            ledger.selection = budget.selection
            ledger.spend(budget.selection)
        return ledger

    @property
    def sampling(self) -> str:
        """`poisson` or `shuffled`."""
        return FIDELITIES[self.fidelity]

    @property
    def events(self) -> list[Event]:
        """What was spent, equal events merged, in the order of their first spending."""
        return _merged(self._spent)

    def plan(self, events: Iterable[Event]) -> None:
        """Verify, once, that all of these (with what is spent already) stay within the target.

        Raises:
          BudgetExceeded: they do not.
        """
        planned = self._spent + _counted(events)
        self._refuse_past_target(planned)
        self._verified = planned

    def spend(self, event: Event) -> None:
        """Record one more event; call it before the data is touched.

        Raises:
          BudgetExceeded: it would pass the target. Nothing is recorded then.
        """
        spent = self._spent + _counted([event])
        if not spent <= self._verified:
            try:
                both = spent | self._verified
                self._refuse_past_target(both)
                self._verified = both
            except BudgetExceeded:
                # The rest of the plan no longer fits; this event may.
                self._refuse_past_target(spent)
                self._verified = spent
        self._spent = spent

    def spend_step(self, steps: int = 1) -> None:
        """Record training steps of the planned kind; free without privacy.

        Raises:
          BudgetExceeded: they would pass the target.
        """
        if self.step is not None and steps:
            self.spend(replace(self.step, count=steps))

    def epsilon(self) -> float:
        """Epsilon at `delta` of what was spent, as the fidelity counts it."""
        return self._cost(self._spent)

    def sound_epsilon(self) -> float:
        """Epsilon at `delta` of what was spent, claiming nothing unproven.

        Under `rigorous` it is `epsilon()`. Under `paper` fixed-size batches get no amplification (neighbours:
        one example present or zeroed out) and a selection its true cost.
        """
        events = self.events
        if self.steps_per_epoch and self.fidelity == "paper":
            events = accounting.without_amplification(events, self.steps_per_epoch)
        return accounting.epsilon(events, self.delta)

    def words(self) -> str:
        """Epsilon so far with its fidelity, sampling and delta, quickly: an upper bound within 1%."""
        if self.target_epsilon is None:
            return "no privacy"
        bound = min(self._cost(self._spent, accounting.COARSE_INTERVAL), self.target_epsilon)
        setting = f"{self.fidelity}, {self.sampling}, delta {self.delta:.2g}"
        return f"epsilon {bound:.3f} of {self.target_epsilon:g} ({setting})"

    def summary(self) -> dict[str, Any] | None:
        """What a run's summary says of its privacy: enough to count epsilon again. None without privacy."""
        if self.target_epsilon is None:
            return None
        step = accounting.to_record(self.step) if self.step else {}
        return {
            "epsilon": self.epsilon(),
            "sound_epsilon": _finite(self.sound_epsilon()),
            "delta": self.delta,
            "fidelity": self.fidelity,
            "sampling": self.sampling,
            "noise_multiplier": step.get("noise_multiplier"),
            "map_noise_multiplier": step.get("map_noise_multiplier"),
            "gradient_noise_multiplier": step.get("gradient_noise_multiplier", step.get("noise_multiplier")),
            "step": step or None,
            "selection": accounting.to_record(self.selection) if self.selection else None,
            "periods": None,
        }

    def statements(self) -> list[str]:
        """What epsilon here means, and what it does not cover, in full sentences."""
        if self.target_epsilon is None:
            return ["Trained without privacy: nothing is guaranteed."]
        said = [
            f"Epsilon is at delta {self.delta:.4g}, for data sets that differ in one example more or less.",
        ]
        if self.fidelity == "rigorous":
            said.append("Each batch is a Poisson sample, and is accounted as one.")
        else:
            said.append(
                "Batches are of fixed size from a shuffled set and are accounted as if they were Poisson "
                "samples, as the paper does: epsilon is the paper's claim. sound_epsilon claims no "
                "amplification, for neighbours that differ in one example that is present or zeroed out."
            )
        if any(isinstance(event, PureEvent) and event.claimed_epsilon for event in self._spent):
            counted = "claim" if self.fidelity == "paper" else "true cost"
            said.append(
                "One-shot Gumbel selection of k rows costs k draws, and the paper claims one draw's epsilon; "
                f"epsilon counts the {counted}."
            )
        if self.fixed_noise_seed:
            said.append(
                "Noise and batches follow a fixed privacy.noise_seed: epsilon holds only while noise_seed "
                "stays secret, and for one version of the data."
            )
        return [*said, *_OUTSIDE]

    def to_json(self) -> dict[str, Any]:
        """The whole ledger as a JSON object."""
        return {
            "schema": 1,
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "epsilon": None if self.target_epsilon is None else self.epsilon(),
            "sound_epsilon": None if self.target_epsilon is None else _finite(self.sound_epsilon()),
            "fidelity": self.fidelity,
            "sampling": self.sampling,
            "neighbours": "add or remove one example",
            "accountant": f"dp_accounting {version('dp_accounting')}, pessimistic privacy loss distributions",
            "value_discretization_interval": accounting.INTERVAL,
            "steps_per_epoch": self.steps_per_epoch,
            "fixed_noise_seed": self.fixed_noise_seed,
            "events": [accounting.to_record(event) for event in self.events],
            "planned": [accounting.to_record(event) for event in _merged(self._verified)],
            "statements": self.statements(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Ledger:
        """The ledger of `to_json`; its plan is verified anew.

        Raises:
          ValueError, KeyError: not a ledger.
          BudgetExceeded: the record's plan or spending passes its own target.
        """
        ledger = cls(
            target_epsilon=record["target_epsilon"],
            delta=record["delta"],
            fidelity=record["fidelity"],
            steps_per_epoch=record["steps_per_epoch"],
            fixed_noise_seed=record["fixed_noise_seed"],
        )
        spent = _counted(accounting.from_record(event) for event in record["events"])
        planned = _counted(accounting.from_record(event) for event in record["planned"])
        ledger.plan(_merged(spent | planned))
        ledger._spent = spent
        return ledger

    def _cost(self, counts: Counter[Event], interval: float = accounting.INTERVAL) -> float:
        cost = accounting.claimed_epsilon if self.fidelity == "paper" else accounting.epsilon
        return cost(_merged(counts), self.delta, interval)

    def _refuse_past_target(self, proposed: Counter[Event]) -> None:
        if self.target_epsilon is None:
            if proposed:
                raise BudgetExceeded("A run without privacy has no budget to spend: set a target epsilon.")
            return
        cost = self._cost(proposed)
        if cost > self.target_epsilon:
            added = ", ".join(f"{event.count} x {event.what}" for event in _merged(proposed - self._spent))
            raise BudgetExceeded(
                f"Refused: {added} would bring epsilon from {self.epsilon():.6g} to {cost:.6g} at delta "
                f"{self.delta:.4g}, past the target privacy.epsilon={self.target_epsilon:.6g}. Train for "
                "fewer steps, or start a new run with a larger privacy.epsilon."
            )


def _counted(events: Iterable[Event]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for event in events:
        counts[replace(event, count=1)] += event.count
    return counts


def _merged(counts: Counter[Event]) -> list[Event]:
    return [replace(event, count=count) for event, count in counts.items()]


def _finite(epsilon: float) -> float | None:
    """JSON has no word for infinity."""
    return epsilon if math.isfinite(epsilon) else None
