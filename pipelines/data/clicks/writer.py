"""Write a dataset of clicks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.bags import NO_BAGS, BagConfig
from pipelines.data.clicks.source import RowBlock, RowSource
from pipelines.data.clicks.split import Split, split_of
from pipelines.data.clicks.vocabulary import (
    DATA_DEPENDENT_NOTE,
    NOTES,
    VOCABULARY,
    LearnedVocabulary,
    Vocabulary,
    VocabularyConfig,
    hashed_vocabulary,
    learn_vocabulary,
    read_vocabulary,
    table_rows,
    write_vocabulary,
)
from pipelines.data.dataset import SCHEMA, sealed_text
from pipelines.data.hashing import HASH_SPECIFICATION
from pipelines.data.provenance import Provenance
from pipelines.data.rows import click_record, fields_of
from pipelines.data.source import Progress
from pipelines.system.ahead import ahead
from pipelines.system.files import HashedFile


def write_dataset(
    folder: Path,
    source: RowSource,
    name: str,
    vocabulary: VocabularyConfig,
    split: Split,
    made_with: dict[str, Any],
    progress: Progress,
    provenance: Provenance | None = None,
    hash_specification: Mapping[str, str] = HASH_SPECIFICATION,
    bags: Mapping[str, BagConfig] = NO_BAGS,
) -> None:
    """Write the rows of ``source`` as a dataset into ``folder``.

    Args:
        folder: An empty folder.
        source: Source of the rows; read twice if the vocabulary is learnt from them.
        name: The dataset's name.
        vocabulary: Maps keys to table rows.
        split: Assigns lines to splits.
        made_with: The data configuration, recorded in dataset.json.
        progress: Receives the progress of reading.
        provenance: Recorded in dataset.json.
        hash_specification: How the source makes keys and contents, recorded in dataset.json.
        bags: Features with several values in a row, the last of the source's, in its order.

    Raises:
        UserError: The source is malformed, or has no training row.
    """
    parts = list(split.shares)
    rows_of = _vocabulary(source, vocabulary, split, progress, made_with)
    per_day: dict[str, Counter[int]] = {part: Counter() for part in parts}
    positives: Counter[str] = Counter()
    cut: Counter[str] = Counter()
    record = record_of(source, bags)
    with contextlib.ExitStack() as stack:
        streams = [HashedFile(stack.enter_context((folder / f"{part}.rows").open("wb"))) for part in parts]
        for block in ahead(source.blocks(progress)):
            records = records_of(block, rows_of, record, bags, cut)
            _write_block(records, split_of(block, split), streams, per_day, positives)
    if not per_day["train"]:
        others = sum(map(Counter.total, per_day.values()))
        shared = f", and {others:,} are in other splits, which equal rows share" if others else ""
        raise UserError(
            f"{name} has no row to train on: {source.rejected.as_json()['total']:,} rows were malformed{shared}."
        )
    released: dict[str, Any] = {}
    if isinstance(rows_of, LearnedVocabulary):
        write_vocabulary(folder / VOCABULARY, source.categorical_names, rows_of)  # needed to map new values
        if release := vocabulary.release(sum(per_day["train"].values()), len(rows_of.keys)):
            released = {"release": dataclasses.asdict(release), "sha256": rows_of.sha256}
    description = {
        "schema": SCHEMA,
        "name": name,
        "record": {"bytes": record.itemsize, "fields": fields_of(record)},
        "numeric_features": list(source.numeric_names),
        "numeric_transform": source.numeric_transform,
        "categorical_features": [
            {"name": feature, "vocabulary_size": size} | _described(feature, bags, cut)
            for feature, size in zip(source.categorical_names, rows_of.sizes, strict=True)
        ],
        "vocabulary": {
            "policy": vocabulary.policy,
            "data_dependent_vocabulary": rows_of.data_dependent,
            "note": NOTES.get(vocabulary.policy, DATA_DEPENDENT_NOTE),
            "hash": dict(hash_specification),
            **released,
        },
        "splits": {
            part: {
                "rows": sum(per_day[part].values()),
                "positives": positives[part],
                "rows_per_day": {str(day): per_day[part][day] for day in sorted(per_day[part])},
                "sha256": stream.sha256.hexdigest(),
            }
            for part, stream in zip(parts, streams, strict=True)
        },
        "rejected_rows": source.rejected.as_json(),
        "excluded_rows": source.excluded.as_json(),
        "sources": source.files(),
        "made_with": made_with,
    }
    if provenance is not None:
        description["provenance"] = dataclasses.asdict(provenance)
    (folder / "dataset.json").write_text(sealed_text(description), encoding="utf-8")


def _vocabulary(
    source: RowSource, config: VocabularyConfig, split: Split, progress: Progress, made_with: Mapping[str, Any]
) -> Vocabulary:
    if config.policy == "hash":
        return hashed_vocabulary(config, source.published_sizes)
    train_keys = (block.keys_of(split_of(block, split) == 0) for block in source.blocks(progress))
    settings = {name: value for name, value in made_with.items() if name != "path"}
    return learn_vocabulary(train_keys, config, json.dumps(settings, sort_keys=True))


def _described(feature: str, bags: Mapping[str, BagConfig], cut: Counter[str]) -> dict[str, Any]:
    """Return what dataset.json tells of a bag: its bound, its combiner and how many rows' lists were cut."""
    if feature not in bags:
        return {}
    return {"most": bags[feature].most, "combiner": bags[feature].combiner, "cut_rows": cut[feature]}


