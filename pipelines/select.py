"""The rows that DP-FEST and DP-AdaFEST+ train within: a stage of its own, released once and shared by runs.

A selection lies in ``<paths.runs>/.selections/<dataset>/<hash>/``: ``rows.npy`` (sorted global rows, int64) and
``selection.json`` (how it was made and what it cost).  Its noise comes from a key that is forgotten; runs with the
same settings find the folder and reuse the release, which costs nothing more.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfest import accounting
from dpfest.errors import UserError
from dpfest.noise import NoiseKey
from dpfest.privacy import PrivacyConfig
from dpfest.topk import Selection, SelectionConfig, rows_per_feature, select_rows, selection_events
from pipelines.config import Config, selection_settings
from pipelines.data.dataset import Dataset
from pipelines.files import whole_folder, write_array, write_json
from pipelines.preprocess import data_hash, preprocess


def select(config: Config) -> Path:
    """Select the rows of ``config.algorithm``, or find them selected already; returns the folder.

    Raises:
        UserError: the algorithm selects nothing beforehand.
    """
    if config.algorithm.selection is None:
        raise UserError(
            f"algorithm={config.algorithm.name} selects no rows beforehand; use algorithm=fest or "
            "algorithm=adafest_plus."
        )
    dataset = Dataset.open(preprocess(config))
    folder = _ensure(config, dataset, config.algorithm.selection)
    print(cost_in_words(config.algorithm.selection, dataset, config.privacy), file=sys.stderr, flush=True)
    return folder


def cost_in_words(selection: SelectionConfig, dataset: Dataset, privacy: PrivacyConfig) -> str:
    """The mechanism of a selection, its noise, and what it costs alone, in full sentences."""
    if selection.mechanism == "public":
        return f"The rows come from the public counts in {selection.prior}: selecting them costs no privacy."
    sizes = dataset.vocabulary_sizes
    events = selection_events(selection, sizes)
    delta = privacy.delta or 1 / dataset.examples
    multiplier, scale = selection.noise_multiplier, len(sizes) / selection.epsilon
    deviation = multiplier * math.sqrt(len(sizes))  # one example moves the joint histogram by this root
    noise = {
        "gaussian": f"Gaussian noise of standard deviation {deviation:,.4g} (multiplier {multiplier:g})",
        "laplace": f"Laplace noise of scale {scale:,.4g}",
        "gumbel": f"Gumbel noise of scale {scale:,.4g}",
    }[selection.mechanism]
    cost = f"epsilon {accounting.epsilon(events, delta):.4g} at delta {delta:.3g}"
    claim = ""
    if selection.mechanism == "gumbel":
        draws = sum(rows_per_feature(selection, sizes))
        claim = f", as {draws:,} draws (the paper claims one, {selection.epsilon:g})"
    source = "1/N" if privacy.delta is None else "privacy.delta"
    return (
        f"The rows are the most frequent ones after {noise} on the counts of all {len(sizes)} features. Alone, the "
        f"selection costs {cost} ({source}){claim}; training within these rows composes that with its steps, inside "
        "its own privacy.epsilon. Asking for the same selection again costs nothing more."
    )


def selected_rows(config: Config, dataset: Dataset) -> NDArray[np.int64] | None:
    """Sorted global rows that ``config.algorithm`` trains within, or None where it selects none."""
    selection = config.algorithm.selection
    if selection is None:
        return None
    return np.load(_ensure(config, dataset, selection) / "rows.npy", allow_pickle=False)


def _ensure(config: Config, dataset: Dataset, selection: SelectionConfig) -> Path:
    settings = {
        "data": data_hash(config.data),
        "selection": selection_settings(selection),
        "noise_seed": config.privacy.noise_seed,
    }
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    folder = Path(config.paths.runs) / ".selections" / config.data.name / name
    if (folder / "selection.json").exists():
        return folder
    seed = config.privacy.noise_seed
    key = NoiseKey.fresh() if seed is None else NoiseKey.from_seed(seed, name)
    counts = _public_counts(selection.prior, dataset) if selection.prior else dataset.histogram()
    chosen = select_rows(counts, selection, key.generator("selection"))
    with whole_folder(folder) as partial:  # where another process was first, its release is the one
        write_array(partial / "rows.npy", chosen.rows)
        write_json(partial / "selection.json", _record(settings, chosen))
    return folder


def _record(settings: dict[str, Any], chosen: Selection) -> dict[str, Any]:
    """What was asked, what came of it, and what it spent."""
    return {
        **settings,
        "rows": len(chosen.rows),
        "rows_per_feature": chosen.rows_per_feature,
        "spent": [accounting.to_record(event) for event in chosen.events],
    }


def _public_counts(path: str, dataset: Dataset) -> list[NDArray[np.integer]]:
    """Public counts of every table's rows, end to end in one .npy file, cut into tables."""
    sizes = dataset.vocabulary_sizes
    try:
        counts = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"algorithm.selection.prior={path} cannot be read as a .npy file ({error}).") from error
    plain = np.issubdtype(counts.dtype, np.integer) or np.issubdtype(counts.dtype, np.floating)
    if counts.shape != (sum(sizes),) or not plain or not np.isfinite(counts).all():
        raise UserError(
            f"algorithm.selection.prior={path} holds {counts.dtype} of shape {counts.shape}; it must hold one "
            f"finite count for each of the {sum(sizes):,} rows of all tables, in their order."
        )
    return np.split(counts, np.cumsum(sizes)[:-1])
