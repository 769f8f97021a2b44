"""Per-example gradient norms and clipped sums of dense layers, without per-example gradients.

For a linear layer with input ``a_i`` and output gradient ``g_i``, example ``i``'s weight gradient is the outer product
``g_i a_i^T``: its norm is ``|g_i| |a_i|`` and a weighted sum over examples is one matrix product (Goodfellow, 2015).
With a sequence dimension the norm comes from two Gram matrices (Li et al., 2022).  Both need what one backward pass
leaves behind (Bu et al., 2023, "book-keeping").
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class LinearFactors:
    """One call of an ``nn.Linear``: its input and, after the backward pass, its output gradient.

    Args:
        layer: the layer.
        inputs: its input, ``[b, in]`` or ``[b, ..., in]``; the first dimension counts examples.
        trainable: ``id`` of each parameter that is trained.
    """

    def __init__(self, layer: nn.Linear, inputs: Tensor, trainable: set[int]) -> None:
        self.layer, self.inputs = layer, inputs.detach()
        self.has_weight = id(layer.weight) in trainable
        self.has_bias = layer.bias is not None and id(layer.bias) in trainable

    def squared_norms(self, output_gradient: Tensor) -> Tensor:
        """Squared norm of each example's gradient of this layer's parameters, ``[b]``."""
        total = output_gradient.new_zeros(len(output_gradient))
        if output_gradient.dim() == 2:
            gradient = output_gradient.square().sum(1)
            if self.has_weight:
                total = total + self.inputs.square().sum(1) * gradient
            return total + gradient if self.has_bias else total
        inputs, gradients = self.inputs.flatten(1, -2), output_gradient.flatten(1, -2)
        length = inputs.shape[1]
        if self.has_weight:
            if 2 * length * length <= self.layer.in_features * self.layer.out_features:
                # Terms cancel: in float32 the norm of a long gradient can come out as zero, and go unclipped.
                inputs, gradients = inputs.double(), gradients.double()
                gram = (inputs @ inputs.transpose(1, 2)) * (gradients @ gradients.transpose(1, 2))
                total = total + gram.sum((1, 2)).clamp_min(0).to(total.dtype)
            else:
                total = total + torch.linalg.matrix_norm(gradients.transpose(1, 2) @ inputs).square()
        return total + gradients.sum(1).square().sum(1).to(total.dtype) if self.has_bias else total

    def without(self, broken: Tensor) -> LinearFactors:
        """The same with the inputs of the broken examples, bool ``[b]``, set to zero."""
        factors = copy.copy(self)
        factors.inputs = self.inputs.masked_fill(broken.view(-1, *[1] * (self.inputs.dim() - 1)), 0)
        return factors

    def weighted_sums(self, output_gradient: Tensor, weight: Tensor) -> list[tuple[Tensor, Tensor]]:
        """``sum_i weight_i * gradient_i`` for each trainable parameter; ``weight`` is ``[b]``."""
        scaled = output_gradient * weight.reshape(-1, *[1] * (output_gradient.dim() - 1))
        scaled = scaled.reshape(-1, scaled.shape[-1])
        sums: list[tuple[Tensor, Tensor]] = []
        if self.has_weight:
            sums.append((self.layer.weight, scaled.t() @ self.inputs.reshape(-1, self.inputs.shape[-1])))
        if self.has_bias:
            sums.append((self.layer.bias, scaled.sum(0)))
        return sums
