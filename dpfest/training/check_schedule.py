"""Which steps check that examples do not mix (:mod:`dpfest.training.trial`), and on how many of their examples."""

from __future__ import annotations

from collections.abc import Callable

CHECK_EVERY = 512
"""After the first batch, one step in this many, on average, checks that examples do not mix; a check costs 2 to 10."""
CHECKED_STEPS = frozenset(8**power for power in range(10))
"""Steps (from 0) at which a sample of the batch is checked: examples may begin to mix once weights have moved."""
_SAMPLE = 256  # examples


class CheckSchedule:
    """The checks of a period: of its first batch of two examples or more, of samples, and of drawn steps.

    The first batch of all is checked whole; that of a later period, which another reader may have read, by a sample.

    Args:
        steps: number of steps of the period.
        divides: whether a step's batch has two examples (or units) or more, so that parts of it can be compared.
        is_drawn: whether the key drew a step to be checked.
        after: the schedule of the period before, and the steps that it took.

    Attributes:
        passed: whether a whole batch passed the check.
    """

    def __init__(
        self,
        steps: int,
        divides: Callable[[int], bool],
        is_drawn: Callable[[int], bool],
        after: tuple[CheckSchedule, int] | None = None,
    ) -> None:
        self._steps, self._divides, self._is_drawn = steps, divides, is_drawn
        before, taken = after or (None, 0)
        self.passed: bool = before is not None and before.passed
        self._before: int = taken if before is None else before._before + taken
        self._first: int | None = None

    def resume(self) -> None:
        """Look for the first batch anew, unless one has passed: steps were skipped."""
        if not self.passed:
            self._first = None

    def examples(self, step: int, done: int) -> int | None:
        """Return how many examples of a step's batch to check, None for all; ``done`` steps are taken."""
        if self._is_drawn(step):
            return None
        if self._is_first(step, done):
            return _SAMPLE if self.passed else None
        return _SAMPLE if self._before + step in CHECKED_STEPS else 0

    def _is_first(self, step: int, done: int) -> bool:
        """Whether a step is the period's first that can be checked, however far ahead others are read."""
        if self._first is None:
            self._first = next((one for one in range(done, self._steps) if self._divides(one)), self._steps)
        return step == self._first
