"""What a one-run audit attacks: a claim about a whole training, and one run of it.

Claims: every example in every step, Poisson batches, lazy noise, a stream whose days are periods, rows selected before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfest.accounting.accountant import Event
from dpfest.algorithms.algorithm import Algorithm
from dpfest.noise.key import NoiseKey
from dpfest.planning.plan import plan
from dpfest.planning.privacy_plan import PrivacyPlan
from pipelines.audit.attack import Law
from pipelines.audit.canaries import ORDINARY, ORDINARY_ROWS, Examples, Observed, Run
from pipelines.audit.correlated import law_of


@dataclass(frozen=True)
class Training:
    """A claim about a whole training.

    Attributes:
        name: name in results.
        rate: q, of each period.
        canaries: number in each period.
        stream: whether periods are days of a stream.
    """

    name: str
    algorithm: Algorithm
    epsilon: float
    delta: float
    steps: int
    rate: float
    canaries: tuple[int, ...]
    stream: bool = False

    def plan(self, algorithm: Algorithm | None = None, copies: int = 1) -> PrivacyPlan:
        """Return the plan of the training, or of another algorithm, or of several examples for each canary."""
        algorithm = algorithm or self.algorithm
        sizes = [copies * canaries + ORDINARY for canaries in self.canaries]
        return plan(
            algorithm,
            epsilon=self.epsilon,
            delta=self.delta,
            examples=sizes if self.stream else sizes[0],
            batch_size=round(self.rate * sizes[0]),
            steps=self.steps,
            period=1 if self.stream else None,
            features=[self.rows] if algorithm.selection else None,
            fixed_noise_seed=True,
        )

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return 1 + sum(self.canaries) + ORDINARY_ROWS


@dataclass(frozen=True)
class Attempt:
    """One run to attack.

    Attributes:
        claimed: what the run is said to spend.
        law: what the attacker takes the mechanism for.
        observe: runs it, and returns what left, and which canaries were included.
    """

    claimed: Sequence[Event]
    law: Law
    observe: Callable[[NoiseKey], tuple[Observed, NDArray[np.bool_]]]


def attempt(
    training: Training,
    made: PrivacyPlan | None = None,
    *,
    claimed: Sequence[Event] | None = None,
    law: Law | None = None,
    copies: int = 1,
    run: type[Run] = Run,
    **how: Any,
) -> Attempt:
    """Return one run of a training to attack: by default, of the training as it is.

    Args:
        training: what is claimed.
        made: the plan that is run; None for the training's own.
        claimed: what the run is said to spend; None for what the plan does.
        law: what the attacker takes the mechanism for; None for the plan's.
        copies: examples of each canary.
        run: the run.
        how: its further settings.
    """
    planned = made or training.plan(copies=copies)

    def observe(key: NoiseKey) -> tuple[Observed, NDArray[np.bool_]]:
        examples = Examples(training.canaries, key.derive("audit examples"), copies)
        return run(planned, examples, key, **how).observed(), examples.present

    return Attempt(claimed or planned.events, law or law_of(planned, training.canaries), observe)
