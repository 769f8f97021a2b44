"""The ledger of a run: what was spent, what it adds up to, and the refusal to spend past the target.

A plan is verified once, before it starts; each step then only counts against it. Whatever the plan does not cover is
accounted in full before it may happen. The JSON form holds every event with its parameters, so that a reviewer can
recount it with `dp_accounting` alone (exponential selection with `dpfest.dominating_pair`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from dpfest import accounting
from dpfest.accounting import Event, from_record, to_record
from dpfest.errors import UserError
from dpfest.fidelity import FIDELITIES


class BudgetExceeded(UserError, RuntimeError):
    """The spending asked for would pass the target; it has not happened."""


class Ledger:
    """Counts events against a target; `PrivacyPlan.ledger` makes one with the plan's.

    Formal guarantee: as long as every access to the training data is preceded by the `spend` of an event that dominates
    it, everything released is (target_epsilon, delta)-DP for one example more or less: `spend` raises before the
    composition of what any one example pays for (see `dpfest.accounting`) passes the target. Under fidelity `paper` the
    epsilon that is held to the target is the paper's claim, not a proven one.

    Args:
        target_epsilon, delta: the target; epsilon None where nothing is private.
        fidelity: how events are counted, a name of `dpfest.fidelity.FIDELITIES`.
        fixed_noise_seed: whether the noise key follows from a seed, which the ledger then says.
        selections: row selections that are planned; spent at once.
        steps: what is planned of each period's steps; spent by `spend_step`.
        run: what the JSON form is to say of the run beside its spending.

    Raises:
        BudgetExceeded: the plan passes the target.
    """

    def __init__(
        self,
        target_epsilon: float | None,
        delta: float,
        *,
        fidelity: str = "rigorous",
        fixed_noise_seed: bool = False,
        selections: Sequence[Event] = (),
        steps: Sequence[Event] = (),
        run: Mapping[str, Any] | None = None,
    ) -> None:
        self.target_epsilon, self.delta = target_epsilon, delta
        self.fidelity, self.fixed_noise_seed = fidelity, fixed_noise_seed
        self._count, self._steps, self._run = FIDELITIES[fidelity], tuple(steps), dict(run or {})
        # Keys are events of count 1.
        self._spent: Counter[Event] = Counter()
        self._verified: Counter[Event] = Counter()
        self.plan([*selections, *steps])
        for event in selections:
            self.spend(event)

    @property
    def events(self) -> list[Event]:
        """What was spent, equal events merged, in the order of their first spending."""
        return _merged(self._spent)

    def plan(self, events: Iterable[Event]) -> None:
        """Verify, once, that all of these (with what is spent already) stay within the target, or BudgetExceeded."""
        planned = self._spent + _counted(events)
        self._refuse_past_target(planned)
        self._verified = planned

    def is_of(self, events: Sequence[Event], target_epsilon: float | None, delta: float) -> bool:
        """Whether it was opened for these events and this target."""
        same = (self.target_epsilon, self.delta) == (target_epsilon, delta)
        return same and _counted(events) <= self._verified

    def spend(self, event: Event) -> None:
        """Record one more event, before the data is touched.

        Raises:
            BudgetExceeded: it would pass the target. Nothing is recorded then.
        """
        spent = self._spent + _counted([event])
        if not spent <= self._verified:
            whole = spent | self._verified
            try:
                self._refuse_past_target(whole)
            except BudgetExceeded:
                whole = spent  # the rest of the plan no longer fits; this event may
                self._refuse_past_target(whole)
            self._verified = whole
        self._spent = spent

    def spend_step(self, period: int = 0, steps: int = 1) -> None:
        """`spend` so many steps of a period of the plan (from 0); free without privacy."""
        if self.target_epsilon is not None and steps:
            self.spend(replace(self._steps[period], count=steps))

    def epsilon(self, delta: float | None = None) -> float:
        """Epsilon at `delta` (None for the target's) of what was spent, as the fidelity counts it."""
        return self._count.cost(self.events, self.delta if delta is None else delta)

    def sound_epsilon(self, delta: float | None = None) -> float:
        """As `epsilon`, but claiming nothing unproven: under `rigorous`, the same."""
        return accounting.epsilon(self._count.sound(self.events), self.delta if delta is None else delta)

    def words(self) -> str:
        """Epsilon so far with its fidelity, sampling and delta, quickly: an upper bound within 1%."""
        if self.target_epsilon is None:
            return "no privacy"
        bound = min(self._count.cost(self.events, self.delta, accounting.COARSE_INTERVAL), self.target_epsilon)
        how = f"{self.fidelity}, {self._count.sampling}, delta {self.delta:.2g}"
        return f"epsilon {bound:.4g} of {self.target_epsilon:g} ({how})"

    def statements(self) -> list[str]:
        """What epsilon here means, and what it does not cover, in full sentences."""
        if self.target_epsilon is None:
            return ["Trained without privacy: nothing is guaranteed."]
        said = {
            f"Epsilon is at delta {self.delta:.4g}, for data sets that differ in one example more or less.": True,
            self._count.statement: True,
            "One-shot Gumbel selection costs as many draws as rows, and the paper claims one draw's epsilon; epsilon "
            f"counts the {self._count.counts_of_gumbel}.": any(event.claimed_epsilon for event in self._spent),
            "Epsilon holds only while the fixed noise_seed stays secret, and for one version of "
            "the data.": self.fixed_noise_seed,
            "What lies outside the guarantee: docs/PRIVACY.md.": True,
        }
        return [sentence for sentence, holds in said.items() if holds]

    def to_json(self) -> dict[str, Any]:
        """The whole ledger as a JSON object: the target, the run, what was spent, and what it adds up to."""
        private, sound = self.target_epsilon is not None, self.sound_epsilon()
        return {
            "schema": 3,
            "run": self._run,
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "fidelity": self.fidelity,
            "sampling": self._count.sampling,
            "fixed_noise_seed": self.fixed_noise_seed,
            "epsilon": self.epsilon() if private else None,
            "sound_epsilon": sound if private and math.isfinite(sound) else None,  # JSON has no word for infinity
            "neighbours": "add or remove one example",
            "accountant": f"dp_accounting {version('dp_accounting')}, pessimistic privacy loss distributions",
            "value_discretization_interval": accounting.INTERVAL,
            "events": [to_record(event) for event in self.events],
            "planned": [to_record(event) for event in _merged(self._verified)],
            "statements": self.statements(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Ledger:
        """The ledger of `to_json`, for a reviewer; its plan is verified anew.

        Raises:
            ValueError, KeyError: not a ledger.
            BudgetExceeded: the record's plan or spending passes its own target.
        """
        settings = {name: record[name] for name in ("target_epsilon", "delta", "fidelity", "fixed_noise_seed", "run")}
        ledger = cls(**settings)
        ledger.plan(map(from_record, record["planned"]))
        for event in map(from_record, record["events"]):
            ledger.spend(event)
        return ledger

    def _refuse_past_target(self, proposed: Counter[Event]) -> None:
        target = self.target_epsilon
        if target is None and proposed:
            raise BudgetExceeded("A run without privacy has no budget to spend: set a target epsilon.")
        cost = self._count.cost(_merged(proposed), self.delta)
        if target is not None and not cost <= target:
            added = ", ".join(map(str, _merged(proposed - self._spent)))
            raise BudgetExceeded(
                f"Refused: {added} would bring epsilon from {self.epsilon():.6g} to {cost:.6g} at delta "
                f"{self.delta:.4g}, past the target epsilon={target:.6g}. Train for fewer steps, or start a new run "
                "with a larger epsilon."
            )


def _counted(events: Iterable[Event]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for event in events:
        counts[replace(event, count=1)] += event.count
    return counts


def _merged(counts: Counter[Event]) -> list[Event]:
    return [replace(event, count=count) for event, count in counts.items()]
