"""Per-example gradients of any call, by running it again for each example (``torch.func``).

A call, of a module or of a function, is made again for a batch of one, and differentiated there: ``vmap`` of ``vjp``
does so for all examples at once, with the random numbers that the call drew. Which arguments count examples, and in
which dimension, is known for attention and recurrent layers; anywhere else it is the first dimension, where its length
says so (:mod:`dpfest.gradients.sites`).

The memory is that of the gradients: examples of the micro-batch times the parameters' size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from dpfest.gradients.draws import ExampleDraws
from dpfest.gradients.sites import Sites

Dims = list[int | None]
"""Of each leaf of a call's arguments, the dimension that counts the examples; None for what they share."""
_HALF = (torch.float16, torch.bfloat16)
_PLAIN = (Tensor, bool, int, float, str, type(None), torch.dtype, torch.device)


class Rerun:
    """One call that can be made again for single examples.

    Args:
        run: makes it: from what gradients are taken of, and the leaves of the arguments, to the leaves of the result.
        own: what gradients are taken of.
        leaves: of the arguments.
        dims: of the leaves.
        outputs: the floating-point tensors of the result, cut from other uses of their values.
        out_dims: the dimension of each that counts the examples.
        first_draw: number of the call's first random operation; None if it has none.

    """

    def __init__(
        self,
        run: Callable[[Sequence[Tensor], Sequence[Any]], Any],
        own: Sequence[Tensor],
        leaves: Sequence[Any],
        dims: Dims,
        outputs: Sequence[Tensor],
        out_dims: Sequence[int],
        first_draw: int | None,
    ) -> None:
        self._run, self.own, self._leaves, self._dims = run, own, leaves, dims
        self.outputs, self._out_dims, self._first_draw = outputs, out_dims, first_draw
        self.gradients: list[Tensor] = []
        self._tolerance = 0.1 if torch.is_autocast_enabled(own[0].device.type) else 1e-3
        tensors = [leaf for leaf in (*leaves, *outputs) if isinstance(leaf, Tensor)]
        self._versions = [(tensor, tensor._version) for tensor in tensors]

    @property
    def changed_since(self) -> bool:
        """Whether an argument or a result was modified in place after the call."""
        return any(tensor._version != version for tensor, version in self._versions)

    def take(self, gradients: list[Tensor]) -> None:
        """Keep the gradients of the outputs."""
        self.gradients = gradients

    def per_example(self, draws: Callable[[], ExampleDraws]) -> list[Tensor]:
        """Return each example's gradient of everything in ``own``, ``[b, *shape]``.

        Raises:
            RuntimeError: the call cannot be made for all examples at once, or returns something else; or another error
                of its code.
        """
        values = tuple(one.detach() for one in self.own)
        dtype = values[0].dtype
        leaves = [_wide(leaf.detach(), dtype) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        counted = [k for k, dim in enumerate(self._dims) if dim is not None]

        def gradients(of_example: Sequence[Tensor], slopes: Sequence[Tensor]) -> Any:
            one = list(leaves)
            for k, leaf in zip(counted, of_example, strict=True):
                one[k] = leaf.unsqueeze(self._dims[k])  # type: ignore[arg-type]
            result, pull = vjp(lambda *own: tuple(floats(self._run(own, one))), *values)  # type: ignore[misc]
            found = pull(tuple(slope.unsqueeze(dim) for slope, dim in zip(slopes, self._out_dims, strict=True)))
            return found, tuple(part.squeeze(dim) for part, dim in zip(result, self._out_dims, strict=True))

        drawing: Any = nullcontext()
        if self._first_draw is not None:
            drawing = draws()
            drawing.calls = self._first_draw
        of_examples, slopes = [leaves[k] for k in counted], [_wide(gradient, dtype) for gradient in self.gradients]
        in_dims: Any = ([self._dims[k] for k in counted], list(self._out_dims))
        out_dims: Any = (0, tuple(self._out_dims))
        with drawing, _without_fused_layers():
            found, results = vmap(gradients, in_dims, out_dims, randomness="different")(of_examples, slopes)
        for output, result in zip(self.outputs, results, strict=True):
            difference = float((result - output.detach()).norm())
            if difference > self._tolerance * float(output.detach().norm()):  # not so where either is not finite
                raise RuntimeError("the call returns something else when it is made again")
        return list(found)


def module_call(
    layer: nn.Module,
    site: tuple[str, int],
    parameters: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    examples: int,
    sites: Sites,
) -> tuple[Callable[[Any, Any], Any], list[Any], Dims] | None:
    """Return how to run a module's call again, the leaves of its arguments and their dimensions.

    Args:
        layer: the module.
        site: its name and the number of the call.
        parameters: those that gradients are taken of, by name.
        args: of the call.
        kwargs: of the call.
        examples: number of examples in the batch.
        sites: what is known of the model's calls.

    Returns:
        None if no argument, or not what is known to, counts the examples: the call is not an example's own.
    """
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        args, kwargs = _with_state(layer, *args, **kwargs), {}
    leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
    if not all(isinstance(leaf, _PLAIN) for leaf in leaves):
        return None  # what holds tensors of its own may hold anything
    known = _known_dims(layer, leaves, spec)
    if known is not None:
        dims = known
        counted = [(leaf, dim) for leaf, dim in zip(leaves, dims, strict=True) if dim is not None]
        if not all(isinstance(leaf, Tensor) and leaf.shape[dim : dim + 1] == (examples,) for leaf, dim in counted):
            return None
    else:
        dims = [
            0 if isinstance(leaf, Tensor) and leaf.dim() and sites.counts((*site, k), len(leaf), examples) else None
            for k, leaf in enumerate(leaves)
        ]
    if all(dim is None for dim in dims):
        return None
    names = list(parameters)

    def run(own: Sequence[Tensor], leaves: Sequence[Any]) -> Any:
        args, kwargs = tree_unflatten(list(leaves), spec)
        return functional_call(layer, dict(zip(names, own, strict=True)), args, kwargs)

    return run, leaves, dims


def output_dims(layer: nn.Module, outputs: Sequence[Tensor]) -> list[int]:
    """Return the dimension of each tensor of a module's result that counts the examples."""
    first = 0 if getattr(layer, "batch_first", True) else 1
    if isinstance(layer, nn.RNNBase):
        return [first, *[1] * (len(outputs) - 1)]
    if isinstance(layer, nn.MultiheadAttention):
        return [first, *[0] * (len(outputs) - 1)]
    return [0] * len(outputs)


def floats(value: Any) -> list[Tensor]:
    """Return the floating-point tensors among the leaves of a result."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def replace_floats(value: Any, tensors: Sequence[Tensor]) -> Any:
    """Return a result with these in place of its floating-point tensors."""
    leaves, spec = tree_flatten(value)
    rest = iter(tensors)
    return tree_unflatten(
        [next(rest) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf for leaf in leaves], spec
    )


def _known_dims(layer: nn.Module, leaves: Sequence[Any], spec: Any) -> Dims | None:
    """Return the dimensions where the layer's kind says them; None for any other kind."""
    first = 0 if getattr(layer, "batch_first", True) else 1
    if isinstance(layer, nn.RNNBase):
        return [first, *[1] * (len(leaves) - 1)]
    if type(layer) is not nn.MultiheadAttention:
        return None
    args, kwargs = tree_unflatten(list(range(len(leaves))), spec)
    named = inspect.signature(layer.forward).bind(*args, **kwargs).arguments
    dims: Dims = [None] * len(leaves)
    for name, dim in {"query": first, "key": first, "value": first, "key_padding_mask": 0}.items():
        if isinstance(leaves[named.get(name, 0)], Tensor) and name in named:
            dims[named[name]] = dim
    mask = leaves[named["attn_mask"]] if "attn_mask" in named else None
    if isinstance(mask, Tensor) and mask.dim() == 3:  # [examples * heads, ...]: no dimension counts the examples
        dims[named["attn_mask"]] = mask.dim()
    return dims


def _with_state(layer: nn.RNNBase | nn.RNNCellBase, input: Any, hx: Any = None) -> tuple[Any, Any]:
    """Return a recurrent layer's arguments with its initial state, which batches of one must not share."""
    if hx is not None or not isinstance(input, Tensor):
        return input, hx
    if isinstance(layer, nn.RNNCellBase):
        if input.dim() == 2:
            hx = input.new_zeros(len(input), layer.hidden_size)
            hx = (hx, hx) if isinstance(layer, nn.LSTMCell) else hx
    elif input.dim() == 3:
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        examples = len(input) if layer.batch_first else input.shape[1]
        sizes = [layer.proj_size or layer.hidden_size, layer.hidden_size]
        states = tuple(input.new_zeros(count, examples, size) for size in sizes)
        hx = states if isinstance(layer, nn.LSTM) else states[0]
    return input, hx


@contextmanager
def _without_fused_layers() -> Iterator[None]:
    """A context without fused attention and recurrent layers, which ``vmap`` runs for one example after another."""
    functorch: Any = torch._C._functorch
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    functorch._set_vmap_fallback_warning_enabled(False)
    try:
        with (
            torch.backends.cudnn.flags(enabled=False) if torch.cuda.is_available() else nullcontext(),
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)
        functorch._set_vmap_fallback_warning_enabled(True)


def _wide(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor that is not in half precision, as activations are under autocast."""
    return tensor.to(dtype) if tensor.dtype in _HALF else tensor
