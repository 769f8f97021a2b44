"""The mean of a model's weights over the last steps of a period, by which it is evaluated and released."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel


class TailAverage:
    """Replaces weights by their mean after each of a period's last steps (Polyak and Juditsky 1992; over a suffix:
    Rakhlin, Shamir and Sridharan 2012).

    The weights after every step are released, so that their mean is post-processing and costs no privacy. It takes
    time and memory of all rows of the tables in each averaged step.

    Args:
        model: the model in training.
        steps: the period's number of steps.
        share: of these steps, the last that are averaged, at least one; in (0, 1].
    """

    def __init__(self, model: nn.Module, steps: int, share: float) -> None:
        self._model = model
        self._after = steps - math.ceil(steps * share)
        self._mean: AveragedModel | None = None

    def add(self, step: int) -> None:
        """Take in the weights after a step of the period, the first of which is 1."""
        if step > self._after:
            self._mean = self._mean or AveragedModel(self._model)
            self._mean.update_parameters(self._model)

    def replace_weights(self) -> None:
        """Write the mean into the model, unless no step was averaged."""
        if self._mean is not None:
            self._model.load_state_dict(self._mean.module.state_dict())
            self._mean = None

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs, empty before the first averaged step."""
        return {} if self._mean is None else self._mean.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        if state:
            self._mean = AveragedModel(self._model)
            self._mean.load_state_dict(state)
