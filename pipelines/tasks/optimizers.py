"""Optimisers of dense parameters and tables; sparse gradients stay sparse.

All of this is post-processing of a released gradient and costs no privacy.  Dense parameters use any optimiser of
``torch.optim``, or Adam that knows the noise; tables one whose step costs O(rows in the gradient).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.training.optimizers import AdamBC
from pipelines.system.ranges import Rate, Within


@dataclass
class DenseOptimizerConfig:
    """Optimiser of the dense parameters.

    Attributes:
        name: any optimiser of ``torch.optim``, in lower case (adam, adamw, sgd, rmsprop, ...); or adambc, Adam without
            the noise in its second moment (:class:`dpfest.AdamBC`).
        learning_rate: step size.
        options: other keyword arguments, as in +optimizer.dense.options.weight_decay=0.01.
    """

    name: str = "adam"
    learning_rate: Rate = 3e-3
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class TableOptimizerConfig:
    """Optimiser of the embedding tables.

    Attributes:
        name: sgd; adagrad, row-wise (one accumulator per row); adam, whose moments change only in the rows of the
            gradient (unlike dense Adam, and like torch's SparseAdam).
        learning_rate: step size. Gradients are clipped and averaged over the batch, so that under sgd an example moves
            a row by at most ``learning_rate`` times the clipping norm divided by the batch size.
    """

    name: str = "sgd"
    learning_rate: Annotated[float, Within(0, 1e38, above=True)] = 30.0  # a sparse update takes a float32

    def __post_init__(self) -> None:
        if self.name not in TABLE_OPTIMIZERS:
            raise ValueError(f"optimizer.tables.name={self.name} must be one of {', '.join(TABLE_OPTIMIZERS)}")


@dataclass
class OptimizerConfig:
    """Optimisers of the dense parameters and of the embedding tables.

    Attributes:
        schedule: null for constant learning rates; linear for rates that fall from their value to zero over all steps
            of the run (of all days of a stream), which reduces what the noise of the last steps adds to the weights.
        average: share of each period's steps, the last ones (at least one), whose weights are averaged. At the period's
            end the mean replaces the weights: it is evaluated, released, and what the next period of a stream starts
            from; ``train.evaluate_every`` evaluates the current weights. null for the last step's weights. Takes
            time in all rows in each averaged step, and a copy of the trained weights. Not under lazy noise or over
            ranks.
    """

    dense: DenseOptimizerConfig = field(default_factory=DenseOptimizerConfig)
    tables: TableOptimizerConfig = field(default_factory=TableOptimizerConfig)
    schedule: str | None = None
    average: Annotated[float, Within(0, 1, above=True)] | None = None

    def __post_init__(self) -> None:
        if self.schedule not in (None, "linear"):
            raise ValueError(f"optimizer.schedule={self.schedule} must be null or linear")


class RowOptimizer(torch.optim.Optimizer):
    """Steps in the rows of each table's gradient, sparse (coalesced) or dense.

    A row's update, and all that is kept of a row, depend on the gradients of that row alone (``by_row``).

    Args:
        tables: parameters ``[rows, dim]``.
        lr: step size.
    """

    by_row = True

    def __init__(self, tables: Iterable[Tensor], lr: float) -> None:
        super().__init__(tables, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply the gradients; a table without one is unchanged."""
        for group in self.param_groups:
            for table in group["params"]:
                gradient = table.grad
                if gradient is None:
                    continue
                if gradient.is_sparse:
                    rows, values = gradient._indices()[0], gradient._values()
                else:
                    rows, values = slice(None), gradient
                self.apply(table, rows, values, group["lr"])

    def apply(self, table: Tensor, rows: Any, values: Tensor, lr: float) -> None:
        """Move ``table[rows]`` by the gradient ``values``."""
        raise NotImplementedError


class RowAdagrad(RowOptimizer):
    """Adagrad with one accumulator per row, of the mean square of the row's gradient (as in FBGEMM and DLRM)."""

    epsilon = 1e-8

    def apply(self, table: Tensor, rows: Any, values: Tensor, lr: float) -> None:
        state = self.state[table]
        if not state:
            state["sum"] = table.new_zeros(len(table))
        total = state["sum"][rows] + values.square().mean(1)
        state["sum"][rows] = total
        table[rows] -= values * (lr / (total.sqrt() + self.epsilon)).unsqueeze(1)


class RowAdam(RowOptimizer):
    """Adam (Kingma and Ba, 2015) whose moments and step count move only in the rows of the gradient."""

    betas, epsilon = (0.9, 0.999), 1e-8

    def apply(self, table: Tensor, rows: Any, values: Tensor, lr: float) -> None:
        state, (first, second) = self.state[table], self.betas
        if not state:
            state.update(
                mean=torch.zeros_like(table), square=torch.zeros_like(table), steps=table.new_zeros(len(table))
            )
        steps = state["steps"][rows] + 1
        mean = state["mean"][rows].lerp(values, 1 - first)
        square = state["square"][rows].lerp(values.square(), 1 - second)
        for name, value in (("steps", steps), ("mean", mean), ("square", square)):
            state[name][rows] = value
        steps = steps.unsqueeze(1)
        table[rows] -= lr / (1 - first**steps) * mean / ((square / (1 - second**steps)).sqrt() + self.epsilon)


TABLE_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": RowAdagrad,
    "adam": RowAdam,
}


def optimizers(model: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """Return the optimisers of a model's tables and dense parameters, omitting either if the model has none.

    Raises:
        UserError: the dense optimiser does not exist in torch, needs a closure, or does not know an option.
    """
    tables = _tables(model)
    dense = [p for p in model.parameters() if p.requires_grad and p not in tables]
    updates: list[torch.optim.Optimizer] = []
    if tables:
        kind = TABLE_OPTIMIZERS[config.tables.name]
        updates.append(kind(tables, lr=config.tables.learning_rate))  # type: ignore[call-arg]
    if dense:
        updates.append(_dense_optimizer(config.dense, dense))
    return updates


def learning_rates(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, float]:
    """Return the present learning rates of :func:`optimizers`, by name."""
    tables = _tables(model)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {f"learning_rate_{'tables' if group['params'][0] in tables else 'dense'}": group["lr"] for group in groups}


def _tables(model: nn.Module) -> dict[torch.Tensor, None]:
    layers = [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    return {layer.weight: None for layer in layers if layer.weight.requires_grad}


def set_learning_rates(optimizers: Iterable[torch.optim.Optimizer], config: OptimizerConfig, done: float) -> None:
    """Set the learning rates of the next step from the share of all steps that is done.

    They depend on the number of steps alone, and so cost no privacy; a resumed run needs no state to find them.
    """
    if config.schedule is None:
        return
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * (1 - done)


def _dense_optimizer(config: DenseOptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    known = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    known["adambc"] = AdamBC
    if config.name not in known or config.name in ("lbfgs", "sparseadam"):
        choices = ", ".join(sorted(set(known) - {"lbfgs", "sparseadam"}))
        raise UserError(f"optimizer.dense.name={config.name} is not an optimiser for private steps; use {choices}.")
    kind = known[config.name]
    options = dict(config.options)
    if "fused" in inspect.signature(kind).parameters and not {"fused", "foreach", "differentiable"} & options.keys():
        options["fused"] = True  # one pass over the parameters instead of one per operation
    try:
        return kind(parameters, lr=config.learning_rate, **options)  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        raise UserError(f"optimizer.dense.options={config.options} do not fit {config.name}: {error}.") from error
