"""What the paper states of texts in numbers (Ghazi et al., 2023): its tables, as they are printed."""

from __future__ import annotations

LOSSES = (0.001, 0.005, 0.01)
"""Losses of accuracy against DP-SGD at which tab:compare_w_lora and tab:large_vocab state reductions."""

LORA: dict[str, tuple[float, ...]] = {"adafest": (14.59, 53.90, 53.90), "lora_embedding": (5.91, 23.64, 47.28)}
"""tab:compare_w_lora: best reductions on SST-2 with RoBERTa at ε = 1, one a loss."""

LARGE_VOCABULARY: dict[str, tuple[float, ...]] = {
    "RoBERTa on SST-2, 50k rows": LORA["adafest"],
    "XLM-R on XNLI, 250k rows": (17.21, 64.75, 152.94),
}
"""tab:large_vocab: best reductions of DP-AdaFEST at ε = 1, one a loss."""

FROZEN: dict[tuple[str, float | None], dict[str, float]] = {
    ("nonprivate", None): {"sst2": 0.9431, "qnli": 0.9238},
    ("dpsgd", 1.0): {"sst2": 0.9185, "qnli": 0.8349},
    ("frozen", 1.0): {"sst2": 0.9143, "qnli": 0.8311},
    ("dpsgd", 3.0): {"sst2": 0.9243, "qnli": 0.8432},
    ("frozen", 3.0): {"sst2": 0.9151, "qnli": 0.8402},
    ("dpsgd", 8.0): {"sst2": 0.9287, "qnli": 0.8634},
    ("frozen", 8.0): {"sst2": 0.9266, "qnli": 0.8628},
}
"""tab:dp_train_vs_frozen: accuracy by rule and ε, of each task."""
