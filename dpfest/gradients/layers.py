"""Per-example gradient norms and clipped sums of linear layers.

For a linear layer with input ``a_i`` and output gradient ``g_i``, example ``i``'s weight gradient is the outer product
``g_i a_i^T``: its norm is ``|g_i| |a_i|`` and a weighted sum over examples is one matrix product (Goodfellow, 2015), so
no example's gradient is ever formed. With a sequence dimension the norm comes from two Gram matrices (Li et al., 2022);
a layer called twice is a longer sequence, and a unit of several examples (:mod:`dpfest.gradients.units`) is one. Both
need what one backward pass leaves behind (Bu et al., 2023, "book-keeping"). For layers of few parameters
(normalisations, convolutions) per-example gradients are formed (:mod:`dpfest.gradients.formed`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.gradients.units import Groups

_SMALL = 1 << 14  # values of an example's gradient


@dataclass
class Call:
    """One call of a layer: its arguments, its output and, after the backward pass, the output's gradient.

    Attributes:
        chosen: of a bag that takes the maximum, the row of each bag and coordinate, ``[b, dim]``.
        shared: whether all examples share it.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    chosen: Tensor | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        self.gradient = self.output
        tensors = [t for t in (*self.args, *self.kwargs.values(), self.output) if isinstance(t, Tensor)]
        self._versions = [(tensor, tensor._version) for tensor in tensors]

    @property
    def changed_since(self) -> bool:
        """Whether an argument or the output was modified in place after the call."""
        return any(tensor._version != version for tensor, version in self._versions)

    @property
    def outputs(self) -> list[Tensor]:
        """The output."""
        return [self.output]

    def take(self, gradients: list[Tensor]) -> None:
        """Keep the output's gradient."""
        (self.gradient,) = gradients

    @property
    def input(self) -> Tensor:
        """The first argument, detached from autograd."""
        return (self.args[0] if self.args else self.kwargs["input"]).detach()


