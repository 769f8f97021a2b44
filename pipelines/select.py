"""The select stage: DP-FEST's rows (also used by DP-AdaFEST+), released once and shared by runs.

A selection has a folder like a run's, ``<paths.runs>/.selections/<dataset>/<hash>/``.  ``release/`` may be published:
``rows.npy`` (sorted global rows, int64), or for a day of a stream ``counts.npy`` (noised counts of the rows of all
tables, concatenated, float64), and ``selection.json`` (settings and privacy cost).  ``private/``, readable by its owner
alone, may not: ``request.json``, with the noise seed and the fingerprint of the data.  Neither holds raw counts; those
stay with the processed rows.  The noise key is discarded; runs with the same settings reuse the release at no further
cost.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey
from dpfest.noise.keystream import Keystream
from dpfest.selection.topk import (
    SelectionConfig,
    most_frequent,
    noise_scales,
    noisy_counts,
    rows_selected,
    select_rows,
    selection_events,
)
from pipelines.budget import planned, population
from pipelines.config.schema import in_keys
from pipelines.config.settings import TOKENIZER_PRIOR, Config
from pipelines.data.dataset import Dataset
from pipelines.data.stream import Stream
from pipelines.data.text.writer import PRIOR_FILE
from pipelines.data.units import histogram, identifiers
from pipelines.preprocess import prepared
from pipelines.runs.identity import selection_settings
from pipelines.runs.release import PRIVATE, RELEASE
from pipelines.system.checksum import check_sums, write_sums
from pipelines.system.files import OWNER_ONLY, made_once, private_folder, write_array, write_blocks, write_json

Counts = Sequence[NDArray[np.integer]]
"""How often each row occurs, an array of each feature."""


@in_keys()
def select(config: Config) -> Path:
    """Select the rows of ``config.algorithm`` unless an existing selection fits.

    Returns:
        The folder of the release; of a stream whose days are released separately, the last day's.

    Raises:
        UserError: the algorithm has no row selection.
    """
    selection = config.algorithm.selection
    if selection is None:
        raise UserError(
            f"algorithm={config.algorithm.name} selects no rows beforehand; use algorithm=fest or "
            "algorithm=adafest_plus."
        )
    stream = prepared(config)
    if stream.days[0].vocabulary_sha256 is not None:  # refuses what cannot be accounted for together
        planned(config, population(config, stream), stream.vocabulary_sizes)
    released = Selection(config, stream).release()
    print(cost_summary(config, stream), file=sys.stderr, flush=True)
    return released


def cost_summary(config: Config, stream: Stream) -> str:
    """Describe the mechanism of a selection from these data, its noise and its own cost, in full sentences."""
    selection: SelectionConfig = config.algorithm.selection
    training, _ = stream.split_days(config.stream.train_days)
    sizes, counted_in = stream.vocabulary_sizes, rows_counted(config, training[0])
    scale, uneven = max(noise_scales(selection, sizes, counted_in)), len(set(counted_in)) > 1
    examples = sum(day.examples for day in training)
    if config.unit_of_privacy is not None:
        examples = len(np.unique(np.concatenate(identifiers(training, config.privacy.unit))))
    if selection.law == "public":
        known = "the order of the tokenizer's vocabulary" if selection.prior == TOKENIZER_PRIOR else selection.prior
        return f"The rows come from the public counts in {known}: selecting them costs no privacy."
    unit, streaming = config.unit_of_privacy, stream.is_stream and selection.source in (None, "streaming")
    events = selection_events(selection, sizes) * (len(training) if unit and streaming else 1)
    events += _of_vocabulary(training[0])
    delta = config.privacy.delta or 1 / examples
    noise = {
        "gaussian": f"Gaussian noise of standard deviation {scale:,.4g} (multiplier {selection.noise_multiplier:g})",
        "laplace": f"Laplace noise of scale {scale:,.4g}" + (", less where fewer rows count" if uneven else ""),
        "gumbel": f"Gumbel noise of scale {scale:,.4g}",
    }[selection.law]
    cost = f"epsilon {accountant.epsilon(events, delta):.4g} at delta {delta:.3g}"
    claim = ""
    if selection.law == "gumbel":
        draws = rows_selected(selection, sizes)
        claim = f", as {draws:,} draws (the paper claims one, {selection.epsilon:g})"
    source = "1/N" if config.privacy.delta is None else "privacy.delta"
    days = {
        "first_day": " of the first day",
        "all_days": f" of all {config.stream.train_days} days",
        "streaming": f" of each of {config.stream.train_days} days, noised once and summed up to a period's last day",
    }
    counted = days[selection.source or "streaming"] if stream.is_stream else ""
    whose = f"of a feature for a {unit.name}" if unit else "an example"
    most = f", at most {max(counted_in)} rows {whose}" if max(counted_in) > 1 else ""
    if uneven:
        several = zip(training[0].categorical_names, counted_in, strict=True)
        bags = (f"{rows} rows of {name}" for name, rows in several if rows > min(counted_in))
        most = f", at most {', '.join(bags)} and {min(counted_in)} of every other feature {whose}"
    of = f"all {len(sizes)} features" if len(sizes) > 1 else "each row"
    return (
        f"The rows are the most frequent ones after {noise} on the counts of {of}{counted}{most}. "
        f"Alone, the selection costs {cost} ({source}){claim}; training within these rows composes that with its "
        "steps within its own privacy.epsilon. Repeating the same selection costs nothing more."
    )


class Selection:
    """The rows that each period of a run trains within.

    Of a stream, ``streaming`` (the paper's "running sum updated per streaming period", section 4.3) takes the days up
    to the period's last, those that have come in when the model is updated; each is noised once, whichever runs and
    periods add it up. ``first_day`` and ``all_days`` select once, and so does a dataset that is no stream.

    Args:
        config: of an algorithm that selects rows.
        stream: whose training days are counted.
        number: of the run within a private search, whose runs share no noise; None for any other run.
    """

    def __init__(self, config: Config, stream: Stream, number: int | None = None) -> None:
        self._config, self._selection, self._sizes = config, config.algorithm.selection, stream.vocabulary_sizes
        self._days, _ = stream.split_days(config.stream.train_days)
        self._hashes, self._run = stream.hashes, {} if number is None else {"run": number}
        source = self._selection.source or ("streaming" if stream.is_stream else "all_days")
        self._once, self._counted = source != "streaming" or bool(self._selection.prior), len(self._days)
        if source == "first_day":
            self._counted = 1
        unit = config.unit_of_privacy
        self._units = None if unit is None else identifiers(self._days, config.privacy.unit)
        self._most = rows_counted(config, self._days[0])
        # What a release is of, besides its rows: of units, the column and how often one may count.
        each = self._most if len(set(self._most)) > 1 else self._most[0]
        self._unit = {} if unit is None else {"unit": {"column": config.privacy.unit, "rows_per_unit": each}}
        self._added = 0
        self._sum = np.zeros(0 if self._once else sum(self._sizes))

    def rows(self, days: range) -> NDArray[np.int64]:
        """Return the sorted global rows for the period of these days; to be called for periods in order."""
        if days.start == 0 and rows_selected(self._selection, self._sizes) >= (every := sum(self._sizes)):
            print(
                f"warning: algorithm.selection.rows={self._selection.rows} selects all {every:,} rows of the tables, "
                "which is DP-SGD at the cost of a selection: select fewer.",
                file=sys.stderr,
            )
        if self._once:
            return np.load(self._rows() / "rows.npy", allow_pickle=False)
        while self._added < days.stop:
            self._sum += np.load(self._counts(self._added) / "counts.npy", mmap_mode="r", allow_pickle=False)
            self._added += 1
        counts = np.split(self._sum, np.cumsum(self._sizes)[:-1])
        return most_frequent(enumerate(counts), self._selection, self._sizes)

    def release(self) -> Path:
        """Make or find the releases of all training days; returns the last folder."""
        return self._rows() if self._once else [self._counts(number) for number in range(len(self._days))][-1]

    def _rows(self) -> Path:
        """Return the release of rows that are selected once."""
        selection, days = self._selection, self._days[: self._counted]
        counted = ",".join(self._hashes[: self._counted])
        settings = {"data": counted, "selection": selection_settings(selection), **self._unit}
        if (vocabulary := days[0].vocabulary_sha256) is not None:  # preprocessed again, rows are of other values
            settings["vocabulary"] = vocabulary

        def fill(folder: Path, stream: Keystream) -> dict[str, Any]:
            prior = selection.prior
            counted = range(self._counted)
            counts = _public_counts(prior, self._sizes, days[0].folder) if prior else self._histogram(counted)
            examples = self._examples(counted)
            self._warn_if_random(examples)
            chosen = select_rows(counts, selection, stream, examples=examples, rows_per_example=self._most)
            write_array(folder / "rows.npy", chosen.rows)
            spent = [accountant.to_record(event) for event in (*_of_vocabulary(days[0]), *chosen.events)]
            return {"rows": len(chosen.rows), "rows_per_feature": chosen.rows_per_feature, "spent": spent}

        return _release(self._config, settings, self._run, fill)

    def _counts(self, number: int) -> Path:
        """Return the release of a day's noised counts."""
        selection = self._selection
        noise = {name: getattr(selection, name) for name in ("mechanism", "noise_multiplier", "epsilon")}
        unread = "epsilon" if selection.law == "gaussian" else "noise_multiplier"
        settings = {"data": self._hashes[number], "counts": {k: v for k, v in noise.items() if k != unread}}
        settings |= self._unit

        def fill(folder: Path, stream: Keystream) -> dict[str, Any]:
            day = range(number, number + 1)
            examples = self._examples(day)
            self._warn_if_random(examples)
            noisy = noisy_counts(
                self._histogram(day), selection, stream, examples=examples, rows_per_example=self._most
            )
            write_blocks(folder / "counts.npy", sum(self._sizes), np.float64, (block for _, block in noisy))
            events = selection_events(selection, self._sizes)
            return {"day": number, "spent": [accountant.to_record(event) for event in events]}

        return _release(self._config, settings, self._run, fill)

    def _warn_if_random(self, examples: int) -> None:
        """Say that no row can be told from another, if no count can exceed the noise on it."""
        scale = max(noise_scales(self._selection, self._sizes, self._most))
        if scale < examples:
            return
        unit = self._config.unit_of_privacy
        cure = "lower unit.max_examples, or " if unit and max(self._most) > 1 else ""
        print(
            f"warning: the noise on the counts of a selection ({scale:,.4g}) is as large as the number of "
            f"{unit.name + 's' if unit else 'examples'} counted ({examples:,}): rows are selected at random. For less "
            f"noise {cure}spend more on the selection (algorithm.selection).",
            file=sys.stderr,
            flush=True,
        )

    def _histogram(self, days: range) -> Counts:
        """Count the examples of these days, or the units that have any there, in each table row."""
        some = [self._days[day] for day in days]
        if self._units is None:
            return _total(some, self._sizes)
        return histogram(some, [self._units[day] for day in days], self._most)

    def _examples(self, days: range) -> int:
        if self._units is None:
            return sum(self._days[day].examples for day in days)
        return len(np.unique(np.concatenate([self._units[day] for day in days])))


def rows_counted(config: Config, day: Dataset) -> list[int]:
    """Return in how many rows of each feature an example, or a unit, is counted at most: a unit in those of so many
    examples as a step reads of it."""
    if config.unit_of_privacy is None:
        return day.rows_per_example
    most = max(day.vocabulary_sizes)
    return [min(config.unit.max_examples * rows, most) for rows in day.rows_per_example]


def _total(days: Sequence[Dataset], sizes: Sequence[int]) -> Counts:
    """Sum the counts of all days, with those of one day at a time beside the sum."""
    if len(days) == 1:
        return days[0].histogram()
    total = np.zeros(sum(sizes), np.int64)
    for day in days:
        total += np.concatenate(day.histogram())
    return np.split(total, np.cumsum(sizes)[:-1])


def _release(
    config: Config, settings: dict[str, Any], run: dict[str, int], fill: Callable[[Path, Keystream], dict[str, Any]]
) -> Path:
    """Return the folder of a release; unless it exists, ``fill`` makes it and returns a record for selection.json.

    The setting ``data`` (a fingerprint of the training rows) stays private, and so does the run of a private search.
    """
    request = {**settings, "noise_seed": config.privacy.noise_seed, **run}
    name = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:12]
    folder = Path(config.paths.runs) / ".selections" / config.data.name / name
    released = folder / RELEASE
    if released.exists():
        check_sums(
            released,
            f"Restore it. If you delete {folder}, rows are selected again: without a noise seed that is a second "
            "release, which no ledger counts.",
        )
        return released
    if folder.exists():
        raise UserError(
            f"{folder} was made by an earlier version of dpfest: move it away or delete it (it may contain the noise "
            "seed), then give the same command again."
        )
    seed = config.privacy.noise_seed
    key = NoiseKey.fresh() if seed is None else NoiseKey.from_seed(seed, name)
    with made_once(folder) as partial:  # draws of a killed process, which no ledger counts, are removed
        if partial is None:  # another process was faster: its release stays
            return released
        write_json(private_folder(partial / PRIVATE) / "request.json", request, OWNER_ONLY)
        (partial / RELEASE).mkdir()
        record = fill(partial / RELEASE, key.stream("selection"))
        public = {name: setting for name, setting in settings.items() if name != "data"}
        write_json(partial / RELEASE / "selection.json", {**public, **record})
        write_sums(partial / RELEASE)
    return released


def _public_counts(path: str, sizes: Sequence[int], dataset: Path) -> Counts:
    """Read public counts of the rows of all tables from one .npy file (for texts, the tokenizer's ranking), and split
    them by table."""
    own = dataset / PRIOR_FILE
    if path == TOKENIZER_PRIOR and not own.exists():
        raise UserError(f"algorithm.selection.prior={path} is for texts; give a .npy file of public counts.")
    try:
        counts = np.load(own if path == TOKENIZER_PRIOR else path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"algorithm.selection.prior={path} cannot be read as a .npy file ({error}).") from error
    plain = np.issubdtype(counts.dtype, np.integer) or np.issubdtype(counts.dtype, np.floating)
    if counts.shape != (sum(sizes),) or not plain or not np.isfinite(counts).all():
        raise UserError(
            f"algorithm.selection.prior={path} holds {counts.dtype} of shape {counts.shape}; it must hold one "
            f"finite count for each of the {sum(sizes):,} rows of all tables, in their order."
        )
    return np.split(counts, np.cumsum(sizes)[:-1])


def _of_vocabulary(day: Dataset) -> list[Event]:
    """Return what the vocabulary cost on which a selection depends."""
    return day.vocabulary_release.events if day.vocabulary_release else []
