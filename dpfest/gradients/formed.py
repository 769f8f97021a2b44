"""Per-example gradients that are formed: of layers of few parameters, as normalisations and convolutions are."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from dpfest.gradients.layers import Call, without
from dpfest.gradients.units import Groups


class FormedGradients:
    """Gradients of each example, or unit, that are formed: ``[u, *shape]`` for every parameter."""

    def __init__(self, gradients: dict[Tensor, Tensor]) -> None:
        self.gradients = gradients

    def squared_norms(self) -> Tensor:
        """See :class:`dpfest.gradients.layers.LinearFactors`."""
        return torch.stack([value.reshape(len(value), -1).square().sum(1) for value in self.gradients.values()]).sum(0)

    def add_weighted_sums(self, weight: Tensor | None, sums: dict[Tensor, Tensor]) -> None:
        """See :class:`dpfest.gradients.layers.LinearFactors`."""
        for parameter, formed in self.gradients.items():
            gradients = formed.to(sums[parameter].dtype)
            weights = gradients.new_ones(len(gradients)) if weight is None else weight.to(gradients.dtype)
            sums[parameter].add_(torch.tensordot(weights, gradients, 1))

    def drop(self, broken: Tensor) -> None:
        """See :class:`dpfest.gradients.layers.LinearFactors`."""
        self.gradients = {parameter: without(value, broken) for parameter, value in self.gradients.items()}


class PerExampleGradients(FormedGradients):
    """Those of a layer with one input that treats every example separately, by ``torch.func``."""

    def __init__(self, layer: nn.Module, calls: list[Call], groups: Groups | None = None) -> None:
        parameters = {n: p for n, p in layer.named_parameters(recurse=False) if p.requires_grad}
        values = {name: parameter.detach() for name, parameter in parameters.items()}

        def gradient(inputs: Tensor, slope: Tensor) -> dict[str, Tensor]:
            _, pull, *_ = vjp(lambda own: functional_call(layer, own, (inputs.unsqueeze(0),)), values)
            return pull(slope.unsqueeze(0))[0]

        formed = {n: p.new_zeros(len(calls[0].gradient), *p.shape) for n, p in values.items()}
        dtype = next(iter(values.values())).dtype  # under autocast inputs and gradients are in half precision
        for call in calls:
            if len(call.output):
                for name, value in vmap(gradient)(call.input.to(dtype), call.gradient.to(dtype)).items():
                    formed[name] += value
        super().__init__({parameters[name]: by_unit(value, groups) for name, value in formed.items()})


def by_unit(gradients: Tensor, groups: Groups | None) -> Tensor:
    """Return the gradients ``[u, ...]`` of units from those of examples, ``[b, ...]``."""
    if groups is None:
        return gradients
    return gradients.new_zeros(len(groups), *gradients.shape[1:]).index_add_(0, groups.of, gradients)
