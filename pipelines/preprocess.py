"""The preprocess stage: from a data configuration to a dataset folder, made once and then found again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Protocol

from dpfest.errors import UserError
from pipelines.data.criteo import CriteoFiles, CriteoKaggleConfig
from pipelines.data.dataset import SCHEMA, Dataset
from pipelines.data.hashing import HASH_SPECIFICATION
from pipelines.data.nycflights import Nycflights, NycflightsConfig
from pipelines.data.source import RowSource, fingerprint
from pipelines.data.synthetic import GENERATOR_VERSION, CriteoSyntheticConfig, write_criteo_files
from pipelines.data.writer import made_once, write_dataset
from pipelines.progress import progress

DataConfig = NycflightsConfig | CriteoKaggleConfig | CriteoSyntheticConfig

DATA_CONFIGS: dict[str, type[DataConfig]] = {
    "nycflights": NycflightsConfig,
    "criteo_kaggle": CriteoKaggleConfig,
    "criteo_synthetic": CriteoSyntheticConfig,
}
"""Datasets by name, each with the type of its configuration."""


class PreprocessConfig(Protocol):
    """The part of a configuration that this stage reads."""

    data: Any
    paths: Any


def data_hash(data: DataConfig) -> str:
    """8 hexadecimal digits that change with whatever changes the rows of a dataset.

    They cover the configuration, the formats and feature recipes of this version, and the source files by
    name, size and the content of their first and last MiB. Where the files lie is left out: data may be
    moved.

    Raises:
        UserError: A source file is missing.
    """
    settings = dataclasses.asdict(data)
    settings.pop("path", None)
    made_of = {"schema": SCHEMA, "hash": HASH_SPECIFICATION, "data": settings, "source": _identity(data)}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:8]


def dataset_folder(config: PreprocessConfig) -> Path:
    """Where the dataset of a configuration lies, made already or not."""
    _check(config.data)
    return Path(config.paths.data) / f"{config.data.name}-{data_hash(config.data)}"


def preprocess(config: PreprocessConfig) -> Path:
    """Make the dataset that ``config.data`` describes, unless it is there, and say which.

    Returns:
        The dataset's folder, ready for :meth:`Dataset.open`.

    Raises:
        UserError: A setting has no meaning, or the source is missing or malformed. Nothing is left then.
    """
    folder = dataset_folder(config)
    how = "there already"
    if not folder.exists():
        with made_once(folder) as partial:
            if partial is None:
                how = "made by another process in the meantime"
            else:
                how = "made"
                _make(partial, config.data)
    dataset = Dataset.open(folder)
    rows = ", ".join(f"{rows:,} {name}" for name, rows in dataset.rows.items())
    rejected, excluded = (dataset.description[kind]["total"] for kind in ("rejected_rows", "excluded_rows"))
    left_out = f"{rejected:,} malformed and {excluded:,} unlabelled ones left out"
    _say(f"{folder} ({how}): {rows} rows; {left_out}.")
    for part in ("validation", "test"):
        _warn_where_auc_is_unknown(dataset, part, getattr(config.data.split, part))
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


def _make(folder: Path, data: DataConfig) -> None:
    texts = folder / "source"
    if isinstance(data, CriteoSyntheticConfig):
        texts.mkdir()
        with progress(f"writing {data.rows:,} rows of text") as report:
            paths = write_criteo_files(texts, data, report)
        source: RowSource = CriteoFiles(paths, data.on_bad_row, generated=True)
    elif isinstance(data, CriteoKaggleConfig):
        source = CriteoFiles([Path(data.path)], data.on_bad_row)
    else:
        source = Nycflights()
    with progress(f"reading {data.name}") as report:
        made_with = dataclasses.asdict(data)
        write_dataset(folder, source, data.name, data.vocabulary, data.split, made_with, report)
    shutil.rmtree(texts, ignore_errors=True)


def _identity(data: DataConfig) -> dict[str, Any]:
    if isinstance(data, CriteoSyntheticConfig):
        return {"generator": GENERATOR_VERSION}
    if isinstance(data, CriteoKaggleConfig):
        return {"files": [fingerprint(path) for path in CriteoFiles([Path(data.path)], data.on_bad_row).paths]}
    return Nycflights().identity()


def _check(data: DataConfig) -> None:
    data.vocabulary.check()
    data.split.check()
    if isinstance(data, CriteoSyntheticConfig):
        data.check()
    if not isinstance(data, NycflightsConfig) and data.on_bad_row not in ("stop", "skip"):
        raise UserError(f"data.on_bad_row must be stop or skip, not {data.on_bad_row!r}.")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
