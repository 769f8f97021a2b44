"""The preprocess stage: from a data configuration to a dataset or stream, made once and then found again."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any, Protocol

from dpfest.errors import UserError
from pipelines.data.clicks.criteo import CriteoKaggleConfig
from pipelines.data.clicks.criteo_days import Criteo1TBConfig
from pipelines.data.clicks.nycflights import NycflightsConfig
from pipelines.data.clicks.nycflights_stream import NycflightsStreamConfig
from pipelines.data.clicks.synthetic import CriteoSyntheticConfig, CriteoSyntheticStreamConfig
from pipelines.data.clicks.writer import made_once, write_dataset
from pipelines.data.dataset import Dataset
from pipelines.data.identity import SOURCE_CHANGED, data_hash
from pipelines.data.making import DaysToMake, days_in_words, days_to_make, make_days, remove_damaged_days
from pipelines.data.stream import Stream, day_folder
from pipelines.data.text.glue import QnliConfig, QqpConfig, Sst2Config, XnliConfig
from pipelines.data.text.synthetic import TextSyntheticConfig
from pipelines.data.text.writer import write_text_dataset
from pipelines.system.hub import pinned
from pipelines.system.progress import progress

TextConfig = Sst2Config | QnliConfig | QqpConfig | XnliConfig | TextSyntheticConfig
DatasetConfig = NycflightsConfig | CriteoKaggleConfig | CriteoSyntheticConfig | TextConfig
StreamConfig = NycflightsStreamConfig | Criteo1TBConfig | CriteoSyntheticStreamConfig
DataConfig = DatasetConfig | StreamConfig

DATA_CONFIGS: dict[str, type[DataConfig]] = {
    "nycflights": NycflightsConfig,
    "nycflights_stream": NycflightsStreamConfig,
    "criteo_kaggle": CriteoKaggleConfig,
    "criteo_1tb": Criteo1TBConfig,
    "criteo_synthetic": CriteoSyntheticConfig,
    "criteo_synthetic_stream": CriteoSyntheticStreamConfig,
    "sst2": Sst2Config,
    "qnli": QnliConfig,
    "qqp": QqpConfig,
    "xnli": XnliConfig,
    "text_synthetic": TextSyntheticConfig,
}
"""Datasets and streams by name, each with the type of its configuration; ``is_stream`` tells one from the other."""

LEFT_OUT = ("rejected_rows", "excluded_rows")


class PreprocessConfig(Protocol):
    """The part of a configuration that this stage reads."""

    data: Any
    paths: Any
    preprocess: Any


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
    if config.data.is_stream:
        return _make_stream(folder, config)
    _make_dataset(folder, config.data)
    if config.preprocess.verify:
        Dataset.open(folder).verify()
        _say(f"{folder}: every file is what was written.")
    return folder


def preprocess_day(config: PreprocessConfig) -> Path:
    """Make the one day ``config.preprocess.day`` of a stream, unless it is there: a task of its own on a cluster.

    Returns:
        The day's folder, ready for :meth:`Dataset.open`.

    Raises:
        UserError: As :func:`preprocess`, or the data are no stream.
    """
    if not config.data.is_stream:
        raise UserError(f"preprocess.day has a meaning for streams, and data={config.data.name} is none.")
    stream, day = dataset_folder(config), config.preprocess.day
    _make_missing_days(days_to_make(stream, config.data, day), at_once=1)
    return Dataset.open(day_folder(stream, day)).folder


def _make_stream(folder: Path, config: PreprocessConfig) -> Path:
    if config.preprocess.verify:
        remove_damaged_days(folder)
    to_make = days_to_make(folder, config.data)
    _make_missing_days(to_make, config.preprocess.jobs)
    return finished_stream(folder, made=len(to_make.hashes))


def _make_missing_days(to_make: DaysToMake, at_once: int) -> None:
    if to_make.hashes:
        _say(to_make.foretell(at_once))
        make_days(to_make, at_once)


def finished_stream(folder: Path, made: int) -> Path:
    """Check a stream of which ``made`` days have just been made, and say what it holds."""
    stream = Stream.open(folder)
    days = len(stream.days)
    how = "made" if made == days else f"{made} of {days} days made" if made else "there already"
    rejected, excluded = (sum(day.description[kind]["total"] for day in stream.days) for kind in LEFT_OUT)
    rows = f"{sum(stream.rows_of_day):,} rows in {days_in_words(days)}"
    _say(f"{folder} ({how}): {rows}; {_left_out(rejected, excluded)}.")
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
                    made_with = pinned(dataclasses.asdict(data), "dataset")
                    if isinstance(data, TextConfig):
                        write_text_dataset(partial, scratch, data, made_with, report)
                    else:
                        source = data.source(scratch)
                        write_dataset(partial, source, data.name, data.vocabulary, data.split, made_with, report)
                shutil.rmtree(scratch, ignore_errors=True)
                if f"{data.name}-{data_hash(data)}" != folder.name:
                    raise UserError(SOURCE_CHANGED.format(name=data.name))
    dataset = Dataset.open(folder)
    rows = ", ".join(f"{rows:,} {name}" for name, rows in dataset.rows.items())
    _say(f"{folder} ({how}): {rows} rows; {_left_out(*(dataset.description[kind]['total'] for kind in LEFT_OUT))}.")
    if not isinstance(data, TextConfig):
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
    if isinstance(data, TextConfig):
        return
    data.vocabulary.check()
    data.split.check()
    if data.is_stream and data.vocabulary.policy != "hash":
        raise UserError(
            f"data.vocabulary.policy={data.vocabulary.policy} has no meaning in a stream: a vocabulary read off one "
            "day would not hold the next day's values, and one read off all days would tell the first what comes "
            "later. Leave it at hash."
        )


def _left_out(rejected: int, excluded: int) -> str:
    return f"{rejected:,} malformed and {excluded:,} unlabelled ones left out"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
