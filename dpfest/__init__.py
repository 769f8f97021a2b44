"""Sparsity-preserving differentially private training of models with large embedding tables.

The guarantee rests on this package alone. The names below are the public interface; each is imported on first use, so
that ``import dpfest`` is quick.
"""

from importlib import import_module as _import_module
from typing import Any

_HOME = {
    "accounting.accountant": ("Event",),
    "algorithms.algorithm": ("Algorithm", "PrivateAlgorithm"),
    "algorithms.rules": ("DPSGD", "FEST", "Frozen", "Threshold"),
    "algorithms.adafest": ("AdaFEST", "AdaFESTPlus"),
    "algorithms.exponential": ("Exponential",),
    "planning.sampling": ("PoissonBatches",),
    "step.engine": ("PrivateEngine",),
    "errors": ("UserError",),
    "planning.ledger": ("BudgetExceeded", "Ledger"),
    "nn": ("Tables",),
    "noise.key": ("NoiseKey",),
    "training.private": ("make_private",),
    "training.optimizers": ("AdamBC",),
    "gradients.parts": ("Diagnostics", "NoisedGradient", "RowGradient", "Rows", "RowSums", "Shard"),
    "planning.periods": ("Period",),
    "planning.plan": ("plan", "training_steps"),
    "planning.privacy_plan": ("PrivacyPlan",),
    "planning.seen": ("threshold_for",),
    "gradients.reading": ("Batch", "DatasetReader", "MicroBatch"),
    "planning.search": ("Best", "SearchPlan", "plan_search", "select_best"),
    "planning.search_law": ("Search",),
    "training.histogram": ("select",),
    "gradients.tables": ("parameter_groups",),
    "selection.topk": ("Selection", "SelectionConfig", "select_rows"),
    "selection.vocabulary": ("OpenVocabulary",),
    "training.loop": ("PrivateTraining", "Step"),
    "training.trial": ("validate",),
    "gradients.units": ("UnitConfig", "Units"),
    "planning.unproven": ("Nonprivate", "ShuffledBatches"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dpfest' has no attribute {name!r}")
    return getattr(_import_module(f"dpfest.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
