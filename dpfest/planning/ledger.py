"""Privacy ledger: what a run has spent, the resulting epsilon, and the refusal to exceed the target.

A plan is verified once, before it starts; each step then only counts against it. Anything outside the plan is accounted
for in full before it may happen. The JSON form holds every event with its parameters, so that a reviewer can recompute
epsilon with ``dp_accounting`` alone (exponential selection with ``dpfest.accounting.dominating_pair``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event, from_record, to_record
from dpfest.errors import UserError
from dpfest.noise.key import AES, CHACHA
from dpfest.planning.fidelity import FIDELITIES, SAMPLERS, sampling_of

EXAMPLE = "example"
"""The unit of privacy unless a plan names another."""
_NEIGHBOURS = "add or remove one "


class BudgetExceeded(UserError, RuntimeError):
    """The requested spending would exceed the target; it has not happened."""


class Ledger:
    """Counts events against a target; ``PrivacyPlan.ledger`` creates one with the plan's events.

    Formal guarantee: if everything that is released of training data follows the ``spend`` of an event that dominates
    it, all of it is (target_epsilon, delta)-DP under add-or-remove-one adjacency: ``spend`` raises before the
    composition of what any one example pays for (see ``dpfest.accounting.accountant``) exceeds the target. Under
    fidelity ``paper`` the epsilon compared with the target is the paper's claim, not a proven one.

    Args:
        target_epsilon: of the target; None if nothing is private.
        delta: of the target.
        fidelity: how events are counted, a name in ``dpfest.planning.fidelity.FIDELITIES``.
        sampling: how batches are drawn, a name in ``dpfest.planning.fidelity.SAMPLERS``; None for the fidelity's own.
            Events that are accounted for another sampler are refused.
        fixed_noise_seed: whether the noise key derives from a seed, which the ledger then states.
        selections: planned row selections; spent at once.
        steps: planned steps, one event per period; spent by ``spend_step``.
        run: further entries that describe the run in the JSON form.
        unit: what neighbouring data sets differ in.

    Attributes:
        cipher: of the run's key; a record that names none is under AES.

    Raises:
        BudgetExceeded: the plan exceeds the target.
    """

    def __init__(
        self,
        target_epsilon: float | None,
        delta: float,
        *,
        fidelity: str = "rigorous",
        sampling: str | None = None,
        fixed_noise_seed: bool = False,
        selections: Sequence[Event] = (),
        steps: Sequence[Event] = (),
        run: Mapping[str, Any] | None = None,
        unit: str = EXAMPLE,
    ) -> None:
        self.unit, self.cipher = unit, AES
        self.target_epsilon, self.delta = target_epsilon, delta
        self.fidelity, self.fixed_noise_seed = fidelity, fixed_noise_seed
        self.sampling = sampling_of(fidelity, sampling)
        self._count, self._steps, self._run = FIDELITIES[fidelity], tuple(steps), dict(run or {})
        # Keys are events of count 1.
        self._spent: Counter[Event] = Counter()
        self._verified: Counter[Event] = Counter()
        self.plan([*selections, *steps])
        for event in selections:
            self.spend(event)

    @property
    def events(self) -> list[Event]:
        """What was spent, equal events merged, in order of first spending."""
        return _merged(self._spent)

    def plan(self, events: Iterable[Event]) -> None:
        """Verify once that these events and those already spent stay within the target; else raise BudgetExceeded."""
        planned = self._spent + self._counted(events)
        self._refuse_past_target(planned)
        self._verified = planned

    def is_of(self, events: Sequence[Event], target_epsilon: float | None, delta: float) -> bool:
        """Return whether the ledger was opened for these events and this target."""
        same = (self.target_epsilon, self.delta) == (target_epsilon, delta)
        return same and _counted(events) <= self._verified

    def has_spent(self, event: Event | None) -> bool:
        """Return whether such an event was spent."""
        return event is not None and self._spent[replace(event, count=1)] > 0

    def spend(self, event: Event) -> None:
        """Record one more event, before anything that may be released is computed from the data.

        Raises:
            BudgetExceeded: it would exceed the target; nothing is recorded then.
        """
        spent = self._spent + self._counted([event])
        if not spent <= self._verified:
            whole = spent | self._verified
            try:
                self._refuse_past_target(whole)
            except BudgetExceeded:
                whole = spent  # the rest of the plan no longer fits, but this event may
                self._refuse_past_target(whole)
            self._verified = whole
        self._spent = spent

    def spend_step(self, period: int = 0, steps: int = 1) -> None:
        """Spend ``steps`` steps of a period of the plan (from 0); free without privacy."""
        if self.target_epsilon is not None and steps:
            self.spend(replace(self._steps[period], count=steps))

    def epsilon(self, delta: float | None = None) -> float:
        """Return epsilon at ``delta`` (None for the target's) of what was spent, as the fidelity counts it.

        Where what was released decided how much is spent, the guarantee is the target.
        """
        return self._count.cost(self.events, self.delta if delta is None else delta)

    def sound_epsilon(self, delta: float | None = None) -> float:
        """Return ``epsilon`` without any unproven claim; under ``rigorous``, the same number."""
        return accountant.epsilon(self._count.sound(self.events), self.delta if delta is None else delta)

    def summary(self) -> str:
        """Return epsilon so far with its fidelity, sampling and delta; fast, an upper bound within 1%."""
        if self.target_epsilon is None:
            return "no privacy"
        bound = min(self._count.cost(self.events, self.delta, accountant.COARSE_INTERVAL), self.target_epsilon)
        how = f"{self.fidelity}, {self.sampling}, delta {self.delta:.2g}"
        how += "" if self.unit == EXAMPLE else f", add-or-remove-one {self.unit}"
        return f"epsilon {bound:.4g} of {self.target_epsilon:g} ({how})"

    def statements(self) -> list[str]:
        """Return, in full sentences, what epsilon means here and what it does not cover."""
        if self.target_epsilon is None:
            return ["Trained without privacy: nothing is guaranteed."]
        statements = {
            f"Epsilon holds at delta {self.delta:.4g} under add-or-remove-one adjacency of {self._units}, for "
            "neighbours that are trained under this one plan: its rate, steps, noise and delta are public.": True,
            SAMPLERS[self.sampling].statement: True,
            "One-shot Gumbel selection costs as many draws as rows, and the paper claims one draw's epsilon; epsilon "
            f"counts the {self._count.counts_of_gumbel}.": any(event.claimed_epsilon for event in self._spent),
            "Epsilon holds only while the fixed noise_seed stays secret, and for one version of "
            "the data.": self.fixed_noise_seed,
            "Random numbers come from ChaCha20 (RFC 8439), in place of AES-256: epsilon holds against everyone who "
            "cannot distinguish its output from random bits.": self.cipher == CHACHA,
            "What lies outside the guarantee: docs/PRIVACY.md.": True,
        }
        return [sentence for sentence, holds in statements.items() if holds]

    @property
    def _units(self) -> str:
        if self.unit == EXAMPLE:
            return "training examples"
        return f"a {self.unit}, which means all training examples of one {self.unit} at once"

    def to_json(self) -> dict[str, Any]:
        """Return the whole ledger as a JSON object: the target, the run, what was spent, and the resulting epsilon."""
        private, sound = self.target_epsilon is not None, self.sound_epsilon()
        return {
            "schema": 3,
            "run": self._run,
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "fidelity": self.fidelity,
            "sampling": self.sampling,
            "fixed_noise_seed": self.fixed_noise_seed,
            **({} if self.cipher == AES else {"cipher": self.cipher}),
            "epsilon": self.epsilon() if private else None,
            "sound_epsilon": sound if private and math.isfinite(sound) else None,  # JSON has no word for infinity
            "neighbours": f"{_NEIGHBOURS}{self.unit}",
            "accountant": f"dp_accounting {version('dp_accounting')}, pessimistic privacy loss distributions",
            "value_discretization_interval": accountant.INTERVAL,
            "events": [to_record(event) for event in self.events],
            "planned": [to_record(event) for event in _merged(self._verified)],
            "statements": self.statements(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Ledger:
        """Read the ledger of ``to_json``, for a reviewer; its plan is verified again.

        Raises:
            ValueError, KeyError: not a ledger.
            BudgetExceeded: the record's plan or spending exceeds its own target.
        """
        names = ("target_epsilon", "delta", "fidelity", "sampling", "fixed_noise_seed", "run")
        settings = {name: record[name] for name in names}
        ledger = cls(**settings, unit=record["neighbours"].removeprefix(_NEIGHBOURS))
        ledger.cipher = record.get("cipher", AES)
        ledger.plan(map(from_record, record["planned"]))
        for event in map(from_record, record["events"]):
            ledger.spend(event)
        return ledger

    def _counted(self, events: Iterable[Event]) -> Counter[Event]:
        events = list(events)
        for event in events:
            if event.sampling not in (None, self.sampling):
                raise UserError(
                    f"{event} is accounted for batches sampled as {event.sampling}, and this ledger's are "
                    f"{self.sampling}: neither plan nor accountant covers both."
                )
        return _counted(events)

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
