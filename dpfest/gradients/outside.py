"""Per-example gradients of what is used outside of the calls of layers: bare parameters, tied tables, shared look-ups.

Such a tensor is *shared*: all examples use it, and so is what is computed from shared tensors alone. Where a function
takes shared tensors together with tensors that count the examples (``x + bias``, ``hidden @ table.T``), the function is
a call like that of a layer: cut from autograd, differentiated by example (:mod:`dpfest.gradients.module_gradients`),
and pulled back to what the shared tensor was computed from. Whatever reaches a shared tensor in another way is exact,
too, and slow: one backward pass for each example, from its loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpfest.errors import UserError
from dpfest.gradients.draws import ExampleDraws
from dpfest.gradients.module_gradients import Rerun, floats, replace_floats
from dpfest.gradients.sites import Again, Sites

_COPIES = ("expand", "broadcast_to", "repeat", "tile")


class OutsideUses(TorchFunctionMode):
    """A context of the forward pass that follows shared tensors.

    Args:
        sites: what is known of the model's calls.
        roots: the parameters, by name.
        examples: number of examples.
        draws: random numbers of the pass; None if it draws none.
        look_up: makes and records a look-up by function of a table's weight, in place of it; None for another tensor.
    """

    def __init__(
        self,
        sites: Sites,
        roots: Mapping[str, Tensor],
        examples: int,
        draws: ExampleDraws | None,
        look_up: Callable[[Tensor, Tensor, Callable[[], Tensor]], Tensor | None],
    ) -> None:
        super().__init__()
        self._sites, self._examples, self._draws, self._look_up = sites, examples, draws, look_up
        self._pure: set[int] = set()
        self._roots: dict[int, frozenset[int]] = {}  # of a shared tensor, what it was computed from
        self._alive: dict[int, Tensor] = {}
        self.calls: list[tuple[tuple[Any, ...], Rerun]] = []
        self._number = 0
        for root in roots.values():
            self.share(root)

    def share(self, tensor: Tensor, of: frozenset[int] | None = None, *, pure: bool = True) -> None:
        """Follow a tensor, which was computed from these; itself a root if from none.

        It is pure if nothing but shared tensors went into it.
        """
        self._alive[id(tensor)] = tensor
        self._roots[id(tensor)] = frozenset((id(tensor),)) if of is None else of
        if pure:
            self._pure.add(id(tensor))

    def shares(self, tensor: Tensor) -> bool:
        """Return whether a tensor is known to be shared."""
        return id(tensor) in self._roots

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function; cut it where shared tensors meet examples."""
        kwargs = kwargs or {}
        if (
            func is embedding
            and (found := self._look_up(*_ids(*args, **kwargs), lambda: func(*args, **kwargs))) is not None
        ):
            return found
        leaves, spec = tree_flatten((args, kwargs))
        tensors = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        shared = [k for k in tensors if id(leaves[k]) in self._roots and leaves[k].requires_grad]
        if not shared or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        others = [k for k in tensors if k not in shared]
        name, own = getattr(func, "__name__", str(func)), [leaves[k] for k in shared]

        def run(own: Sequence[Tensor], leaves: Sequence[Any]) -> Any:
            whole = list(leaves)
            for k, value in zip(shared, own, strict=True):
                whole[k] = value
            args, kwargs = tree_unflatten(whole, spec)
            return func(*args, **kwargs)

        if not others:
            with self._drawing_once(own):
                result = func(*args, **kwargs)
            if name in _COPIES and result.dim() and len(result) == self._examples and len(result) != len(own[0]):
                return self._copied(result, own, name)
            return self._followed(result, own, pure=all(id(one) in self._pure for one in own))
        self._number += 1
        site = ("", self._number, name)
        in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        uncut = name == "__setitem__" or "out" in kwargs or (in_place and not (0 in others and leaves[0].requires_grad))
        if uncut or site in self._sites.plain:
            return func(*args, **kwargs)
        dims: list[int | None] = [None] * len(leaves)
        for k in others:
            leaf = leaves[k]
            if leaf.dim() and self._sites.counts((*site, k, leaf.dim()), len(leaf), self._examples):
                dims[k] = 0
        if all(dim is None for dim in dims):
            result = func(*args, **kwargs)
            # What takes examples in another layout is no shared tensor: autograd goes on from it.
            return result if any(leaves[k].requires_grad for k in others) else self._followed(result, own)
        kept = list(leaves)
        if in_place:
            kept[0] = leaves[0].detach().clone()
        first_draw = None if self._draws is None else self._draws.calls
        result = run([one.detach() for one in own], leaves)
        return self._cut(site, run, own, kept, dims, result, first_draw, in_place)

    @contextmanager
    def _drawing_once(self, own: Sequence[Tensor]) -> Iterator[None]:
        """A context in which what is drawn for pure tensors alone is drawn once for all examples."""
        if self._draws is not None:
            self._draws.independent = all(id(one) in self._pure for one in own)
        try:
            yield
        finally:
            if self._draws is not None:
                self._draws.independent = False

    def _followed(self, result: Any, own: Sequence[Tensor], *, pure: bool = False) -> Any:
        roots = frozenset().union(*(self._roots[id(one)] for one in own))
        for tensor in floats(result):
            if tensor.requires_grad and id(tensor) not in self._roots:
                self.share(tensor, roots, pure=pure)
        return result

    def _copied(self, result: Tensor, own: Sequence[Tensor], name: str) -> Any:
        """Cut where a shared tensor is copied for each example."""
        self._number += 1
        site = ("", self._number, name)
        if site in self._sites.plain or not self._sites.counts(site, len(result), self._examples):
            return self._followed(result, own)
        rest = result.shape[1:]
        if name in ("repeat", "tile") and (own[0].dim() != result.dim() or own[0].shape[1:] != rest):
            return self._followed(result, own)
        return self._cut(
            site, lambda own, _: own[0].expand(1, *rest), own, [result.new_empty(self._examples, 0)], [0],
            result.detach(), None, False,
        )  # fmt: skip

    def _cut(
        self,
        site: tuple[Any, ...],
        run: Callable[[Sequence[Tensor], Sequence[Any]], Any],
        own: Sequence[Tensor],
        leaves: list[Any],
        dims: list[int | None],
        result: Any,
        first_draw: int | None,
        in_place: bool,
    ) -> Any:
        outputs = floats(result)
        if not outputs:
            return result
        if not all(
            one.dim() and self._sites.counts((*site, "output", k), len(one), self._examples)
            for k, one in enumerate(outputs)
        ):
            self._sites.plain.add(site)
            raise Again
        if not in_place:
            outputs = [one.view_as(one) for one in outputs]
        for one in outputs:
            if not one.requires_grad:
                one.requires_grad_(True)
        drawn = None if self._draws is None or self._draws.calls == first_draw else first_draw
        self.calls.append((site, Rerun(run, own, leaves, dims, outputs, [0] * len(outputs), drawn)))
        return result if in_place else replace_floats(result, outputs)

    def opened(self) -> set[int]:
        """Return the identities of the roots that the functions took."""
        return {root for _, call in self.calls for one in call.own for root in self._roots[id(one)]}

    def add_gradients(self, found: dict[int, Tensor], draws: Callable[[], ExampleDraws]) -> None:
        """Add what the functions contribute to each root's gradients ``[b, *shape]``, by its identity.

        Raises:
            Again: a function cannot be run example by example; it will not be cut.
        """
        for site, call in self.calls:
            try:
                each = call.per_example(draws)
            except Exception:  # whatever vmap cannot do
                self._sites.plain.add(site)
                raise Again from None
            for one, gradients in zip(call.own, each, strict=True):
                roots = [self._alive[root] for root in self._roots[id(one)]]
                pulled = [gradients] if roots[0] is one else pull(one, roots, gradients)
                for root, value in zip(roots, pulled, strict=True):
                    found[id(root)] += value


