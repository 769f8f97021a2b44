"""Layers for models with many embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import _get_current_function_mode_stack

from dpfest import devices

OBSERVER = -1
"""Place, among a layer's hooks, of those that observe it in a private step; PyTorch numbers others from 0."""


class Tables(nn.ModuleList):
    """Embedding tables of a model, one for each column of ids, and their look-ups as a forward pass.

    It is the ``nn.ModuleList`` of its tables, with their parameters and state names, and computes what they compute one
    by one. In a private step on a GPU whose kernels serve (:mod:`dpfest.device`), the look-ups of all take one launch,
    where a model of 26 features would else start 26 operations that are each shorter than their start.

        self.tables = dpfest.Tables(nn.Embedding(rows, 16) for rows in vocabularies)
        ...
        embedded = torch.cat(self.tables(ids.unbind(1)), 1)  # [b, 16 * features]

    It is made of ``nn.Embedding``, or of any layers that take ids.
    """

    def forward(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Return each table's output for its own column.

        Args:
            columns: ids for each table, integers of any shape ``[...]``, often ``[b]`` or ``[b, length]``.

        Returns:
            Of each table, ``[..., dim]``.
        """
        look_up = self._together(columns)
        if look_up is None:
            return [table(ids) for table, ids in zip(self, columns, strict=True)]
        for table, ids in zip(self, columns, strict=True):
            for observe in table._forward_pre_hooks.values():
                observe(table, (ids,), {})
        outputs = look_up([table.weight for table in self], columns)
        for table, ids, output in zip(self, columns, outputs, strict=True):
            for observe in table._forward_hooks.values():
                observe(table, (ids,), {}, output)
        return outputs

    def _together(self, columns: Sequence[Tensor]) -> Callable[..., list[Tensor]] | None:
        """Return what looks all tables up at once; None where each does so by itself.

        That is outside of a private step, whose look-ups are checked for ids that a table lacks; where a table does
        more than look up; and where somebody else observes tables or functions.
        """
        parts = devices.serving(*columns)
        if parts is None or _has_any_global_hook() or _get_current_function_mode_stack():
            return None
        plain = all(type(table) is nn.Embedding and table.max_norm is None and _observed(table) for table in self)
        return parts.look_up_together if plain and parts.reads([table.weight for table in self]) else None


def _observed(layer: nn.Module) -> bool:
    """Return whether a private step observes a layer, and nobody else does."""
    return (
        list(layer._forward_hooks) == [OBSERVER] == list(layer._forward_pre_hooks)
        and not layer._backward_hooks
        and not layer._backward_pre_hooks
    )
