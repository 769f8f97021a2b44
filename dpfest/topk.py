"""Differentially private choice of the k most frequent embedding rows, before training.

Every example touches at most `rows_per_example` (r) distinct rows of each of p features (1 where a feature holds one
category). k is split as the paper splits it, int(k / p) rows a feature, capped by its vocabulary. Top-k is always
post-processing of noisy counts:

- gaussian: one Gaussian on the joint histogram of all features, which one example moves by at most sqrt(p r) in l2:
  noise of noise_multiplier times that is a Gaussian mechanism of that multiplier, at any k.
- laplace: noise of scale r / (epsilon/p) on each feature's histogram, whose l1-sensitivity is r: (epsilon/p, 0)-DP a
  feature at any k, least private where one row takes all of r (log-concave noise: Awan and Dong 2022).
- gumbel: the paper's Algorithm 2, Gumbel noise of scale 1 / (epsilon/p), the k largest at once: the law of drawing k
  rows one after another, each by the exponential mechanism at epsilon/p on counts that one example moves by at most 1
  in one direction (Durfee and Rogers 2019, Lemma 4.2), so it costs k such draws. The paper claims one: true for k = 1
  only. For larger k, "the row that leads by far is left out" has a probability ratio near exp(k * epsilon/p).
- public: the counts come from public data; nothing is spent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfest.accounting import Event
from dpfest.errors import UserError

MECHANISMS = ("gaussian", "laplace", "gumbel", "public")
SOURCES = ("first_day", "all_days", "streaming")


@dataclass(frozen=True)
class SelectionConfig:
    """How rows are selected before training (an algorithm's `selection`).

    Attributes:
      mechanism: gaussian, laplace, gumbel (the paper's) or public.
      rows: k, over all features.
      noise_multiplier: of `gaussian`: noise over the joint l2-sensitivity.
      epsilon: of `laplace` and `gumbel`: over all features, as the paper states it.
      prior: of `public`: where the public counts are (a .npy file of all tables' counts end to end).
      source: in a stream, the days whose examples are counted (see `dpfest.privacy_plan`); None elsewhere.

    Raises:
      ValueError: a value out of range, by its name; one that protects no one would fill the memory with its losses.
    """

    mechanism: str = "gaussian"
    rows: int = 10000
    noise_multiplier: float = 20.0
    epsilon: float = 0.01
    prior: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        def require(right: bool, key: str, rule: str) -> None:
            if not right:
                raise ValueError(f"{key}={getattr(self, key)} must be {rule}")

        require(self.mechanism in MECHANISMS, "mechanism", f"one of {', '.join(MECHANISMS)}")
        require(self.rows >= 1, "rows", "at least 1")
        require(0.1 <= self.noise_multiplier < math.inf, "noise_multiplier", "finite and at least 0.1: less hides none")
        require(0 < self.epsilon <= 100, "epsilon", "above 0 and at most 100: more hides none")
        rule = "the path of public counts for mechanism=public, and null for all others"
        require((self.mechanism == "public") == (self.prior is not None), "prior", rule)
        require(self.source is None or self.source in SOURCES, "source", f"one of {', '.join(SOURCES)}, or null")


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
        least = len(vocabulary_sizes)
        raise UserError(f"selection.rows={selection.rows} must be at least {least}, one for each feature.")
    return [min(share, size) for size in vocabulary_sizes]


def selection_events(selection: SelectionConfig, vocabulary_sizes: Sequence[int]) -> list[Event]:
    """What `select_rows` spends on tables of these sizes, before it is run."""
    return _mechanism(selection, rows_per_feature(selection, vocabulary_sizes), 1)[2]


def _mechanism(
    selection: SelectionConfig, shares: Sequence[int], rows_per_example: int
) -> tuple[str, float, list[Event]]:
    """The noise on a count (numpy's name of its law, and its scale), and what all of it spends."""
    features, what = len(shares), "row selection"
    share, sigma = selection.epsilon / features, selection.noise_multiplier
    if selection.mechanism == "gaussian":
        event = Event(kind="gaussian", what=what, noise_multiplier=sigma)
        return "normal", sigma * math.sqrt(features * rows_per_example), [event]
    if selection.mechanism == "laplace":
        event = Event(kind="laplace", what=what, noise_multiplier=1 / share, count=features)
        return "laplace", rows_per_example / share, [event]
    if selection.mechanism == "gumbel":
        claim, draws = selection.epsilon, sum(shares)
        event = Event(kind="pure", what=what, draws=draws, epsilon_per_draw=share, claimed_epsilon=claim)
        return "gumbel", 1 / share, [event]
    return "normal", 0.0, []


def select_rows(
    histograms: Sequence[NDArray[np.integer]],
    selection: SelectionConfig,
    generator: np.random.Generator,
    *,
    rows_per_example: int = 1,
) -> Selection:
    """The most frequent rows, privately.

    Formal guarantee: the release of `Selection.rows` is dominated by the composition of `Selection.events`, for
    neighbours that differ in one example more or less.

    Args:
      histograms: of each feature, in how many examples each row occurs, shape (V_f,); for `public`, public counts.
      generator: of the noise; secret for as long as the guarantee is to hold.
      rows_per_example: the most distinct rows of one feature that one example is counted in.

    Raises:
      UserError: fewer rows are asked for than there are features.
    """
    sizes = [len(counts) for counts in histograms]
    shares, noisy = rows_per_feature(selection, sizes), noisy_counts(histograms, selection, generator, rows_per_example)
    return Selection(most_frequent(noisy, shares), shares, _mechanism(selection, shares, rows_per_example)[2])


def noisy_counts(
    histograms: Sequence[NDArray[np.integer]],
    selection: SelectionConfig,
    generator: np.random.Generator,
    rows_per_example: int = 1,
) -> list[NDArray[np.float64]]:
    """Histograms with the noise of the selection's mechanism.

    Formal guarantee: of `gaussian` and `laplace` the release of all of them is dominated by the composition of
    `selection_events`; of `gumbel` only that of the rows that `most_frequent` names.
    """
    shares = rows_per_feature(selection, [len(counts) for counts in histograms])
    law, scale, _ = _mechanism(selection, shares, rows_per_example)
    return [counts + getattr(generator, law)(0.0, scale, len(counts)) for counts in histograms]


def most_frequent(counts: Sequence[NDArray[np.floating]], shares: Sequence[int]) -> NDArray[np.int64]:
    """The rows of largest counts, so many of each feature: sorted global ids, int64 [s]."""
    offsets = np.cumsum([0, *map(len, counts)])
    # A stable sort: equal (public) counts go to the lower id.
    chosen = [
        offset + np.sort(np.argsort(-of_feature, kind="stable")[:share])
        for of_feature, share, offset in zip(counts, shares, offsets[:-1], strict=True)
    ]
    return np.concatenate(chosen).astype(np.int64)
