"""A trained model for use: its weights, and what makes the rows that it reads of new data.

    from pipelines.train.trained import frame, load

    trained = load("runs/clicks/fest/0a1b2c3d4e5f")
    scores = trained.predict("new.parquet")     # polars: probability, logit
    trained.model                               # the nn.Module, in eval()
    frame("runs")                               # polars: settings and results of all finished runs

Nothing here is private training: a score is a function of released weights and of the row that is scored, so that
epsilon covers the training rows whatever is scored.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from scipy.special import expit, softmax
from torch import nn

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.table import ColumnsConfig
from pipelines.data.clicks.table_frames import ColumnCheck, Frame, Wanted, columns_of, in_frames
from pipelines.data.clicks.vocabulary import VOCABULARY
from pipelines.data.clicks.writer import record_of, records_of, vocabulary_of
from pipelines.data.dataset import Dataset
from pipelines.data.rows import Rows
from pipelines.data.source import Progress
from pipelines.preprocess import dataset_folder, prepared
from pipelines.runs.frame import frame
from pipelines.runs.release import CONFIG, PRIVATE, RELEASE, SUMMARY, WEIGHTS
from pipelines.system.plain import yaml_value
from pipelines.tasks.calibration import Platt
from pipelines.tasks.clicks import EVALUATION_BATCH, ClickTask, Evaluation
from pipelines.tasks.task import Task, device_of, smaller_tables, task_of

__all__ = ["Trained", "frame", "load"]

_ALLOWED = ("data.", "device=", "paths.data=")


@dataclass(frozen=True)
class SourceFeatures:
    """The features of a reader's rows, as a model must know them (:class:`pipelines.tasks.clicks.Features`)."""

    vocabulary_sizes: Sequence[int]
    categorical_names: Sequence[str]
    numeric_names: Sequence[str]
    bag_combiners: Sequence[str]


class TableInMemory:
    """A polars DataFrame as :class:`~pipelines.data.clicks.table_frames.Frames`."""

    def __init__(self, table: pl.DataFrame) -> None:
        self._table = table

    def identity(self) -> dict[str, Any]:
        raise NotImplementedError  # of rows that are scored, and never kept

    def files(self) -> list[dict[str, Any]]:
        return []

    def check(self, wanted: Wanted) -> None:
        ColumnCheck(wanted)("the table", self._table.schema)

    def read(self, wanted: Wanted, progress: Progress) -> Iterator[Frame]:
        yield from in_frames(self._table.select(columns_of(wanted)), "the table")


