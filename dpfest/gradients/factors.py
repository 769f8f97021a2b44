"""Which layers have factors of their own: those whose per-example gradients are never formed, or formed from a call."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dpfest.gradients.formed import FormedGradients, PerExampleGradients
from dpfest.gradients.layers import LinearFactors


class TransposedLinearFactors(LinearFactors):
    """Those of transformers' ``Conv1D``: a linear layer whose weight is ``[in, out]``."""

    def _total(self, sums: dict[Tensor, Tensor]) -> Tensor:
        return sums[self.layer.weight].t()


Factors = LinearFactors | FormedGradients
# Looked up by exact type: a subclass may do more than its parent.
FACTORS: dict[type[nn.Module], Any] = {nn.Linear: LinearFactors} | dict.fromkeys(
    (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.PReLU), PerExampleGradients
)
_BY_NAME = {"transformers.pytorch_utils.Conv1D": TransposedLinearFactors}


def factors_of(layer: nn.Module) -> Any:
    """Return what makes the factors of a layer; None for one that has none of its own."""
    kind = type(layer)
    return FACTORS.get(kind) or _BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
