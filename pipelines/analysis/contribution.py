"""Section `contribution`: the effect of clipping contribution maps of texts, by C₁ and threshold.

An example's map is one at each of its distinct tokens, so its norm is the square root of their number. DP-AdaFEST clips
it to C₁ and adds noise of standard deviation C₁σ₁; σ₁ and the noise ratio follow from the configured run. Over BATCHES
Poisson batches, the section reports:

- for each of CLIPPING_NORMS and REDUCTIONS, at the threshold with that expected reduction: the share of look-ups whose
  row survives, which compares clipping norms at equal sparsity;
- for the paper's grid as written: the survivors and the same share.

Expectations over the noise are exact. These are diagnostics of the data, not a release: nothing here is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from dpfest.algorithms import AdaFEST
from dpfest.batches import PoissonBatches
from dpfest.errors import UserError
from dpfest.noise import NoiseKey
from dpfest.survivors import Contributions
from pipelines.bench.records import Record
from pipelines.budget import planned
from pipelines.config.settings import Config
from pipelines.data.dataset import Dataset
from pipelines.data.rows import TextRows
from pipelines.preprocess import preprocess
from pipelines.system.progress import progress

BATCHES = 5
CLIPPING_NORMS = (1.0, 2.0, 4.0, 8.0, 50.0, 100.0, 500.0)
REDUCTIONS = (2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
PAPER_CLIPPING_NORMS = (50.0, 100.0, 500.0)
PAPER_THRESHOLDS = (50.0, 100.0, 200.0, 500.0, 1000.0)
AT_REDUCTION, AS_PRINTED = "equal reduction", "the paper's grid"


@dataclass(frozen=True)
class Expected:
    """Expected survivors, averaged over batches.

    Attributes:
        threshold: τ.
        survivors: surviving rows, touched or not.
        kept: share of all look-ups whose row survives.
        touched: share of the survivors that the batch touched.
        clipped: share of the examples whose map is longer than C₁.
    """

    threshold: float
    survivors: float
    kept: float
    touched: float
    clipped: float


class ContributionMap:
    """The contribution map of one batch of texts, over the rows of a word embedding.

    Args:
        texts: the batch.
        rows: number of rows of the embedding.
    """

    def __init__(self, texts: TextRows, rows: int) -> None:
        example, place = np.nonzero(np.arange(texts.ids.shape[1]) < texts.lengths[:, None])
        pairs = np.unique(example * rows + texts.ids[example, place])
        touched, row_of, counts = np.unique(pairs % rows, return_inverse=True, return_counts=True)
        parts = [torch.from_numpy(part.astype(np.int64)) for part in (touched, row_of, pairs // rows)]
        self.contributions = Contributions(parts[0], parts[1], parts[2], len(texts))
        self.counts, self.untouched = counts, rows - len(touched)
        self.norms = np.sqrt(np.bincount(pairs // rows, minlength=len(texts)))

    def expected(self, clipping_norm: float, deviation: float, threshold: float) -> Expected:
        """Return expected survivors of the map clipped to `clipping_norm`, for noise of this standard deviation."""
        chance, other = self._chances(clipping_norm, deviation, threshold)
        survivors = chance.sum() + other
        return Expected(
            threshold,
            float(survivors),
            float(chance @ self.counts / max(self.counts.sum(), 1)),
            float(chance.sum() / survivors) if survivors else 0.0,
            float((self.norms > clipping_norm * (1 + 1e-9)).mean()) if len(self.norms) else 0.0,
        )

    def threshold(self, clipping_norm: float, deviation: float, survivors: float) -> float:
        """Return the threshold at which this number of rows is expected to survive."""
        most = float(self.contributions.clipped(clipping_norm).max()) if len(self.counts) else 0.0
        return brentq(
            lambda tau: self.expected(clipping_norm, deviation, tau).survivors - survivors,
            -40 * deviation,
            most + 40 * deviation,
            xtol=1e-6 * deviation,
        )

    def _chances(self, clipping_norm: float, deviation: float, threshold: float) -> tuple[NDArray[np.float64], float]:
        """Return the survival probability of each touched row, and the expected number of untouched survivors."""
        sums = self.contributions.clipped(clipping_norm).numpy()
        return ndtr((sums - threshold) / deviation), self.untouched * float(ndtr(-threshold / deviation))


def bench(config: Config, repeats: int) -> list[Record]:
    """Return a record per C₁ and reduction, and per setting of the paper's grid; nothing is timed or repeated."""
    algorithm = config.algorithm
    if not isinstance(algorithm, AdaFEST) or algorithm.selection is not None:
        raise UserError("dpfest bench contribution measures DP-AdaFEST's maps: use algorithm=adafest.")
    dataset = Dataset.open(preprocess(config))
    rows = dataset.vocabulary_sizes[0]
    plan = planned(config, dataset.examples, dataset.vocabulary_sizes)
    noise = plan.map_noise_multiplier
    assert noise is not None
    draws = PoissonBatches(dataset.examples, plan.batch_size, NoiseKey.from_seed(config.seed, "contribution"))
    train = dataset.split("train")
    maps = [ContributionMap(train.gather(draws.indices(number)), rows) for number in range(BATCHES)]
    norms = np.quantile(np.concatenate([each.norms for each in maps]), [0.0, 0.5, 1.0])
    settings = [(AT_REDUCTION, norm, reduction) for reduction in REDUCTIONS for norm in CLIPPING_NORMS]
    settings += [(AS_PRINTED, norm, threshold) for norm in PAPER_CLIPPING_NORMS for threshold in PAPER_THRESHOLDS]
    records = []
    with progress("contribution") as report:
        for place, (way, norm, value) in enumerate(settings, 1):
            at = [
                each.expected(
                    norm,
                    norm * noise,
                    each.threshold(norm, norm * noise, rows / value) if way == AT_REDUCTION else value,
                )
                for each in maps
            ]
            mean = _mean(at)
            records.append(
                Record(
                    section="contribution",
                    case=f"{config.data.name}, {plan.steps} steps at epsilon {plan.target_epsilon:g}: {way}",
                    competitor=f"C1 {norm:g}, " + (f"{value:g}x" if way == AT_REDUCTION else f"threshold {value:g}"),
                    reference="",
                    table_rows=rows,
                    batch_size=plan.batch_size,
                    values={
                        "in_papers_grid": way == AS_PRINTED,
                        "contribution_clipping_norm": norm,
                        "noise_ratio": algorithm.noise_ratio,
                        "epsilon": plan.target_epsilon,
                        "steps": plan.steps,
                        "map_noise_multiplier": noise,
                        "shortest_map": float(norms[0]),
                        "median_map": float(norms[1]),
                        "longest_map": float(norms[2]),
                        "reduction": rows / mean.survivors if mean.survivors else None,
                        "threshold": mean.threshold,
                        "kept": mean.kept,
                        "touched": mean.touched,
                        "clipped": mean.clipped,
                    },
                    note=f"τ {mean.threshold:.4g}: {mean.survivors:,.1f} rows survive, {mean.touched:.3f} of them "
                    f"touched; {mean.kept:.3f} of look-ups kept; {mean.clipped:.0%} of maps clipped",
                )
            )
            report(place, len(settings), "")
    return records


def _mean(expectations: Sequence[Expected]) -> Expected:
    return Expected(*np.mean([astuple(each) for each in expectations], axis=0).tolist())