class LinearFactors:
    """All calls of an ``nn.Linear`` in a micro-batch: inputs and output gradients, ``[b, n]`` or ``[b, length, n]``.

    With ``groups``, norms, weights and broken ones are those of its units, ``[u]``, and not of examples.
    """

    def __init__(self, layer: nn.Linear, calls: list[Call], groups: Groups | None = None) -> None:
        self.layer = layer
        # Units of one example each are examples.
        self.groups = None if groups is None or len(groups) == len(calls[0].output) else groups
        # Under autocast they are in half precision, too coarse for norms.
        dtype = layer.weight.dtype
        inputs, gradients = [call.input.to(dtype) for call in calls], [call.gradient.to(dtype) for call in calls]
        if len(calls) > 1 or inputs[0].dim() > 2:
            inputs, gradients = ([_sequence(t) for t in tensors] for tensors in (inputs, gradients))
        self.inputs = inputs[0] if len(calls) == 1 else torch.cat(inputs, 1)
        self.gradients = gradients[0] if len(calls) == 1 else torch.cat(gradients, 1)
        self._formed: Tensor | None = None  # gradients of the weight, ``[b, out * in]``, where norms formed them

    def squared_norms(self) -> Tensor:
        """Return each example's squared gradient norm over the layer's trainable parameters, ``[b]``."""
        if self.groups is None:
            return self._squared_norms(self.inputs, self.gradients)
        total = self.gradients.new_zeros(len(self.groups))
        for units, members, repeated in self.groups.by_size:
            # What fills a rectangle is the unit's own: a value that is not finite reaches no other unit.
            inputs, gradients = self.inputs[members], self.gradients[members]
            gradients.masked_fill_(repeated.view(*repeated.shape, *[1] * (gradients.dim() - 2)), 0)
            one = members.shape[1] == 1
            joined = [part.squeeze(1) if one else _sequence(part) for part in (inputs, gradients)]
            total[units] = self._squared_norms(*joined)
        return total

    def _squared_norms(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        total = gradients.new_zeros(len(gradients))
        if inputs.dim() == 2:
            slopes = torch.linalg.vector_norm(gradients, dim=1)
            if weight.requires_grad:
                total += (torch.linalg.vector_norm(inputs, dim=1) * slopes).square()
            if bias is not None and bias.requires_grad:
                total += slopes.square()
            return total
        if weight.requires_grad:
            if _by_gram_matrices(inputs.shape[1], *weight.shape):
                # Terms cancel: in float32 the norm of a large gradient can come out as zero, leaving it unclipped.
                wide, slopes = inputs.double(), gradients.double()
                gram = (wide @ wide.transpose(1, 2)) * (slopes @ slopes.transpose(1, 2))
                total += gram.sum((1, 2)).clamp_min(0).to(total.dtype)
            else:
                formed = (gradients.transpose(1, 2) @ inputs).flatten(1)
                total += torch.linalg.vector_norm(formed, dim=1).square()
                if inputs is self.inputs and formed.numel() <= 2 * (inputs.numel() + gradients.numel()):
                    self._formed = formed
        if bias is not None and bias.requires_grad:
            total += torch.linalg.vector_norm(gradients.sum(1), dim=1).square()
        return total

    def add_weighted_sums(self, weight: Tensor | None, sums: dict[Tensor, Tensor]) -> None:
        """Add ``sum_i weight_i * gradient_i`` to each trainable parameter's sum; ``weight`` is ``[b]``, None for 1."""
        if self._formed is not None:
            for parameter, gradients in ((self.layer.weight, self._formed), (self.layer.bias, self.gradients.sum(1))):
                if parameter is not None and parameter.requires_grad:
                    total = self._total(sums) if parameter is self.layer.weight else sums[parameter]
                    gradients = gradients.to(total.dtype)
                    summed = gradients.sum(0) if weight is None else weight.to(total.dtype) @ gradients
                    total.add_(summed.view(total.shape))
            return
        scaled = self.gradients
        if weight is not None:
            weight = weight if self.groups is None else weight.index_select(0, self.groups.of)
            scaled = scaled * weight.view(-1, *[1] * (scaled.dim() - 1))
        scaled = scaled.flatten(0, -2)
        if self.layer.weight.requires_grad:
            total = self._total(sums)
            total.addmm_(scaled.t().to(total.dtype), self.inputs.flatten(0, -2).to(total.dtype))
        if self.layer.bias is not None and self.layer.bias.requires_grad:
            total = sums[self.layer.bias]
            total.add_(scaled.sum(0, dtype=total.dtype))

    def _total(self, sums: dict[Tensor, Tensor]) -> Tensor:
        """Return the weight's sum, ``[out, in]``."""
        return sums[self.layer.weight]

    def drop(self, broken: Tensor) -> None:
        """Set the gradients of the broken examples, bool ``[b]``, to zero, whatever they contain."""
        broken = broken if self.groups is None else broken.index_select(0, self.groups.of)
        self.inputs, self.gradients = without(self.inputs, broken), without(self.gradients, broken)
        self._formed = None


def _by_gram_matrices(length: int, outputs: int, inputs: int) -> bool:
    """Return whether two Gram matrices of a sequence give the norm of a weight's gradient for less than the gradient.

    In memory (Bu et al., 2022), and, where an example's gradient is small enough to be formed either way, in products:
    those of Gram matrices are of float64.
    """
    gradient, grams = outputs * inputs, 2 * length**2
    return grams <= gradient and (gradient > _SMALL or 2 * length * (outputs + inputs) <= gradient)


def _sequence(tensor: Tensor) -> Tensor:
    """Reshape ``[b, ..., n]`` to ``[b, length, n]``."""
    return tensor.reshape(len(tensor), math.prod(tensor.shape[1:-1]), tensor.shape[-1])


def without(tensor: Tensor, broken: Tensor) -> Tensor:
    """Return a tensor of examples ``[b, ...]`` with those that are broken, bool ``[b]``, set to zero."""
    return tensor.masked_fill(broken.view(-1, *[1] * (tensor.dim() - 1)), 0)
