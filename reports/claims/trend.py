"""Tests of "rises with" step by step, since a straight line would hide a fall.

A utility rises if the last value is shown to exceed the first, and every step is shown to fall by less than half of
that gain and by less than NEARLY. It does not rise if the step (or the whole change) that seems smallest on the
choosing seeds is shown to fall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from reports.claims.estimate import NEARLY, Difference, Sample, Verdict, decide, student
from reports.claims.logic import Above, All, Contrast, equivalent, verdict
from reports.comparison import Setting

SCATTER = 0.004
"""A typical standard deviation of a utility over retraining, to estimate how many seeds an effect needs."""

Line = Mapping[float, Setting]
"""Settings by the value that changes; everything else is the same."""


@dataclass(frozen=True)
class Trend:
    """Changes between a line's neighbouring values, and from its first to its last, each a mean over parallel lines.

    Attributes:
        of: number of settings among which the choosing seeds chose those of the lines; 1 without a choice.
    """

    steps: Mapping[tuple[float, float], Contrast]
    whole: Contrast
    of: int

    @property
    def verdict(self) -> Verdict:
        """Verdict on the claim that the utility rises."""
        falls = All(list(map(Above, self._changes))).p_not(self.of, self.of > 1)
        small = [
            part for step in self.steps.values() for part in (Above(step, -NEARLY), Above(_sum(step, self.whole, 0.5)))
        ]
        return decide(All([Above(self.whole), *small]).p(self.of, self.of > 1), falls)

    @property
    def unmoved(self) -> Verdict:
        """Verdict on the claim that all values are equally good."""
        same = All(list(map(equivalent, self._changes)))
        return verdict(same, self.of > 1, self.of)

    @cached_property
    def _changes(self) -> list[Contrast]:
        """The whole change and the steps, which are the same if there is one step."""
        return [self.whole, *(self.steps.values() if len(self.steps) > 1 else ())]

    @property
    def moved(self) -> Difference:
        """Change from the first value to the last."""
        return self.whole.at(self.of, self.of > 1)

    @property
    def lowest(self) -> tuple[float, float, Difference]:
        """Step that rises least or falls most, over all seeds."""
        (low, high), step = min(self.steps.items(), key=lambda item: (item[1].value, item[0]))
        return low, high, step.at(self.of, self.of > 1)


def trend(sample: Sample, lines: Sequence[Line], of: int = 1) -> Trend | None:
    """Return the trend of parallel lines in a sample, of settings chosen among `of`; None if no line has two values."""
    lines = [line for line in lines if len(line) > 1]
    if not lines:
        return None
    pairs: dict[tuple[float, float], list[tuple[Setting, Setting]]] = {}
    for line in lines:
        for low, high in pairwise(sorted(line)):
            pairs.setdefault((low, high), []).append((line[low], line[high]))
    steps = {of_step: mean_gain(sample, both) for of_step, both in sorted(pairs.items())}
    return Trend(steps, mean_gain(sample, [(line[min(line)], line[max(line)]) for line in lines]), of)


def mean_gain(sample: Sample, pairs: Sequence[tuple[Setting, Setting]]) -> Contrast:
    """Return the mean gain of the second of each pair over the first."""
    share = 1 / len(pairs)
    return Contrast(sample, [weight for one, other in pairs for weight in ((-share, one), (share, other))])


def _sum(one: Contrast, other: Contrast, factor: float) -> Contrast:
    """Return the sum of a contrast and another one times a factor."""
    return Contrast(one.sample, [*one.weights, *((factor * weight, s) for weight, s in other.weights)])


def seeds_needed(effect: float, scatter: float = SCATTER) -> int:
    """Return the confirming seeds per setting at which 95% bounds exclude zero with a power of 80% if two settings
    differ by `effect`."""
    return math.ceil(2 * ((student() + 0.842) * scatter / effect) ** 2)
