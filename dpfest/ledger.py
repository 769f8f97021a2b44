"""The ledger of a run: what was spent, what it adds up to, and the refusal to spend past the target.

A plan is verified once, before it starts; each step then only counts against it. Whatever the plan does not cover is
accounted in full before it may happen. The JSON form holds every event with its parameters, so that a reviewer can
recount it with `dp_accounting` alone (exponential selection with `dpfest.dominating_pair`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from importlib.metadata import version
from typing import Any

from dpfest import accounting
from dpfest.accounting import Event, from_record, to_record
from dpfest.budget import Budget
from dpfest.errors import UserError


class BudgetExceeded(UserError):
    """The spending asked for would pass the target; it has not happened."""


class Ledger:
    """Counts events against a budget.

    Formal guarantee: as long as every access to the training data is preceded by the `spend` of an event that dominates
    it, everything released is (target_epsilon, delta)-DP for one example more or less: `spend` raises before the
    composition of what any one example pays for (see `dpfest.accounting`) passes the target. Under fidelity `paper` the
    epsilon that is held to the target is the paper's claim, not a proven one.

    Args:
      budget: the target and the plan. Its row selection is spent at once, and its steps by `spend_step`.
      plan: what is planned instead of `budget.events`, such as the periods of a stream; nothing is spent at once.

    Raises:
      BudgetExceeded: the plan passes the target.
    """

    def __init__(self, budget: Budget, plan: Iterable[Event] | None = None) -> None:
        self.budget, self.delta = budget, budget.delta
        # Keys are events of count 1.
        self._spent: Counter[Event] = Counter()
        self._verified: Counter[Event] = Counter()
        self.plan(budget.events if plan is None else plan)
        if plan is None and budget.selection:
            self.spend(budget.selection)

    @property
    def events(self) -> list[Event]:
        """What was spent, equal events merged, in the order of their first spending."""
        return _merged(self._spent)

    def plan(self, events: Iterable[Event]) -> None:
        """Verify, once, that all of these (with what is spent already) stay within the target, or BudgetExceeded."""
        planned = self._spent + _counted(events)
        self._refuse_past_target(planned)
        self._verified = planned

    def spend(self, event: Event, part: tuple[str, ...] = ()) -> None:
        """Record one more event, on `part` of the examples unless it names its own, before the data is touched.

        Raises:
          BudgetExceeded: it would pass the target. Nothing is recorded then.
        """
        spent = self._spent + _counted([replace(event, part=event.part or part)])
        if not spent <= self._verified:
            whole = spent | self._verified
            try:
                self._refuse_past_target(whole)
            except BudgetExceeded:
                whole = spent  # the rest of the plan no longer fits; this event may
                self._refuse_past_target(whole)
            self._verified = whole
        self._spent = spent

    def spend_step(self, steps: int = 1, part: tuple[str, ...] = (), budget: Budget | None = None) -> None:
        """`spend` training steps of the budget's kind (of another's: of a stream's period); free without privacy."""
        step = (budget or self.budget).step
        if step and steps:
            self.spend(replace(step, count=steps), part)

    def epsilon(self, delta: float | None = None) -> float:
        """Epsilon at `delta` (None for the budget's) of what was spent, as the fidelity counts it."""
        return self.budget.cost(self.events, self.delta if delta is None else delta)

    def sound_epsilon(self, delta: float | None = None) -> float:
        """As `epsilon`, but claiming nothing unproven: a selection's true cost, and see `without_amplification`."""
        events = accounting.without_amplification(self.events)
        return accounting.epsilon(events, self.delta if delta is None else delta)

    def words(self) -> str:
        """Epsilon so far with its fidelity, sampling and delta, quickly: an upper bound within 1%."""
        budget, target = self.budget, self.budget.target_epsilon
        if target is None:
            return "no privacy"
        bound = min(budget.cost(self.events, self.delta, accounting.COARSE_INTERVAL), target)
        return f"epsilon {bound:.4g} of {target:g} ({budget.fidelity}, {budget.sampling}, delta {self.delta:.2g})"

    def statements(self) -> list[str]:
        """What epsilon here means, and what it does not cover, in full sentences."""
        if self.budget.target_epsilon is None:
            return ["Trained without privacy: nothing is guaranteed."]
        paper = self.budget.fidelity == "paper"
        said = {
            f"Epsilon is at delta {self.delta:.4g}, for data sets that differ in one example more or less.": True,
            "Each batch is a Poisson sample, and is accounted as one.": not paper,
            "Shuffled batches of a fixed size are accounted as if they were Poisson samples: epsilon is the paper's "
            "claim. sound_epsilon claims no amplification, for one example present or zeroed out.": paper,
            "One-shot Gumbel selection costs as many draws as rows, and the paper claims one draw's epsilon; epsilon "
            f"counts the {'claim' if paper else 'true cost'}.": any(event.claimed_epsilon for event in self._spent),
            "Epsilon holds only while the fixed privacy.noise_seed stays secret, and for one version of "
            "the data.": self.budget.fixed_noise_seed,
            "What lies outside the guarantee: docs/PRIVACY.md.": True,
        }
        return [sentence for sentence, holds in said.items() if holds]

    def to_json(self) -> dict[str, Any]:
        """The whole ledger as a JSON object: the budget, what was spent, and what it adds up to."""
        budget = {field.name: getattr(self.budget, field.name) for field in fields(Budget)}
        private, sound = self.budget.target_epsilon is not None, self.sound_epsilon()
        return {
            "schema": 2,
            **{name: to_record(value) if isinstance(value, Event) else value for name, value in budget.items()},
            "epsilon": self.epsilon() if private else None,
            "sound_epsilon": sound if private and math.isfinite(sound) else None,  # JSON has no word for infinity
            "sampling": self.budget.sampling,
            "neighbours": "add or remove one example",
            "accountant": f"dp_accounting {version('dp_accounting')}, pessimistic privacy loss distributions",
            "value_discretization_interval": accounting.INTERVAL,
            "events": [to_record(event) for event in self.events],
            "planned": [to_record(event) for event in _merged(self._verified)],
            "statements": self.statements(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Ledger:
        """The ledger of `to_json`; its plan is verified anew.

        Raises:
          ValueError, KeyError: not a ledger.
          BudgetExceeded: the record's plan or spending passes its own target.
        """
        settings = {field.name: record[field.name] for field in fields(Budget)}
        read = {name: from_record(settings[name]) for name in ("selection", "step") if settings[name]}
        spent, planned = (_counted(map(from_record, record[name])) for name in ("events", "planned"))
        ledger = cls(Budget(**settings | read), _merged(spent | planned))
        ledger._spent = spent
        return ledger

    def _refuse_past_target(self, proposed: Counter[Event]) -> None:
        target = self.budget.target_epsilon
        if target is None and proposed:
            raise BudgetExceeded("A run without privacy has no budget to spend: set a target epsilon.")
        shuffled = self.budget.fidelity == "paper"
        if shuffled and any(event.sampling_probability < 1 and not event.steps_per_epoch for event in proposed):
            raise ValueError("an event of privacy.fidelity=paper must state its steps_per_epoch, for sound_epsilon")
        cost = self.budget.cost(_merged(proposed), self.delta)
        if target is not None and not cost <= target:
            added = ", ".join(map(str, _merged(proposed - self._spent)))
            raise BudgetExceeded(
                f"Refused: {added} would bring epsilon from {self.epsilon():.6g} to {cost:.6g} at delta "
                f"{self.delta:.4g}, past the target privacy.epsilon={target:.6g}. Train for fewer steps, or start "
                "a new run with a larger privacy.epsilon."
            )


def _counted(events: Iterable[Event]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for event in events:
        counts[replace(event, count=1)] += event.count
    return counts


def _merged(counts: Counter[Event]) -> list[Event]:
    return [replace(event, count=count) for event, count in counts.items()]
