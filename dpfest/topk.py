"""Differentially private choice of the k most frequent embedding rows, before training.

Every example touches at most `rows_per_example` distinct rows of each of p features (1 where a feature holds
one category). k is split as the paper splits it: int(k / p) rows a feature, capped by its vocabulary; what a
cap leaves over is not spent elsewhere. Four mechanisms, all of them with top-k as post-processing of noisy
counts:

- gaussian: one Gaussian on the joint histogram of all features. One example more or less moves it by at most
  sqrt(p * rows_per_example) in l2, so noise of standard deviation noise_multiplier * sqrt(p *
  rows_per_example) is a Gaussian mechanism of that multiplier, at any k.
- laplace: Laplace noise of scale rows_per_example / (epsilon/p) on each feature's histogram, whose
  l1-sensitivity is rows_per_example: (epsilon/p, 0)-DP a feature at any k.
- gumbel: the paper's Algorithm 2, Gumbel noise of scale 1 / (epsilon/p), the k largest at once. It is the
  same law as drawing k rows one after another, each by the exponential mechanism at epsilon/p on counts that
  one example moves by at most 1 in one direction (Durfee and Rogers 2019, Lemma 4.2), so it costs k such
  draws. The paper claims one: true for k = 1 only. For larger k, "the row that leads by far is left out" has
  a probability ratio that approaches exp(k * epsilon/p) between neighbours.
- public: the counts come from public data; nothing is spent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfest.accounting import Event, GaussianEvent, LaplaceEvent, PureEvent
from dpfest.errors import UserError

MECHANISMS = ("gaussian", "laplace", "gumbel", "public")


@dataclass
class SelectionConfig:
    """How rows are selected before training (`algorithm.selection`).

    Attributes:
      mechanism: gaussian, laplace, gumbel (the paper's) or public.
      rows: k, over all features.
      noise_multiplier: of `gaussian`: noise over the joint l2-sensitivity.
      epsilon: of `laplace` and `gumbel`: over all features, as the paper states it.
      prior: of `public`: where the public counts are (a .npy file of all tables' counts end to end).

    Raises:
      ValueError: a value is out of range; the text names the key.
    """

    mechanism: str = "gaussian"
    rows: int = 10000
    noise_multiplier: float = 20.0
    epsilon: float = 0.01
    prior: str | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(
                f"algorithm.selection.mechanism={self.mechanism} is not one of {', '.join(MECHANISMS)}"
            )
        if self.rows < 1:
            raise ValueError(f"algorithm.selection.rows={self.rows} must be at least 1")
        for key in ("noise_multiplier", "epsilon"):
            if not 0 < getattr(self, key) < math.inf:
                raise ValueError(
                    f"algorithm.selection.{key}={getattr(self, key)} must be positive and finite"
                )
        if (self.mechanism == "public") != (self.prior is not None):
            raise ValueError(
                f"algorithm.selection.prior={self.prior} does not go with "
                f"algorithm.selection.mechanism={self.mechanism}: public needs the path of public counts, "
                "and the other mechanisms count the training data"
            )


@dataclass(frozen=True)
class Selection:
    """Rows selected: sorted distinct global ids, int64 [s]; how many of each feature; what they cost."""

    rows: NDArray[np.int64]
    rows_per_feature: list[int]
    events: list[Event]


def rows_per_feature(selection: SelectionConfig, vocabulary_sizes: Sequence[int]) -> list[int]:
    """int(k / p) rows of each of p features, capped by its vocabulary."""
    share = selection.rows // len(vocabulary_sizes)
    if share == 0:
        raise UserError(
            f"algorithm.selection.rows={selection.rows} leaves no row to each of the "
            f"{len(vocabulary_sizes)} features: ask for at least {len(vocabulary_sizes)}."
        )
    return [min(share, size) for size in vocabulary_sizes]


def selection_events(selection: SelectionConfig, vocabulary_sizes: Sequence[int]) -> list[Event]:
    """What `select_rows` spends on tables of these sizes, before it is run."""
    features = len(vocabulary_sizes)
    if selection.mechanism == "gaussian":
        return [GaussianEvent(what="row selection", noise_multiplier=selection.noise_multiplier)]
    if selection.mechanism == "laplace":
        scale = features / selection.epsilon
        return [LaplaceEvent(what="row selection", noise_multiplier=scale, count=features)]
    if selection.mechanism == "gumbel":
        return [
            PureEvent(
                what="row selection",
                epsilon=selection.epsilon / features,
                draws=sum(rows_per_feature(selection, vocabulary_sizes)),
                claimed_epsilon=selection.epsilon,
            )
        ]
    return []


def select_rows(
    histograms: Sequence[NDArray[np.integer]],
    selection: SelectionConfig,
    generator: np.random.Generator,
    *,
    rows_per_example: int = 1,
) -> Selection:
    """The most frequent rows, privately.

    Formal guarantee: the release of `Selection.rows` is dominated by the composition of `Selection.events`,
    for neighbours that differ in one example more or less.

    Args:
      histograms: of each feature, in how many training examples each row occurs, shape (V_f,); for `public`,
        the public counts.
      selection: the mechanism and its settings.
      generator: of the noise; secret for as long as the guarantee is to hold.
      rows_per_example: the most distinct rows of one feature that one example is counted in.

    Raises:
      UserError: fewer rows are asked for than there are features.
    """
    sizes = [len(counts) for counts in histograms]
    shares = rows_per_feature(selection, sizes)
    noisy: list[NDArray]
    if selection.mechanism == "gaussian":
        deviation = selection.noise_multiplier * math.sqrt(len(sizes) * rows_per_example)
        noisy = [counts + generator.normal(0.0, deviation, len(counts)) for counts in histograms]
    elif selection.mechanism == "laplace":
        scale = rows_per_example * len(sizes) / selection.epsilon
        noisy = [counts + generator.laplace(0.0, scale, len(counts)) for counts in histograms]
    elif selection.mechanism == "gumbel":
        scale = len(sizes) / selection.epsilon
        noisy = [counts + generator.gumbel(0.0, scale, len(counts)) for counts in histograms]
    else:
        # Unsigned counts would wrap around below.
        noisy = [np.asarray(counts, dtype=np.float64) for counts in histograms]
    offsets = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    # A stable sort: equal (public) counts go to the lower id.
    chosen = [
        offset + np.sort(np.argsort(-counts, kind="stable")[:share])
        for offset, counts, share in zip(offsets, noisy, shares, strict=True)
    ]
    return Selection(np.concatenate(chosen).astype(np.int64), shares, selection_events(selection, sizes))
