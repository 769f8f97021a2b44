"""Runs on texts in the form of the contract, for tests of the report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tests.reports.synthetic import write_run

WIDTH = 768


def write_text_run(
    runs: Path,
    algorithm: str,
    *,
    test: float,
    validation: float | None = None,
    reduction: float | None,
    rows: int = 50_265,
    **more: Any,
) -> None:
    """One run of a word embedding of so many rows; a reduction of None is one without an embedding gradient."""
    parameters = rows * WIDTH
    if reduction == math.inf:
        reduction = None  # as a summary has it
    coordinates = 0.0 if reduction is None else parameters / reduction
    table = {"name": "word_embeddings", "rows": rows, "dim": WIDTH, "rows_mean": coordinates / WIDTH}
    validation = test if validation is None else validation
    values = {"value": test, "validation": validation, "standard_error": 0.01, "validation_standard_error": 0.01}
    write_run(
        runs,
        algorithm,
        test=test,
        model="roberta",
        utility={"metric": "accuracy", "split": "test", **values},
        embedding_gradient={
            "parameters": parameters,
            "coordinates_mean": coordinates,
            "reduction": reduction,
            "tables": [table],
        },
        **more,
    )


def write_texts(runs: Path, dataset: str = "sst2", rows: int = 50_265) -> None:
    """A comparison on texts in which all that the paper says of them is so."""
    shared: dict[str, Any] = {"dataset": dataset, "rows": rows}
    write_text_run(runs, "nonprivate", test=0.94, reduction=40, epsilon=None, **shared)
    for epsilon, gain in ((1.0, 0.0), (3.0, 0.01), (8.0, 0.015)):
        at = {"epsilon": epsilon, **shared}
        write_text_run(runs, "dpsgd", test=0.918 + gain, reduction=1, **at)
        write_text_run(runs, "frozen", test=0.880 + gain, reduction=None, **at)
        write_text_run(runs, "fest", test=0.915 + gain, reduction=10, **at)
        write_text_run(runs, "adafest_plus", test=0.915 + gain, reduction=20, **at)
        write_text_run(runs, "exponential", test=0.905 + gain, reduction=5, **at)
        for ratio in (1.0, 5.0):
            for threshold, loss, reduction in ((50.0, 0.0005, 14.0), (500.0, 0.004, 55.0)):
                settings = {"noise_ratio": ratio, "threshold": threshold}
                write_text_run(
                    runs, "adafest", test=0.918 + gain - loss, reduction=reduction * rows / 5e4, settings=settings, **at
                )
        for rank, loss in ((64, 0.0008), (16, 0.003), (4, 0.009)):
            reduction = rows * WIDTH / (rank * (rows + WIDTH))
            test = 0.918 + gain - loss
            write_text_run(runs, "lora_embedding", test=test, reduction=reduction, settings={"rank": rank}, **at)