def vocabulary_of(source: RowSource, config: VocabularyConfig, folder: Callable[[], Path]) -> Vocabulary:
    """Return what maps keys to the rows of trained tables.

    Args:
        source: of rows with the features that the tables have.
        config: how the vocabulary was made.
        folder: returns where a learnt vocabulary is: in the release, or in the dataset that was trained on.

    Raises:
        UserError: the vocabulary was learnt, and is not there.
    """
    if config.policy == "hash":
        return hashed_vocabulary(config, source.published_sizes)
    place = folder() / VOCABULARY
    try:
        return read_vocabulary(place, source.categorical_names)
    except ValueError as error:
        missed = f"The vocabulary was learnt from rows (data.vocabulary.policy={config.policy})"
        if config.policy == "private":
            raise UserError(f"{missed}, and {place} cannot be read. Give the whole release.") from error
        raise UserError(
            f"{missed}: no release has it, and {place} cannot be read. Keep the folder of the data, or say where it is "
            "by paths.data."
        ) from error


def record_of(source: RowSource, bags: Mapping[str, BagConfig]) -> np.dtype[Any]:
    """Return the record type of a source's rows."""
    singles = len(source.categorical_names) - len(bags)
    return click_record(len(source.numeric_names), singles, [bag.most for bag in bags.values()])


def records_of(
    block: RowBlock,
    vocabulary: Vocabulary,
    record: np.dtype[Any],
    bags: Mapping[str, BagConfig],
    cut: Counter[str],
) -> NDArray[Any]:
    """Return the records of a block, and count in ``cut`` the rows whose list is longer than a bag."""
    records = np.empty(len(block.label), record)
    records["label"] = block.label
    records["day"] = block.day
    records["numeric"] = block.numeric
    records["categorical"] = table_rows(vocabulary, block.keys)
    first = block.keys.shape[1]
    for number, ((name, bag), lists) in enumerate(zip(bags.items(), block.lists, strict=True)):
        records[f"bag_{number}"], longer = lists.bags(vocabulary.rows(lists.keys, first + number), bag.most)
        cut[name] += longer
    return records


def _write_block(
    records: NDArray[Any],
    parts: NDArray[np.int64],
    streams: Sequence[HashedFile],
    per_day: dict[str, Counter[int]],
    positives: Counter[str],
) -> None:
    for index, part in enumerate(per_day):
        mine = records.take(np.flatnonzero(parts == index))
        streams[index].write(mine.tobytes())
        days, counts = np.unique(mine["day"], return_counts=True)
        per_day[part].update(dict(zip(days.tolist(), counts.tolist(), strict=True)))
        positives[part] += int(np.count_nonzero(mine["label"]))
