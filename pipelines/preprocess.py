"""The preprocess stage: from a data configuration to a dataset or stream, made once and then found again."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any, Protocol

from dpfest.errors import UserError
from pipelines.data.criteo import CriteoKaggleConfig
from pipelines.data.dataset import Dataset
from pipelines.data.days import day_hashes, make_day
from pipelines.data.identity import content_hash
from pipelines.data.nycflights import NycflightsConfig
from pipelines.data.nycflights_stream import NycflightsStreamConfig
from pipelines.data.stream import Stream, day_folder, write_stream_record
from pipelines.data.synthetic import CriteoSyntheticConfig, CriteoSyntheticStreamConfig
from pipelines.data.writer import made_once, write_dataset
from pipelines.progress import progress

DatasetConfig = NycflightsConfig | CriteoKaggleConfig | CriteoSyntheticConfig
StreamConfig = NycflightsStreamConfig | CriteoSyntheticStreamConfig
DataConfig = DatasetConfig | StreamConfig

DATA_CONFIGS: dict[str, type[DataConfig]] = {
    "nycflights": NycflightsConfig,
    "nycflights_stream": NycflightsStreamConfig,
    "criteo_kaggle": CriteoKaggleConfig,
    "criteo_synthetic": CriteoSyntheticConfig,
    "criteo_synthetic_stream": CriteoSyntheticStreamConfig,
}
"""Datasets and streams by name, each with the type of its configuration; ``is_stream`` tells one from the other."""


class PreprocessConfig(Protocol):
    """The part of a configuration that this stage reads."""

    data: Any
    paths: Any


def data_hash(data: DataConfig) -> str:
    """8 hexadecimal digits that change with whatever changes the rows of a dataset or stream.

    They cover the configuration, the formats and feature recipes of this version, and the source files by
    name, size and the content of their first and last MiB. Where the files lie is left out: data may be
    moved.

    Raises:
        UserError: A source file is missing.
    """
    source = {"days": day_hashes(data)} if data.is_stream else data.identity()
    return content_hash(data, source)[:8]


def dataset_folder(config: PreprocessConfig) -> Path:
    """Where the dataset or stream of a configuration lies, made already or not."""
    _check(config.data)
    return Path(config.paths.data) / f"{config.data.name}-{data_hash(config.data)}"


def preprocess(config: PreprocessConfig) -> Path:
    """Make the dataset or the stream that ``config.data`` describes, unless it is there, and say which.

    Returns:
        Its folder, ready for :meth:`Dataset.open` or, where ``config.data.is_stream``, :meth:`Stream.open`.

    Raises:
        UserError: A setting has no meaning, or the source is missing or malformed. Nothing is left then, but for the
            days of a stream that could be made.
    """
    folder = dataset_folder(config)
    return _make_stream(folder, config) if config.data.is_stream else _make_dataset(folder, config.data)


def _make_stream(folder: Path, config: PreprocessConfig) -> Path:
    data: StreamConfig = config.data
    hashes = day_hashes(data)
    write_stream_record(folder, data.name, list(hashes), list(hashes.values()), dataclasses.asdict(data))
    for day, day_hash in hashes.items():
        if not day_folder(folder, day).exists():
            with progress(f"making {data.name}, day {day}") as report:
                make_day(folder, data, day, day_hash, report)
    stream = Stream.open(folder)
    _say(f"{folder}: {sum(stream.rows_of_day):,} rows in {len(stream.days)} days.")
    return folder


def _make_dataset(folder: Path, data: DatasetConfig) -> Path:
    how = "there already"
    if not folder.exists():
        with made_once(folder) as partial:
            if partial is None:
                how = "made by another process in the meantime"
            else:
                how = "made"
                scratch = partial / "source"
                with progress(f"reading {data.name}") as report:
                    made_with = dataclasses.asdict(data)
                    source = data.source(scratch)
                    write_dataset(partial, source, data.name, data.vocabulary, data.split, made_with, report)
                shutil.rmtree(scratch, ignore_errors=True)
    dataset = Dataset.open(folder)
    rows = ", ".join(f"{rows:,} {name}" for name, rows in dataset.rows.items())
    rejected, excluded = (dataset.description[kind]["total"] for kind in ("rejected_rows", "excluded_rows"))
    left_out = f"{rejected:,} malformed and {excluded:,} unlabelled ones left out"
    _say(f"{folder} ({how}): {rows} rows; {left_out}.")
    for part in ("validation", "test"):
        _warn_where_auc_is_unknown(dataset, part, getattr(data.split, part))
    return folder


def _warn_where_auc_is_unknown(dataset: Dataset, part: str, share: float) -> None:
    """An AUC needs a row of each label; a share of 0 is a wish, and needs no warning."""
    rows, positives = (int(dataset.description["splits"][part][key]) for key in ("rows", "positives"))
    if share and not 0 < positives < rows:
        held = f"too few rows ({rows:,}, of which {positives:,} have label 1)" if rows else "no row"
        _say(
            f"warning: {part} holds {held}: its AUC will be unknown. Use more data, or raise data.split.{part} "
            f"(now {share:g})."
        )


def _check(data: DataConfig) -> None:
    data.check()
    data.vocabulary.check()
    if not data.is_stream:
        data.split.check()
    elif data.vocabulary.policy != "hash":
        raise UserError(
            f"data.vocabulary.policy={data.vocabulary.policy} has no meaning in a stream: a vocabulary read off one "
            "day would not hold the next day's values, and one read off all days would tell the first what comes "
            "later. Leave it at hash."
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
