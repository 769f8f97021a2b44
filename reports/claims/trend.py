"""Tests of "rises with": steps from one value to the next, where a straight line would hide a fall.

It rises where the last value is shown to be above the first and no step between to fall by as much as counts
(NEARLY). It does not where the step, or the whole, that seems the least on the seeds that choose is shown to fall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from reports.claims.estimate import FAILS, HOLDS, NEARLY, OPEN, Difference, Sample
from reports.claims.logic import Above, All, Contrast, equivalent, verdict
from reports.comparison import Setting

SCATTER = 0.004
"""A typical standard deviation of a utility over retrainings, for saying how many seeds an effect needs."""

Line = Mapping[float, Setting]
"""Settings by the value that rises; all else is the same."""


@dataclass(frozen=True)
class Trend:
    """Steps between neighbouring values, and from the first to the last; each the mean over parallel lines.

    Attributes:
        of: the number of settings that those of the lines were chosen among, on the seeds that choose; 1 of none.
    """

    steps: Mapping[tuple[float, float], Contrast]
    whole: Contrast
    of: int

    @property
    def verdict(self) -> str:
        """Of the claim that it rises."""
        steps = self.steps.values()
        falls = All([Above(self.whole), *map(Above, steps)]).fails(self.of, self.of > 1)
        rises = All([Above(self.whole), *(Above(step, -NEARLY) for step in steps)]).holds(self.of, self.of > 1)
        return FAILS if falls else HOLDS if rises else OPEN

    @property
    def unmoved(self) -> str:
        """The verdict on the claim that all values are as good as each other."""
        same = All([equivalent(self.whole), *map(equivalent, self.steps.values())])
        return verdict(same, self.of > 1, self.of)

    @property
    def moved(self) -> Difference:
        """From the first to the last."""
        return self.whole.at(self.of, self.of > 1)

    @property
    def lowest(self) -> tuple[float, float, Difference]:
        """The step that rises least or falls most, over all seeds."""
        (low, high), step = min(self.steps.items(), key=lambda item: (item[1].value, item[0]))
        return low, high, step.at(self.of, self.of > 1)


def trend(sample: Sample, lines: Sequence[Line], of: int = 1) -> Trend | None:
    """The trend of parallel lines in a sample, of settings that were chosen among `of`; None of none with two
    values."""
    lines = [line for line in lines if len(line) > 1]
    if not lines:
        return None
    values = sorted({value for line in lines for value in line})
    steps = {}
    for low, high in pairwise(values):
        both = [(line[low], line[high]) for line in lines if low in line and high in line]
        if both:
            steps[low, high] = mean_gain(sample, both)
    return Trend(steps, mean_gain(sample, [(line[min(line)], line[max(line)]) for line in lines]), of)


def mean_gain(sample: Sample, pairs: Sequence[tuple[Setting, Setting]]) -> Contrast:
    """The mean gain of the second of each pair over the first."""
    share = 1 / len(pairs)
    return Contrast(sample, [weight for one, other in pairs for weight in ((-share, one), (share, other))])


def seeds_needed(effect: float, scatter: float = SCATTER) -> int:
    """The seeds a setting at which 95% bounds on a difference of two settings come to exclude zero with a power of 80%,
    where the difference is `effect`."""
    return math.ceil(2 * ((1.645 + 0.842) * scatter / effect) ** 2)
