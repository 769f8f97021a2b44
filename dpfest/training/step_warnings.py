"""What a training loop says: weights changed between its steps, tables that no step trains, a step that failed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from dpfest.gradients.parts import Diagnostics, NoisedGradient

_BARREN_STEPS = 10  # consecutive steps without a surviving row before a warning


class StepWarnings:
    """Watches the steps of one training.

    Args:
        weights: the trainable parameters by name.
        trains_tables: whether steps without a row are to be warned of.
    """

    def __init__(self, weights: Mapping[str, Tensor], *, trains_tables: bool) -> None:
        self._weights, self._trains_tables = weights, trains_tables
        self._barren, self._warned = 0, False
        self.accept_weights()

    def accept_weights(self) -> None:
        """Take the weights as they are: the training itself has just changed them."""
        self._versions = {name: weight._version for name, weight in self._weights.items()}

    def before_step(self) -> None:
        """Warn if weights changed since they were accepted."""
        changed = [name for name, weight in self._weights.items() if weight._version != self._versions[name]]
        if changed:
            warnings.warn(
                f"{', '.join(changed[:3])} changed between steps, outside private training. That is sound only if the "
                "change was computed from released weights or public data.",
                stacklevel=3,
            )

    def after_step(self, release: NoisedGradient, private: Diagnostics) -> None:
        """Accept the weights; warn if no example had a finite gradient, or many steps in a row no row of a table.

        Warnings are for the one who trains, and private: they depend on the batch.
        """
        self.accept_weights()
        if private.without_gradient and private.without_gradient >= private.examples and not self._warned:
            self._warned = True
            warnings.warn(
                "No example of this batch has a finite gradient, so each counted as zero: nothing is learnt but noise. "
                "Look for a diverged model (lower the learning rate) or inputs that are not finite.",
                stacklevel=3,
            )
        self._barren = 0 if sum(release.rows_per_table) or not release.tables else self._barren + 1
        if self._barren == _BARREN_STEPS and self._trains_tables:
            warnings.warn(
                f"No embedding row survived {_BARREN_STEPS} steps in a row: the tables are not trained. Lower the "
                "threshold (dpfest.threshold_for gives one), or raise the batch size or epsilon.",
                stacklevel=3,
            )


class Steps(Protocol):
    """How far a training is."""

    steps_done: int

    @property
    def steps_left(self) -> int:
        """Steps that the plan still allows."""


@contextmanager
def paid_for(training: Steps, step: int) -> Iterator[None]:
    """A context in which a step is taken; if it fails before its release, its error says how to go on."""
    try:
        yield
    except BaseException as error:
        if training.steps_done == step:
            error.add_note(
                f"Nothing of step {step} was released, and it is paid for: iterate over the training again to take "
                f"it and what follows, {training.steps_left} steps in all."
            )
        raise
