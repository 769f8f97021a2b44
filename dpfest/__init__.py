"""Sparsity-preserving differentially private training of models with large embedding tables.

Everything on which the guarantee rests is in this package.  What is named here is the public interface; it is
imported when first used, so that ``import dpfest`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfest.batches import PoissonBatches, ShuffledBatches
    from dpfest.budget import Budget, plan, training_steps
    from dpfest.engine import NoisedGradient, PrivateEngine, RowGradient
    from dpfest.errors import UserError
    from dpfest.ledger import BudgetExceeded, Ledger
    from dpfest.noise import NoiseKey
    from dpfest.optim import DenseOptimizerConfig, Optimizer, OptimizerConfig, TableOptimizerConfig
    from dpfest.privacy import PrivacyConfig
    from dpfest.rules import DPSGD, FEST, AdaFEST, AdaFESTPlus, Exponential, Frozen, Nonprivate
    from dpfest.topk import SelectionConfig, select_rows

_HOME = {
    "batches": ("PoissonBatches", "ShuffledBatches"),
    "budget": ("Budget", "plan", "training_steps"),
    "engine": ("NoisedGradient", "PrivateEngine", "RowGradient"),
    "errors": ("UserError",),
    "ledger": ("BudgetExceeded", "Ledger"),
    "noise": ("NoiseKey",),
    "optim": ("DenseOptimizerConfig", "Optimizer", "OptimizerConfig", "TableOptimizerConfig"),
    "privacy": ("PrivacyConfig",),
    "rules": ("DPSGD", "FEST", "AdaFEST", "AdaFESTPlus", "Exponential", "Frozen", "Nonprivate"),
    "topk": ("SelectionConfig", "select_rows"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "DPSGD",
    "FEST",
    "AdaFEST",
    "AdaFESTPlus",
    "Budget",
    "BudgetExceeded",
    "DenseOptimizerConfig",
    "Exponential",
    "Frozen",
    "Ledger",
    "NoiseKey",
    "NoisedGradient",
    "Nonprivate",
    "Optimizer",
    "OptimizerConfig",
    "PoissonBatches",
    "PrivacyConfig",
    "PrivateEngine",
    "RowGradient",
    "SelectionConfig",
    "ShuffledBatches",
    "TableOptimizerConfig",
    "UserError",
    "plan",
    "select_rows",
    "training_steps",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dpfest' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dpfest.{_MODULE_OF[name]}"), name)