class Trained:
    """The model of a finished run; made by :func:`load`.

    Attributes:
        config: settings of the run, with the changes that were asked for.
        summary: the run's summary.json.
        device: where the model is.
    """

    def __init__(self, config: Config, summary: Mapping[str, Any], weights: Path, trained: Config) -> None:
        self.config, self.summary = config, summary
        self.device = device_of(config.device)
        self._weights, self._trained = weights, trained
        self._task: Task | None = None

    @property
    def model(self) -> nn.Module:
        """The model with its released weights, in ``eval()``.

        Raises:
            UserError: its data must be read first to know their features, and cannot be.
        """
        if self._task is None:
            with tempfile.TemporaryDirectory() as scratch:
                self._task_for(next(iter(self._clicks.to_score(Path(scratch), labelled=False))))
        assert self._task is not None
        return self._task.model

    @property
    def calibration(self) -> Platt | None:
        """The Platt scaling that the run fitted on validation rows."""
        found = self.summary["utility"].get("calibration")
        return None if found is None else Platt(**found)

    def predict(self, data: str | Path | pl.DataFrame | None = None) -> pl.DataFrame:
        """Return a line for each row of new data, in their order: see :meth:`scored`.

        Args:
            data: files in place of ``data.path``, or a table; None for the data of the settings.
        """
        found = list(self.scored(data))
        return pl.concat(found) if found else _click_scores(np.empty(0), None)

    def scored(
        self, data: str | Path | pl.DataFrame | None = None, progress: Progress = lambda done, total: None
    ) -> Iterator[pl.DataFrame]:
        """Yield the scores of clicks, some thousands at a time: ``probability``, calibrated if the run fitted a Platt
        scaling, and ``logit``, the model's own logarithm of the odds.

        Raises:
            UserError: the data are texts, or cannot be read.
        """
        for rows in self._rows(self._of(data), False, progress):
            assert isinstance(self._task, ClickTask)
            yield _click_scores(self._task.scores(rows), self.calibration)

    def scored_split(self, split: str) -> Iterator[pl.DataFrame]:
        """Yield the scores of one split of the data of the settings, which are prepared if they are not there; of a
        stream, of its last day.

        Of clicks as :meth:`scored`; of texts ``label``, the most probable class, and the probability of each class.
        """
        rows, task = self._split(split), self._task
        for chunk in rows.chunks(EVALUATION_BATCH):
            found = task.scores(chunk)  # type: ignore[union-attr]
            yield _text_scores(found) if found.ndim == 2 else _click_scores(found, self.calibration)

    def evaluate(
        self, data: str | Path | pl.DataFrame | None = None, progress: Progress = lambda done, total: None
    ) -> dict[str, Any]:
        """Return what the model is worth on labelled clicks.

        ``examples``, ``auc``, its ``standard_error``, the mean log ``loss``, that of the best constant, and that after
        the run's Platt scaling.

        Raises:
            UserError: the data are texts, or cannot be read.
        """
        evaluation = Evaluation()
        for rows in self._rows(self._of(data), True, progress):
            assert isinstance(self._task, ClickTask)
            evaluation.add(self._task.model, self._task.to_device(rows))
        return {"examples": evaluation.auc.examples, **evaluation.values(self.calibration)}

    def evaluate_split(self, split: str) -> dict[str, Any]:
        """Return the same of one split of the data of the settings; of texts their ``accuracy``."""
        rows = self._split(split)
        assert self._task is not None
        return {"examples": len(rows), **self._task.evaluate(rows, self.calibration)}

    @property
    def _clicks(self) -> ClickConfig:
        if not isinstance(self.config.data, ClickConfig):
            raise UserError(
                "The model reads texts: name a folder of such files by data.path, and one of their splits by --split."
            )
        return self.config.data

    def _of(self, data: str | Path | pl.DataFrame | None) -> ClickConfig:
        clicks = self._clicks
        if data is None:
            return clicks
        if not isinstance(data, str | Path | pl.DataFrame):
            kind = f"{type(data).__module__.split('.')[0]} {type(data).__name__}"
            cure = "polars.from_pandas(table)" if kind == "pandas DataFrame" else "polars.DataFrame(table)"
            raise UserError(f"New rows are a path or a polars DataFrame, not a {kind}: give {cure}.")
        if isinstance(data, pl.DataFrame):
            if not isinstance(clicks, ColumnsConfig):
                raise UserError(
                    f"A table can be scored by a model of data=table, and this one is of data={clicks.name}."
                )
            return _InMemory.of(clicks, data)
        return dataclasses.replace(clicks, path=str(data))  # type: ignore[type-var]

    def _rows(self, data: ClickConfig, labelled: bool, progress: Progress) -> Iterator[Rows]:
        with tempfile.TemporaryDirectory() as scratch:
            for source in data.to_score(Path(scratch), labelled):
                self._task_for(source)
                vocabulary = vocabulary_of(source, data.vocabulary, self._vocabulary)
                record, cut = record_of(source, data.bags), Counter[str]()
                for block in source.blocks(progress):
                    records = records_of(block, vocabulary, record, data.bags, cut)
                    for start in range(0, len(records), EVALUATION_BATCH):
                        yield Rows.of(records[start : start + EVALUATION_BATCH])

    def _vocabulary(self) -> Path:
        """Return the folder of a learnt vocabulary: the release, if it is private, or the data that were trained on,
        whose name is made of their source."""
        released = self._weights.parent
        if "vocabulary_sha256" in self.summary or (released / VOCABULARY).exists():
            return released
        return dataset_folder(dataclasses.replace(self._trained, paths=self.config.paths))

    def _task_for(self, source: RowSource) -> None:
        """Make the model, whose features are those of the source."""
        if self._task is None:
            vocabulary = vocabulary_of(source, self._clicks.vocabulary, self._vocabulary)
            combiners = [bag.combiner for bag in self._clicks.bags.values()]
            features = SourceFeatures(vocabulary.sizes, source.categorical_names, source.numeric_names, combiners)
            smaller = smaller_tables(self.config)
            self._made(ClickTask(features, self.config.model, self.config.seed, self.device, smaller=smaller))

    def _split(self, split: str) -> Any:
        released = self.summary.get("vocabulary_sha256")
        if released is not None and not dataset_folder(self.config).exists():  # and could not be made again
            raise UserError(
                "The splits of a private vocabulary are in the folder of the data that were trained on, whose noise is "
                "secret: say where it is by paths.data (its noise_seed by data.vocabulary.noise_seed), or score rows "
                "by data.path=..."
            )
        stream = prepared(self.config)
        day: Dataset = stream.days[-1]
        day.verify()
        if released not in (None, day.vocabulary_sha256):
            raise UserError(
                f"{day.folder} has another vocabulary than the run was trained on, for its data were preprocessed "
                "again: score rows by data.path=..."
            )
        if self._task is None:
            self._made(task_of(self.config, day, self.device))
        return day.split(split)

    def _made(self, task: Task) -> None:
        try:
            task.model.load_state_dict(load_file(self._weights, device=str(self.device)))
        except (RuntimeError, OSError, SafetensorError) as error:
            first = str(error).strip().splitlines()
            raise UserError(
                f"{self._weights} does not fit the model of its settings ({' '.join(first[:2])})."
            ) from error
        task.model.eval()
        self._task = task


