"""One forward and one backward pass that leave behind what clipping needs, and no parameter gradients.

Within a :class:`Recording` every parameter is held out of autograd, so the backward pass computes output gradients
only: the weight gradients of the ordinary backward pass are never formed, the clipped ones take their place.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.embeddings import Lookup, TableBatch
from dpfest.errors import UserError
from dpfest.layers import LinearFactors
from dpfest.tables import TableLayout


class Recorder:
    """The trainable layers of a model: its embedding tables and its dense layers.

    Args:
        model: any module whose trainable parameters all lie in ``nn.Embedding`` and ``nn.Linear`` layers, and are
            used by calling those layers: a use by ``torch.nn.functional`` is not seen, and gets noise but no gradient.

    Raises:
        UserError: a trainable parameter lies in a layer that cannot be clipped; by name.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.layers: dict[str, nn.Embedding | nn.Linear] = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise UserError(
                    f"The layer {name} ({type(module).__name__}) mixes the examples of a batch, so no example's "
                    "gradient is its own. Use GroupNorm or LayerNorm."
                )
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                self.layers[name] = _supported(name, module)
        self.tables = {n: m for n, m in self.layers.items() if isinstance(m, nn.Embedding)}
        self.layout = TableLayout(
            names=tuple(self.tables),
            rows=tuple(table.num_embeddings for table in self.tables.values()),
            dims=tuple(table.embedding_dim for table in self.tables.values()),
        )
        weights = {id(table.weight) for table in self.tables.values()}
        self.dense_parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in weights
        }
        _refuse_tied(self.layers)

    def record(self) -> Recording:
        """A recording of one micro-batch, to be used as a context manager."""
        return Recording(self)


class Recording:
    """What one micro-batch left behind.

    The forward pass runs inside the ``with`` block and leaves its per-example losses ``[b]`` in :attr:`losses`.
    After :meth:`pair`, ``tables[t].example`` and ``.row`` name the distinct pairs of table ``t``; after
    :meth:`backward`, :meth:`pair_gradients` and :attr:`linear` give the factors of every per-example gradient.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tables = [TableBatch(table) for table in recorder.tables.values()]
        self._table_index = {name: index for index, name in enumerate(recorder.tables)}
        self._lookup_outputs: list[list[Tensor]] = [[] for _ in self.tables]
        self._linear: dict[str, tuple[LinearFactors, Tensor]] = {}
        self._calls: list[tuple[str, Tensor, int]] = []
        self.linear: list[tuple[LinearFactors, Tensor]] = []
        self.losses = torch.empty(0)
        self._done = False

    def __enter__(self) -> Recording:
        self._handles = []
        for name, layer in self.recorder.layers.items():
            self._handles.append(layer.register_forward_hook(self._hook(name), with_kwargs=True))
        self._trainable = [p for p in self.recorder.model.parameters() if p.requires_grad]
        self._trainable_ids = {id(p) for p in self._trainable}
        for parameter in self._trainable:
            parameter.requires_grad_(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        for parameter in self._trainable:
            parameter.requires_grad_(True)

    def _hook(self, name: str) -> Any:
        def record(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
            inputs = args[0] if args else kwargs["input"]
            if torch.is_grad_enabled() and not output.requires_grad:
                output.requires_grad_(True)
            self._calls.append((name, output, output._version))
            if isinstance(layer, nn.Embedding):
                index = self._table_index[name]
                self.tables[index].lookups.append(Lookup(layer, inputs))
                self._lookup_outputs[index].append(output)
            elif isinstance(layer, nn.Linear):
                if name in self._linear:
                    raise UserError(
                        f"The layer {name} is called twice in one forward pass; the norms of its calls do not add up. "
                        "Use two layers, or freeze it with requires_grad_(False)."
                    )
                self._linear[name] = (LinearFactors(layer, inputs, self._trainable_ids), output)

        return record

    def pair(self) -> None:
        """Find the distinct (example, row) pairs of every table; call after the forward pass.

        Raises:
            UserError: the losses are not one an example, or a layer's first dimension does not count the examples:
                its gradients could not be told apart by example, and clipping would not bound them.
        """
        if self.losses.dim() != 1:
            raise UserError(
                f"The losses have shape {tuple(self.losses.shape)}; a private step needs one an example, of shape "
                "[batch]. Use reduction='none' and average over any other dimension."
            )
        for name, output, _ in self._calls:
            if output.dim() < 2 or len(output) != len(self.losses):
                raise UserError(
                    f"The layer {name} gives {tuple(output.shape)} for {len(self.losses)} examples: its first "
                    "dimension must count the examples. Expand what they share (position ids, say) to the batch."
                )
        for table in self.tables:
            table.pair()

    def backward(self) -> None:
        """Back-propagate the per-example losses to the outputs of all recorded layers, once.

        Raises:
            UserError: a layer's output was changed in place, so its gradient would be that of something else.
        """
        if self._done:
            return
        self._done = True
        for name, output, version in self._calls:
            if output._version != version:
                raise UserError(
                    f"The output of the layer {name} is changed in place (inplace=True in the next layer?); "
                    "its gradient cannot be clipped. Use the out-of-place form."
                )
        outputs = [output for table in self._lookup_outputs for output in table]
        dense = list(self._linear.values())
        everything = outputs + [output for _, output in dense]
        total = self.losses.sum()
        iterator = iter(torch.autograd.grad(total, everything, materialize_grads=True) if everything else ())
        self._lookup_gradients = [[next(iterator) for _ in table] for table in self._lookup_outputs]
        self.linear = [(factors, next(iterator)) for factors, _ in dense]

    def pair_gradients(self, table: int) -> Tensor:
        """Gradient row of each (example, row) pair of a table, ``[p, dim]``; call after :meth:`backward`."""
        return self.tables[table].gradients(self._lookup_gradients[table])


def _supported(name: str, module: nn.Module) -> nn.Embedding | nn.Linear:
    own = {name for name, _ in module.named_parameters(recurse=False)}
    extra = own - {"weight", "bias"} if type(module) in (nn.Linear, nn.Embedding) else own
    advice = "Freeze it with requires_grad_(False), or put a supported layer in its place."
    if type(module) is nn.Linear and not extra:
        return module
    if type(module) is nn.Embedding and not extra:
        if module.max_norm is not None:
            raise UserError(
                f"The table {name} has max_norm={module.max_norm}, which rewrites the rows that a batch touches in "
                "the forward pass, outside the guarantee. Set max_norm=None."
            )
        if module.scale_grad_by_freq:
            raise UserError(
                f"The table {name} has scale_grad_by_freq=True: an example's gradient would depend on the others. "
                "Set it to False."
            )
        return module
    raise UserError(
        f"The layer {name or 'of the model itself'} ({type(module).__name__}) has trainable parameters "
        f"{', '.join(sorted(extra))}, and private steps know the weight and bias of nn.Embedding and nn.Linear only. "
        f"{advice}"
    )


def _refuse_tied(layers: dict[str, nn.Embedding | nn.Linear]) -> None:
    owner: dict[int, str] = {}
    for name, layer in layers.items():
        for parameter in layer.parameters(recurse=False):
            if id(parameter) in owner:
                raise UserError(
                    f"The layers {owner[id(parameter)]} and {name} share a parameter; the norms of tied weights do "
                    "not add up. Untie them, or freeze the shared one."
                )
            owner[id(parameter)] = name
