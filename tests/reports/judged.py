"""Runs of a given loss and reduction, and what the register says of them, for tests of claims."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from reports.claims.register import CLAIMS, judge
from reports.comparison import populations
from reports.entry import Inputs
from reports.reading import load_runs
from tests.reports.synthetic import PARAMETERS, write_run
from tests.reports.synthetic_texts import write_text_run

WOBBLE = (0.0002, -0.0001, -0.0001)
"""What training again does to the utility, by seed."""

Spec = tuple[str, dict[str, Any], float, float]
"""Algorithm, its settings, its loss against 0.72, its reduction."""

BASE: list[Spec] = [("dpsgd", {}, 0.0, 1.0), ("frozen", {}, 0.03, float("inf"))]


def fest(k: int, loss: float, reduction: float, source: str | None = None) -> Spec:
    return "fest", {"selection": {"mechanism": "gaussian", "rows": k, "source": source}}, loss, reduction


def adafest(threshold: float, loss: float, reduction: float, ratio: float = 5.0) -> Spec:
    return "adafest", {"threshold": threshold, "noise_ratio": ratio}, loss, reduction


def plus(threshold: float, loss: float, reduction: float) -> Spec:
    return "adafest_plus", {"threshold": threshold, "selection": {"rows": 3000, "source": None}}, loss, reduction


def grid(*cells: tuple[float, float, float, float]) -> list[Spec]:
    """DP-AdaFEST by (σ₁/σ₂, τ, loss, reduction)."""
    return [adafest(threshold, loss, reduction, ratio) for ratio, threshold, loss, reduction in cells]


def write(runs: Path, specs: list[Spec], seeds: tuple[int, ...] = (0, 1, 2), **shared: Any) -> None:
    for (algorithm, settings, loss, reduction), seed in itertools.product(specs, seeds):
        test = 0.72 - loss + WOBBLE[seed]
        write_run(
            runs, algorithm, test=test, coordinates=PARAMETERS / reduction, settings=settings, seed=seed,
            **shared | ({"epsilon": None} if algorithm == "nonprivate" else {}),
        )  # fmt: skip


def write_texts(runs: Path, specs: list[Spec], dataset: str = "sst2", tokens: int = 50_265, **shared: Any) -> None:
    for (algorithm, settings, loss, reduction), seed in itertools.product(specs, (0, 1, 2)):
        write_text_run(
            runs, algorithm, test=0.92 - loss + WOBBLE[seed], reduction=reduction, rows=tokens, settings=settings,
            seed=seed, dataset=dataset, **shared,
        )  # fmt: skip


def write_periods(runs: Path, private: tuple[float, ...], public: tuple[float, ...], specs: list[Spec]) -> None:
    """Streams of 1, 4 and 18 days: losses of DP-SGD and without privacy by period, and others against that DP-SGD."""
    for days, lost, unmoved in zip((1, 4, 18), private, public, strict=True):
        shared = {"dataset": "nycflights_stream", "period": days}
        write(runs, [("nonprivate", {}, unmoved - 0.06, 50.0)], **shared)
        write(runs, [(name, settings, loss + lost, cut) for name, settings, loss, cut in [*BASE, *specs]], **shared)


def found(runs: Path, claim: str) -> dict[str, Any]:
    """One claim, judged on these runs."""
    (one,) = [c for c in CLAIMS if c.id == claim]
    judged = one.judged(Inputs(populations(load_runs(runs)[0]), runs))
    assert judged is not None
    return judged


def named(judged: list[dict[str, Any]], claim: str) -> dict[str, Any]:
    (one,) = [c for c in judged if c["id"] == claim]
    return one


def verdicts(runs: Path, report: Path | None = None) -> dict[str, str]:
    judged = judge(Inputs(populations(load_runs(runs)[0]), report or runs))
    for claim in judged:  # sentences on one line
        assert claim["evidence"].endswith(".") and not set("\n{}") & set(claim["evidence"]), claim["evidence"]
        assert "  " not in claim["evidence"] and ".." not in claim["evidence"], claim["evidence"]
    return {claim["id"]: claim["verdict"] for claim in judged}


FEW, MANY = (fest(300, 0.03, 900.0), fest(3000, 0.002, 90.0)), (adafest(50, 0.03, 50_000.0), adafest(5, 0.002, 5_000.0))


def drawn(loss: float, reduction: float) -> list[Spec]:
    """Exponential selection with a loss, and one that cuts more and loses much."""
    return [
        ("exponential", {"rows_per_step": rows}, lost, cut)
        for rows, lost, cut in ((100, loss, reduction), (2, 0.03, 9e5))
    ]
