"""The attack of a one-run audit: how much likelier a canary's release is with it than without, and what to guess.

The score of a canary is the logarithm of that ratio under the claimed mechanism, which Neyman and Pearson (1933) show
to be the best test of it: of its row's changes step by step, whether it moved at all, and whether it was selected.  A
bound is valid for any score, so nothing rests on the law assumed here.  Besides, releases of one step that agree on
most rows were made under the same noise, and their difference has none.

:func:`ideal_attack` draws what the claimed mechanism would release, by the law instead of the engine: from it the
number of guesses is chosen before the run is seen, and the bound that this attack reaches against a mechanism that is
exactly as claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.rules import Threshold
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.selection.topk import SelectionConfig
from pipelines.audit.canaries import ORDINARY_ROWS, Observed
from pipelines.audit.family import Family
from pipelines.audit.guesses import CONFIDENCE, Guesses, epsilon_at_delta

Scores = NDArray[np.float64]

_CERTAIN = 1e6
_IDEAL_RUNS = 3
_TIE = 1e-2  # in contributions: what float32 weights lose of a difference
_SHARES = (200, 50)  # of the canaries, one in so many is guessed to be included
_GUESSES = (50, 100, 200, 400, 800, 3200)


@dataclass(frozen=True)
class Attack:
    """How many guesses are made: the canaries of highest score are guessed to be included, those of lowest left out."""

    included: int
    left_out: int = 0

    def guess(self, scores: Scores, present: NDArray[np.bool_]) -> Guesses:
        """Make the guesses, and count the right ones."""
        order = np.argsort(scores, kind="stable")
        right = present[order[len(order) - self.included :]].sum() + (~present[order[: self.left_out]]).sum()
        return Guesses(len(scores), self.included + self.left_out, int(right), self.left_out == 0)


@dataclass(frozen=True)
class Attacks:
    """Attacks made at once, each at a confidence that keeps that of all (Bonferroni).

    One is the best against the claim; few sure guesses, and more of them, find flaws that show on some canaries alone.
    """

    each: tuple[Attack, ...]

    @property
    def confidence(self) -> float:
        """Confidence of each attack."""
        return 1 - (1 - CONFIDENCE) / len(self.each)

    @classmethod
    def with_best(cls, best: Attack, canaries: int) -> Attacks:
        """Return the attacks of an audit."""
        return cls(tuple(dict.fromkeys([best, *(Attack(canaries // share) for share in _SHARES)])))

    def bounds(self, scores: Scores, present: NDArray[np.bool_], family: Family) -> Bounds:
        """Return the largest bounds, and the guesses that give that of the family."""
        made = [attack.guess(scores, present) for attack in self.each]
        refuted = [family.refuted(guesses, self.confidence) for guesses in made]
        best = int(np.argmax(refuted))
        at_delta = max(epsilon_at_delta(guesses, family.delta, self.confidence) for guesses in made)
        return Bounds(refuted[best], at_delta, made[best])


class Bounds(NamedTuple):
    """Lower bounds on epsilon: within a family, and of any mechanism; and the guesses behind the first."""

    family: float
    at_delta: float
    guesses: Guesses


class Law:
    """The law of what a claimed mechanism releases of a canary's row.

    Args:
        plan: the claim.
        canaries: number of canaries in each period.
        selection: how rows are really selected; None for the plan's.
    """

    def __init__(self, plan: PrivacyPlan, canaries: Sequence[int], selection: SelectionConfig | None = None) -> None:
        self._plan, self._canaries, self._algorithm = plan, canaries, plan.algorithm
        self._period = np.repeat(np.arange(len(canaries)), canaries)
        self.selection = selection or plan.algorithm.selection

    def draw(self, generator: np.random.Generator, present: NDArray[np.bool_]) -> Observed:
        """Draw a release, given which canaries are included."""
        changes, moves, periods, steps = [], [], [], []
        selected = None
        if self.selection is not None:
            cut, deviation = self._of_selection()
            selected = present + deviation * generator.normal(size=len(present)) >= cut
        for number, period in enumerate(self._plan.periods):
            own = self._period == number
            taken = self._taken(number, len(present), generator) & (present & own)
            change = taken + self._noise(number, taken.shape, generator)
            moved = self._moves(number, taken, change, generator)
            if selected is not None:
                moved &= selected
            changes.append(np.where(moved, change, 0))
            moves.append(moved)
            periods.append(np.full(period.steps, number))
            steps.append(np.arange(period.steps))
        observed = Observed(
            np.concatenate(changes), np.concatenate(moves), np.concatenate(periods), np.concatenate(steps), selected
        )
        if self._algorithm.lazy:
            total = observed.change.sum(0, keepdims=True)
            return replace(
                observed, change=total, moved=total != 0, period=observed.period[-1:], step=observed.step[-1:],
                steps_in_one=len(observed.change),
            )  # fmt: skip
        return observed

    def scores(self, observed: Observed) -> Scores:
        """Return the log-likelihood ratio of each canary's release, ``[m]``."""
        scores = np.zeros(observed.change.shape[1])
        for number in range(len(self._plan.periods)):
            own, releases = self._period == number, observed.period == number
            change, moved = observed.change[np.ix_(releases, own)], observed.moved[np.ix_(releases, own)]
            # The ratio of a sum of steps grows with it, whatever their number.
            ratio = change.sum(0) if observed.steps_in_one > 1 else self._log_ratio(number, change, moved)
            if observed.selected is not None:
                ratio = np.where(observed.selected[own], ratio, 0)
            scores[own] = ratio
        if observed.selected is not None and self.selection is not None:
            scores += self._log_ratio_of_selection(observed.selected)
        return np.where(_differs_without_noise(observed), _CERTAIN, scores)

    def _step(self, number: int) -> tuple[float, float, float]:
        event = self._plan.step(number)
        assert event is not None and event.gradient_noise_multiplier is not None
        return event.sampling_probability, event.gradient_noise_multiplier, event.map_noise_multiplier or 0.0

    def _passes(self, number: int) -> tuple[float, float]:
        """Return the probabilities that the row passes the map without the canary in the batch, and with it."""
        if not isinstance(self._algorithm, AdaFEST):
            return 1.0, 1.0
        norm, deviation = self._algorithm.contribution_clipping_norm, self._step(number)[2]
        return tuple(  # type: ignore[return-value]
            float(ndtr((count - self._algorithm.threshold) / (deviation * norm))) for count in (0.0, min(1.0, norm))
        )

    def _least_norm(self, sigma: float) -> float:
        """Return the norm that the row must reach to be applied."""
        return -sigma * float(ndtri(self._algorithm.false_rate / 2)) if isinstance(self._algorithm, Threshold) else 0.0

    def _taken(self, number: int, count: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        """Draw which steps' batches a canary would be in, ``[steps, count]``."""
        return generator.random((self._plan.periods[number].steps, count)) < self._step(number)[0]

    def _noise(self, number: int, shape: tuple[int, int], generator: np.random.Generator) -> NDArray[np.float64]:
        """Draw the noise of rows step by step, in contributions."""
        return generator.normal(0, self._step(number)[1], shape)

    def _moves(
        self, number: int, taken: NDArray[np.bool_], change: NDArray[np.float64], generator: np.random.Generator
    ) -> NDArray[np.bool_]:
        without, with_it = self._passes(number)
        passes = generator.random(taken.shape) < np.where(taken, with_it, without)
        return passes & (np.abs(change) >= self._least_norm(self._step(number)[1]))

    def _log_ratio(self, number: int, change: NDArray[np.float64], moved: NDArray[np.bool_]) -> Scores:
        rate, sigma, _ = self._step(number)
        without, with_it = self._passes(number)
        least = self._least_norm(sigma)
        inside = [ndtr((least - shift) / sigma) - ndtr((-least - shift) / sigma) for shift in (0.0, 1.0)]
        stays = [1 - without * (1 - inside[0]), 1 - with_it * (1 - inside[1])]
        of_a_move = (change - 0.5) / sigma**2 + _log(with_it) - _log(without)
        of_a_stay = _log(stays[1]) - _log(stays[0])
        in_batch = np.where(moved, of_a_move, of_a_stay)
        return np.logaddexp(_log(1 - rate), _log(rate) + in_batch).sum(0)

    def _log_ratio_of_selection(self, selected: NDArray[np.bool_]) -> Scores:
        cut, deviation = self._of_selection()
        passes = log_ndtr((1 - cut) / deviation) - log_ndtr(-cut / deviation)
        fails = log_ndtr((cut - 1) / deviation) - log_ndtr(cut / deviation)
        return np.where(selected, passes, fails)

    def _of_selection(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return, for each canary, the noised count that selects a row in its period, and the count's deviation."""
        assert self.selection is not None
        cuts = np.array([self._cut(number) for number in range(len(self._canaries))])
        return cuts[self._period], self.selection.noise_multiplier * np.sqrt(self._period + 1)

    def _cut(self, number: int) -> float:
        """Return the noised count above which as many canaries' rows lie, in expectation, as are selected."""
        assert self.selection is not None
        deviation = self.selection.noise_multiplier * np.sqrt(number + 1)
        ones = sum(self._canaries[: number + 1]) / 2
        zeros, selected = sum(self._canaries) - ones, self.selection.rows - ORDINARY_ROWS

        def excess(cut: float) -> float:
            return float(ones * ndtr((1 - cut) / deviation) + zeros * ndtr(-cut / deviation) - selected)

        return brentq(excess, -10 * deviation, 1 + 10 * deviation)


def _differs_without_noise(observed: Observed) -> NDArray[np.bool_]:
    """Return the canaries whose rows differ between releases that share their noise, ``[m]``."""
    found = np.zeros(observed.change.shape[1], dtype=bool)
    for step in np.unique(observed.step):
        first, *others = np.flatnonzero(observed.step == step)
        for other in others:
            both = observed.moved[first] & observed.moved[other]
            difference = np.abs(observed.change[other] - observed.change[first])
            if both.any() and np.median(difference[both]) < _TIE:
                found |= both & (difference > 0.5)
    return found


def _log(probability: float) -> float:
    return float(np.log(max(probability, 1e-300)))


def ideal_attack(law: Law, family: Family, canaries: int) -> tuple[Attacks, float]:
    """Return the attacks with the best number of guesses against a mechanism that is as claimed, and their bound.

    From draws of the law, none of the run: the median of `_IDEAL_RUNS` runs.
    """
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(_IDEAL_RUNS):
        present = generator.random(canaries) < 0.5
        drawn.append((law.scores(law.draw(generator, present)), present))
    most, best = -1.0, Attack(1)
    for guesses in _GUESSES:
        for attack in (Attack(guesses), Attack(guesses // 2, guesses // 2)):
            if 2 * guesses > canaries:
                continue
            found = sorted((attack.guess(scores, present) for scores, present in drawn), key=lambda made: made.right)
            bound = family.refuted(found[_IDEAL_RUNS // 2], CONFIDENCE)
            if bound > most:
                most, best = bound, attack
    attacks = Attacks.with_best(best, canaries)
    reached = [attacks.bounds(scores, present, family).family for scores, present in drawn]
    return attacks, sorted(reached)[_IDEAL_RUNS // 2]
