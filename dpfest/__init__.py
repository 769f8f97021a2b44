"""Sparsity-preserving differentially private training of models with large embedding tables.

The guarantee rests on this package alone. The names below are the public interface; each is imported on first use, so
that ``import dpfest`` is quick.
"""

from importlib import import_module as _import_module
from typing import Any

_HOME = {
    "accounting": ("Event",),
    "algorithm": ("Algorithm", "PrivateAlgorithm"),
    "algorithms": ("DPSGD", "FEST", "AdaFEST", "AdaFESTPlus", "Exponential", "Frozen", "Threshold"),
    "batches": ("PoissonBatches",),
    "engine": ("PrivateEngine",),
    "errors": ("UserError",),
    "ledger": ("BudgetExceeded", "Ledger"),
    "noise": ("NoiseKey",),
    "private": ("make_private",),
    "optimizers": ("AdamBC",),
    "parts": ("Diagnostics", "NoisedGradient", "RowGradient", "Rows", "RowSums", "Shard"),
    "periods": ("Period", "training_steps"),
    "privacy_plan": ("PrivacyPlan", "plan", "threshold_for"),
    "reading": ("Batch", "DatasetReader", "MicroBatch"),
    "search": ("Best", "SearchPlan", "plan_search", "select_best"),
    "search_law": ("Search",),
    "selection": ("select",),
    "tables": ("parameter_groups",),
    "topk": ("Selection", "SelectionConfig", "select_rows"),
    "training": ("PrivateTraining", "Step"),
    "trial": ("validate",),
    "units": ("UnitConfig", "Units"),
    "unproven": ("Nonprivate", "ShuffledBatches"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dpfest' has no attribute {name!r}")
    return getattr(_import_module(f"dpfest.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