@dataclass
class _InMemory(ColumnsConfig):
    """A table in memory, in place of files."""

    table: pl.DataFrame | None = None

    @classmethod
    def of(cls, columns: ColumnsConfig, table: pl.DataFrame) -> _InMemory:
        own = {field.name: getattr(columns, field.name) for field in dataclasses.fields(ColumnsConfig)}
        return cls(**own, table=table)

    def frames(self) -> TableInMemory:
        assert self.table is not None
        return TableInMemory(self.table)


def load(run: str | Path, *overrides: str) -> Trained:
    """Return the model of a finished run.

    Args:
        run: its folder, or that of its release alone.
        overrides: ``data.KEY=VALUE``, ``device=...`` or ``paths.data=...``, as on the command line.

    Raises:
        UserError: there is no finished run, its weights were not kept, or a setting is wrong.
    """
    run = Path(run)
    release = run / RELEASE if (run / RELEASE).is_dir() else run
    if not (release / SUMMARY).is_file():
        raise UserError(f"{run} is no finished run: {_unfinished(run)}")
    own = run / PRIVATE / CONFIG
    settings = _read(own if os.access(own, os.R_OK) else release / CONFIG)  # another user's is not readable
    trained = typed(settings)
    if not (release / WEIGHTS).is_file():
        raise UserError(f"{run} kept no weights: train it with train.save_model=true.")
    for key, value in _parsed(overrides):
        _set(settings, key, value)
    return Trained(typed(settings), _read(release / SUMMARY), release / WEIGHTS, trained)


def _unfinished(run: Path) -> str:
    """Return why a folder is no finished run, and what to do."""
    if not run.is_dir():
        return "there is no such folder. Give the folder that training printed."
    try:
        status = _read(run / "status.json")
    except UserError:
        return f"it has neither {RELEASE}/{SUMMARY} nor status.json. Give the folder that training printed."
    reason = f" ({status['reason']})" if status.get("reason") else ""
    return f"its status is {status.get('status')}{reason}. Wait for its end, or give its command again."


def _parsed(overrides: Sequence[str]) -> list[tuple[list[str], Any]]:
    for text in overrides:
        if not text.startswith(_ALLOWED):
            raise UserError(f"{text} cannot be changed of a trained model: only data.*, device and paths.data can.")
    return [(one.get_key_element().split("."), one.value()) for one in Composer().parse(overrides)]


def _set(settings: dict[str, Any], key: Sequence[str], value: Any) -> None:
    for name in key[:-1]:
        settings = settings.setdefault(name, {})
    settings[key[-1]] = value


def _read(path: Path) -> dict[str, Any]:
    try:
        read = yaml_value(path.read_text(encoding="utf-8"))  # JSON, too
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).") from error
    if not isinstance(read, dict):
        raise UserError(f"{path} is damaged: it holds no settings.")
    return read


def _click_scores(logits: NDArray[np.float64], calibration: Platt | None) -> pl.DataFrame:
    scaled = logits if calibration is None else calibration.scale * logits + calibration.shift
    return pl.DataFrame({"probability": expit(scaled), "logit": logits})


def _text_scores(logits: NDArray[np.float64]) -> pl.DataFrame:
    probabilities = softmax(logits, axis=1)
    named = {f"probability_{number}": column for number, column in enumerate(probabilities.T)}
    return pl.DataFrame({"label": logits.argmax(1), **named})
