"""Private top-k selection: the k most frequent embedding rows, chosen before training.

Every example touches at most r_f distinct rows of feature f, one of p (``rows_per_example``: 1 if a feature holds one
category, more for a bag or a text). ``joint`` takes the k most frequent rows of all features together; ``equal``, as
the paper, int(k / p) of each feature, capped by its vocabulary. Both cost the same. Mechanisms (for gaussian and
laplace, top-k is post-processing of noisy counts):

- gaussian: one Gaussian on the joint histogram of all features, of l2-sensitivity sqrt(sum of r_f): noise of
  ``noise_multiplier`` times that is a Gaussian mechanism of that multiplier, for any k.
- laplace: noise of scale r_f / (epsilon/p) on each feature's histogram, of l1-sensitivity r_f: (epsilon/p, 0)-DP per
  feature for any k, least private if one row takes all of r_f (log-concave noise: Awan and Dong 2022). All features
  together are p of these.
- gumbel: the paper's Algorithm 2, Gumbel noise of scale 1 / (epsilon/p), the k largest at once: the law of drawing k
  rows one after another, each by the exponential mechanism at epsilon/p on counts that one example moves by at most 1
  in one direction, however many of them (Durfee and Rogers 2019, Lemma 4.2), so it costs k such draws, from one
  feature or from all. The paper claims one: true for k = 1 only. For larger k, the event that a row far ahead is left
  out has a probability ratio near exp(k * epsilon/p).
- public: the counts come from public data; nothing is spent.

Noise and counts are multiples of one power of two, so noisy counts are the rounded output of a mechanism with real
noise (``dpfest.noise.gaussian``). Gumbel scores are compared as real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfest.accounting.accountant import Event
from dpfest.errors import UserError
from dpfest.gradients.units import UnitConfig
from dpfest.noise.distributions import laplace
from dpfest.noise.gaussian import BLOCK, gaussian, gaussian_grid
from dpfest.noise.keystream import Keystream
from dpfest.selection.exponential import draw_rows

Counts = tuple[int, NDArray[np.float64]]
"""A feature, and its counts or the next block of them."""
RowsPerExample = int | Sequence[int]
"""Distinct rows of a feature in which an example is counted, at most: of each feature, or of all of them."""
ROWS_AT_ONCE = 64 * BLOCK
"""Rows of a block, which is drawn with the same bits as a whole feature."""

MECHANISMS = ("gaussian", "laplace", "gumbel", "public")
SPLITS = JOINT, EQUAL = ("joint", "equal")
SOURCES = ("first_day", "all_days", "streaming")


class Fidelity(Protocol):
    """What a fidelity (:mod:`dpfest.planning.fidelity`) says of a selection that leaves it open."""

    selects_rows_by: str
    splits_rows: str


@dataclass(frozen=True)
class SelectionConfig:
    """How rows are selected before training (an algorithm's ``selection``).

    Attributes:
        mechanism: gaussian, laplace, gumbel (the paper's) or public; None for that of the fidelity: gaussian, or gumbel
            under ``paper``, except where a stream sums up noised counts, which gumbel does not release.
        rows: k, over all features.
        split: ``joint``, the k most frequent rows of all features together, or ``equal``, the paper's int(k / p) of
            each of p features; None for that of the fidelity: joint, or equal under ``paper``.
        noise_multiplier: for gaussian: noise over the joint l2-sensitivity.
        epsilon: for laplace and gumbel: over all features, as the paper states it.
        prior: for public: path of the public counts (a .npy file of all tables' counts end to end).
        source: in a stream, the days whose examples are counted (see ``dpfest.planning.privacy_plan``); None elsewhere.

    Raises:
        ValueError: a value out of range, by name; one that protects no one would fill the memory with its losses.
    """

    mechanism: str | None = None
    rows: int = 10000
    split: str | None = None
    noise_multiplier: float = 20.0
    epsilon: float = 0.01
    prior: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        def require(right: bool, key: str, rule: str) -> None:
            if not right:
                raise ValueError(f"{key}={getattr(self, key)} must be {rule}")

        require(self.mechanism in (None, *MECHANISMS), "mechanism", f"one of {', '.join(MECHANISMS)}")
        require(self.rows >= 1, "rows", "at least 1")
        require(self.split in (None, *SPLITS), "split", f"one of {', '.join(SPLITS)}, or null")
        require(0.1 <= self.noise_multiplier <= 1e9, "noise_multiplier", "from 0.1, below which it hides none, to 1e9")
        require(1e-9 <= self.epsilon <= 100, "epsilon", "from 1e-9 to 100, above which it hides none")
        rule = "the path of public counts for mechanism=public, and null for all others"
        require((self.mechanism == "public") == (self.prior is not None), "prior", rule)
        require(self.source is None or self.source in SOURCES, "source", f"one of {', '.join(SOURCES)}, or null")

    @property
    def law(self) -> str:
        """The mechanism, by its name; gaussian if there is none."""
        return self.mechanism or "gaussian"

    def named(self, fidelity: Fidelity, in_stream: bool) -> SelectionConfig:
        """Return the selection with split and mechanism: the fidelity's where it has none.

        For the sums of a stream it is gaussian.
        """
        sums_counts = in_stream and self.source in (None, "streaming")
        mechanism = self.mechanism or ("gaussian" if sums_counts else fidelity.selects_rows_by)
        return replace(self, mechanism=mechanism, split=self.split or fidelity.splits_rows)


@dataclass(frozen=True)
class Selection:
    """Result of a row selection before training.

    Attributes:
        rows: sorted distinct global rows, int64 ``[s]``.
        rows_per_feature: number of rows of each feature.
        events: privacy events that they cost.
        fixed: whether their noise derives from a seed.
        unit: what was counted once in a row; None for an example.
        settings: the settings by which they were selected; None if unknown.
    """

    rows: NDArray[np.int64]
    rows_per_feature: list[int]
    events: list[Event]
    fixed: bool = False
    unit: UnitConfig | None = None
    settings: SelectionConfig | None = None


def groups(selection: SelectionConfig, vocabulary_sizes: Sequence[int]) -> list[tuple[range, int]]:
    """Return which features' rows are compared with one another, and how many of these are selected, at most all.

    Raises:
        UserError: fewer rows are asked for than there are features among which they are split equally.
    """
    features = len(vocabulary_sizes)
    if selection.split != EQUAL:
        return [(range(features), min(selection.rows, sum(vocabulary_sizes)))]
    share = selection.rows // features
    if share == 0:
        raise UserError(f"selection.rows={selection.rows} must be at least {features}, one for each feature.")
    return [(range(one, one + 1), min(share, size)) for one, size in enumerate(vocabulary_sizes)]


def rows_selected(selection: SelectionConfig, vocabulary_sizes: Sequence[int]) -> int:
    """Return how many rows are selected in all."""
    return sum(number for _, number in groups(selection, vocabulary_sizes))


def selection_events(selection: SelectionConfig, vocabulary_sizes: Sequence[int]) -> list[Event]:
    """Return what ``select_rows`` spends on tables of these sizes, before it runs."""
    return _mechanism(selection, vocabulary_sizes, 1)[2]


def _mechanism(
    selection: SelectionConfig, vocabulary_sizes: Sequence[int], rows_per_example: RowsPerExample
) -> tuple[str, list[float], list[Event]]:
    """Return the noise of a count (its law, and its scale in each feature), and the events of the whole selection."""
    features, what, rows = len(vocabulary_sizes), "row selection", rows_selected(selection, vocabulary_sizes)
    share, sigma = selection.epsilon / features, selection.noise_multiplier
    most = each_feature(rows_per_example, features)
    if selection.law == "gaussian":
        event = Event(kind="gaussian", what=what, noise_multiplier=sigma)
        return "gaussian", [sigma * math.sqrt(sum(most))] * features, [event]
    if selection.law == "laplace":
        event = Event(kind="laplace", what=what, noise_multiplier=1 / share, count=features)
        return "laplace", [rows / share for rows in most], [event]
    if selection.law == "gumbel":
        claim = selection.epsilon
        event = Event(kind="pure", what=what, draws=rows, epsilon_per_draw=share, claimed_epsilon=claim)
        return "gumbel", [1 / share] * features, [event]
    return "none", [0.0] * features, []


def each_feature(rows_per_example: RowsPerExample, features: int) -> list[int]:
    """Return the largest number of rows of each feature in which an example is counted.

    Raises:
        UserError: a number is below 1, or they are not one for each feature.
    """
    most = [rows_per_example] * features if isinstance(rows_per_example, int) else list(rows_per_example)
    if len(most) != features or min(most, default=1) < 1:
        raise UserError(
            f"rows_per_example={rows_per_example} must be 1 or more, for each of {features} tables or for all."
        )
    return most


def noise_scales(
    selection: SelectionConfig, vocabulary_sizes: Sequence[int], rows_per_example: RowsPerExample
) -> list[float]:
    """Return the scale of the noise on a row's count, by feature: of Gaussian noise the standard deviation."""
    return _mechanism(selection, vocabulary_sizes, rows_per_example)[1]


def select_rows(
    histograms: Sequence[NDArray[np.integer]],
    selection: SelectionConfig,
    stream: Keystream,
    *,
    examples: int,
    rows_per_example: RowsPerExample,
) -> Selection:
    """Select the most frequent rows under differential privacy.

    Formal guarantee: the release of ``Selection.rows`` is dominated by the composition of ``Selection.events`` under
    add-or-remove-one adjacency, within 2^-99 in total variation per row of the vocabularies.

    Args:
        histograms: for each feature, the number of examples in which each row occurs, shape ``(V_f,)``; for ``public``,
            public counts. "Examples" are units here and below, if units are counted. They may be memory maps: 2^22 rows
            are in memory at a time; under ``laplace`` a feature's; under ``gumbel`` those that are compared.
        selection: the mechanism and its settings.
        stream: source of the noise; the guarantee holds while its key is secret.
        examples: number of examples counted.
        rows_per_example: maximum number of distinct rows of one feature in which an example is counted, of each feature
            or one for all (``dpfest.select`` counts and cuts them itself).

    Raises:
        UserError: a histogram exceeds what so many examples can produce; fewer rows are requested than there are
            features to split them among; or noise so large that no count can show through.
    """
    sizes = [len(counts) for counts in histograms]
    law, scales, events = _mechanism(selection, sizes, rows_per_example)
    refuse_overfull(histograms, selection, examples, rows_per_example)
    offsets = np.cumsum([0, *sizes])
    if law == "gumbel":
        drawn = []
        for features, number in groups(selection, sizes):
            counts = np.concatenate([histograms[feature] for feature in features]).astype(float)
            size, offset = len(counts), offsets[features.start]
            drawn.append(
                offset + draw_rows(np.arange(size), counts, universe=size, count=number, scale=scales[0], stream=stream)
            )
        rows = np.concatenate(drawn)
    else:
        noised = noisy_counts(histograms, selection, stream, examples=examples, rows_per_example=rows_per_example)
        rows = most_frequent(noised, selection, sizes)
    counted = np.diff(np.searchsorted(rows, offsets)).tolist()
    return Selection(rows, counted, events, settings=selection)


def noisy_counts(
    histograms: Sequence[NDArray[np.integer]],
    selection: SelectionConfig,
    stream: Keystream,
    *,
    examples: int,
    rows_per_example: RowsPerExample,
) -> Iterator[Counts]:
    """Return histograms with ``gaussian`` or ``laplace`` noise, or ``public`` ones unchanged; not for ``gumbel``.

    They come in blocks, feature by feature, each drawn when it is asked for.

    Formal guarantee: the release of all of them is dominated by the composition of ``selection_events``.

    Raises:
        UserError: the noise's grid is wider than 1.
    """
    law, scales, _ = _mechanism(selection, [len(counts) for counts in histograms], rows_per_example)
    refuse_overfull(histograms, selection, examples, rows_per_example)
    if law != "none" and gaussian_grid(max(scales)) > 1:  # counts would have to be rounded, at a cost in privacy
        raise UserError(
            f"selection adds noise of scale {max(scales):.3g} to every count, which no count outweighs: give a "
            "smaller noise_multiplier or a larger epsilon."
        )

    def blocks() -> Iterator[Counts]:
        for feature, (counts, scale) in enumerate(zip(histograms, scales, strict=True)):
            if law == "laplace":
                yield feature, counts + laplace(stream, len(counts), scale)
                continue
            for start in range(0, len(counts), ROWS_AT_ONCE):
                block = counts[start : start + ROWS_AT_ONCE].astype(np.float64)
                yield feature, block + gaussian(stream, len(block), scale) if law == "gaussian" else block

    return blocks()


def refuse_overfull(
    histograms: Sequence[NDArray[np.integer]],
    selection: SelectionConfig,
    examples: int,
    rows_per_example: RowsPerExample,
) -> None:
    """Refuse histograms in which some example counts for more than the noise hides, as their totals show.

    Raises:
        UserError: names the feature.
    """
    if selection.prior is not None:
        return
    most = each_feature(rows_per_example, len(histograms))
    for number, (counts, rows) in enumerate(zip(histograms, most, strict=True)):
        if (total := int(counts.sum())) > examples * rows:
            raise UserError(
                f"The histogram of feature {number} counts {total:,} rows, more than {examples:,} examples with "
                f"rows_per_example={rows} can touch: cut each example's rows, as dpfest.select does."
            )


def most_frequent(
    counts: Iterable[Counts], selection: SelectionConfig, vocabulary_sizes: Sequence[int]
) -> NDArray[np.int64]:
    """Return the selected rows, those of largest counts: sorted global rows, int64 ``[s]``."""
    together = groups(selection, vocabulary_sizes)
    group_of = [group for group, (features, _) in enumerate(together) for _ in features]
    chosen, offset = [], 0
    for group, blocks in groupby(counts, key=lambda block: group_of[block[0]]):
        places, size = _largest((block for _, block in blocks), together[group][1])
        chosen.append(offset + places)
        offset += size
    return np.concatenate(chosen)


def _largest(blocks: Iterable[NDArray[np.floating]], share: int) -> tuple[NDArray[np.int64], int]:
    """Return the sorted places of the ``share`` largest values, and the number of all values.

    Of equal (public) counts the lower place wins.
    """
    places, values, size = np.empty(0, np.int64), np.empty(0), 0
    for block in blocks:
        found = np.arange(len(block)) if len(values) < share else np.flatnonzero(block > values[-1])
        places, values = np.concatenate([places, size + found]), np.concatenate([values, block[found]])
        largest = np.argsort(-values, kind="stable")[:share]
        places, values = places[largest], values[largest]
        size += len(block)
    return np.sort(places), size
