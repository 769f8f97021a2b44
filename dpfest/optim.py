"""Optimisers that keep a sparse gradient sparse.

All of this is post-processing of a released gradient: nothing here costs privacy.  Dense parameters go to any
``torch.optim`` optimiser; tables to one of three whose step costs O(rows in the gradient).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.engine import NoisedGradient, RowGradient
from dpfest.errors import UserError
from dpfest.rules import positive


@dataclass
class DenseOptimizerConfig:
    """Optimiser of the dense parameters.

    Attributes:
        name: any optimiser of ``torch.optim``, in lower case (adam, adamw, sgd, rmsprop, ...).
        learning_rate: its step size.
        options: its other keyword arguments, as torch names them.
    """

    name: str = "adam"
    learning_rate: float = 3e-3
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        positive("optimizer.dense.learning_rate", self.learning_rate)


@dataclass
class TableOptimizerConfig:
    """Optimiser of the embedding tables.

    Attributes:
        name: sgd; adagrad, row-wise (one accumulator a row); adam, whose moments move only where the gradient has a
            row (and which therefore differs from dense Adam, as torch's SparseAdam does).
        learning_rate: its step size.
    """

    name: str = "sgd"
    learning_rate: float = 30.0

    def __post_init__(self) -> None:
        positive("optimizer.tables.learning_rate", self.learning_rate)
        if self.name not in TABLE_OPTIMIZERS:
            raise ValueError(f"optimizer.tables.name={self.name} must be one of {', '.join(TABLE_OPTIMIZERS)}")


@dataclass
class OptimizerConfig:
    """Both optimisers."""

    dense: DenseOptimizerConfig = field(default_factory=DenseOptimizerConfig)
    tables: TableOptimizerConfig = field(default_factory=TableOptimizerConfig)


class RowSGD:
    """``w[rows] -= lr * g``."""

    def __init__(self, weight: Tensor, learning_rate: float) -> None:
        self.weight, self.learning_rate = weight, learning_rate
        self.state: dict[str, Tensor] = {}

    def step(self, gradient: RowGradient) -> None:
        """Apply one gradient."""
        if gradient.rows is None:
            self.weight.add_(gradient.values, alpha=-self.learning_rate)
        else:
            self.weight.index_add_(0, gradient.rows, gradient.values, alpha=-self.learning_rate)


class RowAdagrad:
    """Adagrad with one accumulator a row, of the mean square of the row's gradient (as in FBGEMM and DLRM)."""

    def __init__(self, weight: Tensor, learning_rate: float, epsilon: float = 1e-8) -> None:
        self.weight, self.learning_rate, self.epsilon = weight, learning_rate, epsilon
        self.state = {"sum": weight.new_zeros(len(weight))}

    def step(self, gradient: RowGradient) -> None:
        """Apply one gradient."""
        rows = slice(None) if gradient.rows is None else gradient.rows
        total = self.state["sum"][rows] + gradient.values.square().mean(1)
        self.state["sum"][rows] = total
        scale = self.learning_rate / (total.sqrt() + self.epsilon)
        self.weight[rows] -= gradient.values * scale.unsqueeze(1)


class RowAdam:
    """Adam (Kingma and Ba, 2015) whose moments and step count move only in the rows of the gradient."""

    def __init__(
        self, weight: Tensor, learning_rate: float, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8
    ) -> None:
        self.weight, self.learning_rate, self.betas, self.epsilon = weight, learning_rate, betas, epsilon
        self.state = {
            "mean": torch.zeros_like(weight),
            "square": torch.zeros_like(weight),
            "steps": weight.new_zeros(len(weight)),
        }

    def step(self, gradient: RowGradient) -> None:
        """Apply one gradient."""
        rows = slice(None) if gradient.rows is None else gradient.rows
        first, second = self.betas
        steps = self.state["steps"][rows] + 1
        mean = self.state["mean"][rows].lerp(gradient.values, 1 - first)
        square = self.state["square"][rows].lerp(gradient.values.square(), 1 - second)
        for name, value in (("steps", steps), ("mean", mean), ("square", square)):
            self.state[name][rows] = value
        steps = steps.unsqueeze(1)
        deviation = (square / (1 - second**steps)).sqrt() + self.epsilon
        self.weight[rows] -= self.learning_rate / (1 - first**steps) * mean / deviation


TABLE_OPTIMIZERS: dict[str, type[RowSGD | RowAdagrad | RowAdam]] = {
    "sgd": RowSGD,
    "adagrad": RowAdagrad,
    "adam": RowAdam,
}


class Optimizer:
    """Applies noised gradients to a model.

    Args:
        model: the model that the gradients are of.
        tables: its embedding tables, in the order of the engine's layout.
        dense_parameters: its trainable dense parameters by name.
        config: both optimisers' settings.

    Raises:
        UserError: the dense optimiser does not exist in torch, needs a closure, or does not know an option.
    """

    def __init__(
        self, tables: dict[str, nn.Embedding], dense_parameters: dict[str, nn.Parameter], config: OptimizerConfig
    ) -> None:
        self.dense_parameters = dense_parameters
        kind = TABLE_OPTIMIZERS[config.tables.name]
        self.tables = {name: kind(table.weight.detach(), config.tables.learning_rate) for name, table in tables.items()}
        self.dense = _dense_optimizer(config.dense, list(dense_parameters.values()))

    def step(self, gradient: NoisedGradient) -> None:
        """Apply one gradient."""
        for name, parameter in self.dense_parameters.items():
            parameter.grad = gradient.dense[name]
        if self.dense is not None:
            self.dense.step()
        for parameter in self.dense_parameters.values():
            parameter.grad = None
        for table, rows in zip(self.tables.values(), gradient.tables, strict=True):
            table.step(rows)

    def state_dict(self) -> dict[str, Any]:
        """State of both optimisers; holds tensors and plain values only."""
        return {
            "dense": self.dense.state_dict() if self.dense is not None else {},
            "tables": {name: dict(table.state) for name, table in self.tables.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        if self.dense is not None:
            self.dense.load_state_dict(state["dense"])
        for name, table in self.tables.items():
            for key, value in state["tables"][name].items():
                table.state[key].copy_(value)


def _dense_optimizer(config: DenseOptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
    if not parameters:
        return None
    known = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    if config.name not in known or config.name in ("lbfgs", "sparseadam"):
        choices = ", ".join(sorted(set(known) - {"lbfgs", "sparseadam"}))
        raise UserError(f"optimizer.dense.name={config.name} is not an optimiser for private steps; use {choices}.")
    try:
        return known[config.name](parameters, lr=config.learning_rate, **config.options)  # type: ignore[call-arg]
    except TypeError as error:
        raise UserError(
            f"optimizer.dense.options={config.options} do not fit torch's {config.name}: {error}."
        ) from error
