"""The law of a release whose noise is correlated over steps: what the attacker of a whole training takes it for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import logsumexp

from dpfest.accounting.bands import BITS, Strategy, strategy
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.selection.topk import SelectionConfig
from pipelines.audit.attack import Law, Scores


class CorrelatedLaw(Law):
    """The law of :class:`pipelines.audit.attack.Law` under a banded strategy and batches of groups in turn.

    The attacker undoes the filter: ``Y_t = sum_k a_k O_{t-k}`` has independent noise (statement 2.8 of
    docs/PRIVACY.md), and a visit in step t moves Y by ``a_k`` in step t + k. Of each such block he takes the projection
    on ``a``, which is sufficient, and as he does not know a canary's group, the mean likelihood over all groups.

    Args:
        plan: the claim.
        canaries: number of canaries in each period.
        selection: how rows are really selected; None for the plan's.
        real: how noise is really correlated; None for the plan's.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        canaries: Sequence[int],
        selection: SelectionConfig | None = None,
        real: Strategy | None = None,
    ) -> None:
        super().__init__(plan, canaries, selection)
        self._real = real

    def _strategy(self, number: int) -> tuple[NDArray[np.float64], float]:
        """Return a period's coefficients a, and the deviation of the noise that is filtered, in contributions."""
        bands = self._plan.algorithm.bands
        assert bands is not None
        used = self._real or strategy(bands, self._plan.periods[number].steps)
        return np.array(used.coefficients) / (1 << BITS), self._step(number)[1] * used.norm

    def _taken(self, number: int, count: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        bands = len(self._strategy(number)[0])
        turns = np.arange(self._plan.periods[number].steps)[:, None] % bands == generator.integers(bands, size=count)
        return turns & super()._taken(number, count, generator)

    def _noise(self, number: int, shape: tuple[int, int], generator: np.random.Generator) -> NDArray[np.float64]:
        coefficients, deviation = self._strategy(number)
        return lfilter([1.0], coefficients, generator.normal(0, deviation, shape), axis=0)

    def _log_ratio(self, number: int, change: NDArray[np.float64], moved: NDArray[np.bool_]) -> Scores:
        coefficients, deviation = self._strategy(number)
        rate, bands, steps = self._step(number)[0], len(coefficients), len(change)
        # A block that the end cuts off has fewer coefficients.
        lengths = np.cumsum(coefficients**2)[np.minimum(steps - np.arange(steps), bands) - 1][:, None]
        white = lfilter(coefficients, [1.0], change, axis=0)
        projected = lfilter(coefficients, [1.0], white[::-1], axis=0)[::-1] / lengths
        in_batch = (projected - 0.5) * lengths / deviation**2
        with np.errstate(divide="ignore"):  # a group may enter every batch of its own
            ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + in_batch)
        of_group = np.stack([ratio[group::bands].sum(0) for group in range(bands)])
        return logsumexp(of_group, axis=0) - np.log(bands)


def law_of(plan: PrivacyPlan, canaries: Sequence[int], selection: SelectionConfig | None = None) -> Law:
    """Return the law of what a claimed mechanism releases of a canary's row; the arguments of :class:`Law`."""
    kind = Law if plan.algorithm.bands is None else CorrelatedLaw
    return kind(plan, canaries, selection)
