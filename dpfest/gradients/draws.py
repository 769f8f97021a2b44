"""Random numbers of the forward pass (dropout, sampled negatives): functions of key, step and example.

PyTorch draws a dropout mask for a whole batch from one generator with a public default seed, so removing one example
changes everyone's masks, and a repeated step draws others. Inside :class:`ExampleDraws` every random operation of
PyTorch draws from the key's cipher instead: an element of a random tensor is the cipher's image of (example, number of
the call, position within the example), under a key of the step.

Guarantee: an example's random numbers are independent of the other examples of its batch, of its micro-batch and of the
length to which they were padded, as long as the number of the call is; a repeated step repeats them. A random tensor
whose first dimension is not the number of examples is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey

_NO_EXAMPLE = np.array([2**64 - 1], dtype=np.uint64)
"""In place of an example's number, which is less, in draws that no example's are."""
_MOST = 1 << 16  # maximum calls per step, and size of each dimension of an example: the fields of a counter


class ExampleDraws(TorchDispatchMode):
    """A context in which PyTorch's random operations draw by example.

    Args:
        key: key of the run.
        step: step number.
        examples: identifies the examples, int64 ``[b]``: their indices in the data set.
        once: numbers of the calls that draw once for all examples; those found to are added.

    Attributes:
        calls: number of random operations so far.
        heads: within attention, whose random tensors may count (example, head) pairs, the number of heads; or None.
        independent: whether what is computed now depends on no example: what it draws is then drawn once for all.
        sequence_first: whether random tensors count the examples in their second dimension, as within recurrent layers.

    Raises:
        UserError: inside, by an operation that cannot be drawn by example, or that passes its own generator.
    """

    def __init__(self, key: NoiseKey, step: int, examples: NDArray[np.int64], once: set[int] | None = None) -> None:
        super().__init__()
        self._once = set() if once is None else once
        self._width, self._image = key.derive("forward pass", step).images()
        self._examples = np.asarray(examples, dtype=np.int64).view(np.uint64)
        self.calls = 0
        self.independent = False
        self.heads: int | None = None
        self.sequence_first = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or draw by example in place of a random one."""
        kwargs = kwargs or {}
        named = _named_arguments(func, args, kwargs)
        if named is None:
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if named.get("generator") is not None:
            raise UserError(
                f"The forward pass draws torch.{name} from a generator of its own, outside the noise key. "
                "Leave generator= out: numbers are then drawn by example, from the key."
            )
        draw = _DRAWS.get(name)
        values = None if draw is None else draw(self, named)
        if values is None:
            raise UserError(
                f"The forward pass draws {func}, which cannot be drawn by example. Use dropout, bernoulli, rand, "
                "randn, randint, multinomial, normal_, uniform_ or exponential_, or draw in the data set's __getitem__."
            )
        return values

    def uniform(self, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Return 53-bit uniforms on (0, 1), float64, of this shape, whose first dimension is the number of examples."""
        shape = tuple(shape)
        count = len(self._examples)
        if self.independent:
            self._once.add(self.calls)
        if self.calls in self._once:
            return self._uniform(_NO_EXAMPLE, (1, *shape), device).squeeze(0)
        if self.sequence_first and len(shape) > 1 and shape[1] == count:  # in the order of a call with one example
            return self._uniform(self._examples, (count, shape[0], 1, *shape[2:]), device).squeeze(2).movedim(0, 1)
        if self.heads and shape and shape[0] == count * self.heads:
            return self._uniform(self._examples, (count, self.heads, *shape[1:]), device).reshape(shape)
        if not shape or shape[0] != count:
            raise UserError(
                f"The forward pass draws random numbers of a shape, {shape}, whose first dimension does not count the "
                "examples: they would depend on the other examples of the batch. Draw [examples, ...] (negatives and "
                "dropout before flattening), or draw in the data set's __getitem__."
            )
        return self._uniform(self._examples, shape, device)

    def _uniform(self, examples: NDArray[np.uint64], shape: tuple[int, ...], device: torch.device | str) -> Tensor:
        inner = (1, 1, 1, *shape[1:])
        sizes = (math.prod(inner[:-2]), *inner[-2:])
        counts = (*sizes[:2], -(-sizes[2] // self._width))
        if self.calls >= _MOST or max(counts) > _MOST:
            raise UserError(f"The forward pass draws {shape} values in call {self.calls}: too many for one example.")
        outer, middle, last = (np.arange(n, dtype=np.uint64) for n in counts)
        place = (outer << np.uint64(32))[:, None, None] | (middle << np.uint64(16))[:, None] | last
        places = (place | np.uint64(self.calls << 48)).reshape(-1)
        self.calls += 1
        words = self._image(np.repeat(examples, len(places)), np.tile(places, len(examples)))
        words = words.reshape(len(examples), *sizes[:2], self._width * len(last))[..., : sizes[2]]
        values = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
        return torch.from_numpy(np.ascontiguousarray(values.reshape(shape))).to(device)

    def like(self, tensor: Tensor) -> Tensor:
        """Return :meth:`uniform` of a tensor's shape, on its device."""
        return self.uniform(tensor.shape, tensor.device)

    def new(self, named: dict[str, Any]) -> tuple[Tensor, torch.dtype | None]:
        """Return :meth:`uniform` for an operation that creates a tensor by size or like another, and the dtype."""
        if (model := named.get("self", named.get("input"))) is not None:
            return self.like(model), named.get("dtype") or model.dtype
        return self.uniform(named["size"], named.get("device") or "cpu"), named.get("dtype")


class NoDraws(TorchDispatchMode):
    """A context for the backward pass that refuses random operations: a checkpoint would draw other numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation that is not random."""
        if _named_arguments(func, args, kwargs or {}) is not None:
            raise UserError(
                f"The backward pass recomputes {func}: random draws within torch.utils.checkpoint are not repeated. "
                "Keep dropout outside of checkpoints, or set it to 0."
            )
        return func(*args, **(kwargs or {}))


Named = dict[str, Any]


def _named_arguments(func: Any, args: Sequence[Any], kwargs: Named) -> Named | None:
    """Return the arguments of a random operation by name; None for an operation that is not random.

    Fused attention without dropout is not random, although PyTorch marks it so.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    arguments = func._schema.arguments
    named = dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs
    dropout = [named.get(each.name, each.default_value) for each in arguments if each.name == "dropout_p"]
    return None if dropout == [0.0] else named


def _bernoulli(draws: ExampleDraws, named: Named) -> Tensor:
    values: Tensor = named["self"]
    return draws.like(values).lt(named.get("p", values)).to(values.dtype)


def _bernoulli_(draws: ExampleDraws, named: Named) -> Tensor:
    return named["self"].copy_(draws.like(named["self"]) < named.get("p", 0.5))


def _native_dropout(draws: ExampleDraws, named: Named) -> tuple[Tensor, Tensor]:
    values, p = named["input"], named["p"]
    kept = draws.like(values) >= (p if named.get("train") is not False else 0.0)
    return values * kept * (1 / (1 - p) if p < 1 else 0.0), kept


def _uniform(draws: ExampleDraws, named: Named) -> Tensor:
    values, dtype = draws.new(named)
    dtype = dtype or torch.get_default_dtype()
    return values if dtype == torch.float64 else (values * 2**24).floor().mul(2.0**-24).to(dtype)  # never rounded to 1


def _uniform_(draws: ExampleDraws, named: Named) -> Tensor:
    low, high = named.get("from", 0.0), named.get("to", 1.0)
    return named["self"].copy_(low + (high - low) * draws.like(named["self"]))


def _normal(draws: ExampleDraws, named: Named) -> Tensor:
    values, dtype = draws.new(named)
    return torch.special.ndtri(values).to(dtype or torch.get_default_dtype())


def _normal_(draws: ExampleDraws, named: Named) -> Tensor:
    variates = torch.special.ndtri(draws.like(named["self"]))
    return named["self"].copy_(named.get("mean", 0.0) + named.get("std", 1.0) * variates)


def _normal_of(draws: ExampleDraws, named: Named) -> Tensor:
    mean, std = named.get("mean", 0.0), named.get("std", 1.0)
    model = mean if isinstance(mean, Tensor) else std
    if not isinstance(model, Tensor):
        return mean + std * _normal(draws, named)
    return (mean + std * torch.special.ndtri(draws.like(model))).to(model.dtype)


def _integers(draws: ExampleDraws, named: Named) -> Tensor:
    values, dtype = draws.new(named)
    low, high = int(named.get("low", 0)), int(named["high"])
    return (low + (values * (high - low)).floor()).to(dtype or torch.int64)


def _integers_(draws: ExampleDraws, named: Named) -> Tensor | None:
    low, high = named.get("from", 0), named.get("to")
    if high is None:
        return None
    return named["self"].copy_(low + (draws.like(named["self"]) * (high - low)).floor())


def _exponential_(draws: ExampleDraws, named: Named) -> Tensor:
    return named["self"].copy_(-draws.like(named["self"]).log() / named.get("lambd", 1.0))


def _multinomial(draws: ExampleDraws, named: Named) -> Tensor:
    weights, count = named["self"].double(), named["num_samples"]
    if named.get("replacement"):
        ends = weights.cumsum(-1)
        uniform = draws.uniform((*weights.shape[:-1], count), weights.device) * ends[..., -1:]
        return torch.searchsorted(ends, uniform, right=True).clamp_max(weights.shape[-1] - 1)
    # The order of exponential clocks (Efraimidis and Spirakis, 2006).
    return (weights / -draws.uniform(weights.shape, weights.device).log()).topk(count, dim=-1).indices


_DRAWS: dict[str, Callable[[ExampleDraws, Named], Any]] = {
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli_,
    "native_dropout": _native_dropout,
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform_": _uniform_,
    "randn": _normal,
    "randn_like": _normal,
    "normal_": _normal_,
    "normal": _normal_of,
    "randint": _integers,
    "randint_like": _integers,
    "random_": _integers_,
    "exponential_": _exponential_,
    "multinomial": _multinomial,
}
"""Replacement for each random operation, by its name in PyTorch."""


def generator_states(device: torch.device | None) -> list[bytes]:
    """Return the states of PyTorch's generators that a forward pass on this device draws from."""
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device else [])
    return [state.numpy().tobytes() for state in states]