def _ids(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return input, weight


def pull(value: Tensor, roots: Sequence[Tensor], gradients: Tensor) -> list[Tensor]:
    """Return the gradients ``[b, *shape]`` of every root, from those of a value that was computed from them."""
    parts = [root.new_zeros(len(gradients), *root.shape) for root in roots]
    for number, gradient in enumerate(gradients):
        _add(parts, number, torch.autograd.grad(value, roots, gradient, retain_graph=True, allow_unused=True))
    return parts


def by_losses(losses: Tensor, roots: Sequence[Tensor]) -> list[Tensor]:
    """Return each example's gradient of every root, ``[b, *shape]``: one backward pass from each loss."""
    return pull(losses, roots, torch.eye(len(losses), dtype=losses.dtype, device=losses.device))


def _add(parts: Iterable[Tensor], number: int, gradients: Iterable[Tensor | None]) -> None:
    for part, gradient in zip(parts, gradients, strict=True):
        if gradient is not None:
            part[number] = gradient.to_dense() if gradient.is_sparse else gradient


def refuse_whole_tables(names: Sequence[str], *, lazy: bool, known: bool) -> None:
    """Refuse, or warn of, tables that are used outside of look-ups: each example then touches all of their rows.

    Args:
        names: of their weights.
        lazy: whether their noise is lazy.
        known: whether passes were made that did not use them so.
    """
    tables = ", ".join(names)
    cure = "Look the rows up through the layer, as sampled softmax does: model.item(candidates)"
    if lazy:
        raise UserError(
            f"The loss uses the table {tables} outside of look-ups, where noise may be pending. {cure}; or use "
            "noise='dense'."
        )
    if known:
        raise UserError(
            f"The loss uses the table {tables} outside of look-ups in some batches and not in others, so that the "
            f"choice of rows was not told of it. {cure}."
        )
    warnings.warn(
        f"The loss uses the table {tables} outside of look-ups (an output layer that shares it?): each example touches "
        f"all of its rows, and no algorithm keeps its gradient sparse. {cure}.",
        stacklevel=2,
    )


def refuse_overflow(gradients: Mapping[str, Tensor]) -> None:
    """Refuse examples' gradients ``[b, *shape]``, by name, of which one that is not finite may have spoilt others."""
    for name, found in gradients.items():
        if len(found) > 1 and not bool(found.isfinite().all()):
            raise UserError(
                f"An example's gradient of {name} is not finite, and cannot be told from the others' where it is used: "
                "the first dimension does not count the examples there. Use it in a module or a function that takes "
                "the examples in the first dimension, or keep activations in range."
            )


def warn_of_passes(names: Collection[str]) -> None:
    """Warn of what takes a backward pass for each example."""
    if names:
        first = sorted(names)
        more = f" and {len(first) - 3} more" if len(first) > 3 else ""
        warnings.warn(
            f"The gradients of {', '.join(first[:3])}{more} take a backward pass of its own for each example: they are "
            "used where the first dimension does not count the examples. Put it first (batch_first=True, flatten other "
            "dimensions only) for one pass for all, or lower micro_batch_size.",
            stacklevel=2,
        )
