"""`dpfest check`: read, hash, write and train on the head of a click log, in minutes.

The head is copied to a file in a scratch folder, which then passes through the ordinary stages. Measurements come with
their expected values where theory gives them: the counts of the table rows determine the expected gradient sizes of a
Poisson batch and of DP-AdaFEST.

The measurements are exact and not private: they are for the owner of the data.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpfest.algorithms.adafest import AdaFEST
from dpfest.errors import UserError
from pipelines.config.settings import Config, PathsConfig, schema
from pipelines.data.clicks.blocks import count_bytes
from pipelines.data.clicks.criteo import CriteoFiles, CriteoKaggleConfig, lines_of
from pipelines.data.clicks.criteo_days import Criteo1TBConfig
from pipelines.data.clicks.criteo_lines import FIELDS, parse_block
from pipelines.data.clicks.split import SplitConfig, split_of
from pipelines.data.clicks.synthetic import GeneratorConfig, write_criteo_files
from pipelines.data.clicks.vocabulary import VocabularyConfig, learn_vocabulary
from pipelines.data.dataset import Dataset
from pipelines.data.hashing import BLANK_KEY
from pipelines.preprocess import preprocess
from pipelines.tasks.optimizers import DenseOptimizerConfig, OptimizerConfig, TableOptimizerConfig
from pipelines.train import make_run

ALGORITHMS = ("nonprivate", "frozen", "dpsgd", "adafest")
"""The algorithms to train, in this order."""

_NONPRIVATE = OptimizerConfig(
    DenseOptimizerConfig(learning_rate=0.001), TableOptimizerConfig(name="adagrad", learning_rate=0.01)
)
"""The centre of the grid of `experiment=comparison`; private algorithms use the configured `optimizer`."""

_LEAST_BATCHES = 10
_NODES = 64


@dataclass(frozen=True)
class Feature:
    """A categorical feature: number of `values` in the training rows (blank is one), number of table `rows` and of rows
    `used`, and the share of all lines in which it is `blank`."""

    name: str
    values: int
    rows: int
    used: int
    blank: float


@dataclass(frozen=True)
class Expected:
    """The expected mean over steps, computed from the counts of the table rows, with its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Trial:
    """A short training.

    Attributes:
        auc, error: test AUC and its standard error; None if the labels do not define it.
        parameters: coordinates of the embedding tables.
        coordinates: non-zero coordinates of the embedding gradient, mean over steps.
        expected: expected value of `coordinates` by the laws of batches and map; None where it is all or none of them.
        seconds: seconds per step.
        evaluation: seconds to evaluate one example.
    """

    algorithm: str
    auc: float | None
    error: float | None
    parameters: int
    coordinates: float
    expected: Expected | None
    seconds: float
    evaluation: float


@dataclass(frozen=True)
class Findings:
    """Content of the head of a log, and results of training on it.

    Attributes:
        data: name of the data.
        source: the file that was read, or its generator.
        lines: number of lines read, including malformed ones.
        malformed: number of malformed lines; `first` describes the first of them.
        positives: share of label 1.
        hashed: whether the vocabulary is hashed, so that values can share a row.
        seconds: time of preprocessing the lines.
        epsilon: target epsilon of each private training.
    """

    data: str
    source: str
    lines: int
    malformed: int
    first: str | None
    positives: float
    hashed: bool
    features: Sequence[Feature]
    seconds: float
    steps: int
    batch_size: int
    epsilon: float
    trials: Mapping[str, Trial]

    @property
    def parameters(self) -> int:
        """Coordinates of the embedding tables."""
        return next(trial.parameters for trial in self.trials.values())


def check(config: Config) -> Findings:
    """Measure the first `check.lines` lines of a log in Criteo's format; of a stream, of its first day.

    Temporary files lie in a hidden folder in `paths.data` and are removed at the end.

    Raises:
        UserError: the data are of another kind, missing, or too few.
    """
    data = config.data
    if not isinstance(data, CriteoKaggleConfig | Criteo1TBConfig | GeneratorConfig):
        raise UserError(
            f"dpfest check reads logs in Criteo's format, not data={data.name}: choose data=criteo_kaggle or "
            "data=criteo_1tb with data.path=..., or data=criteo_synthetic to try it."
        )
    data.check()
    folder = Path(config.paths.data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be a folder for data ({error.strerror}): set paths.data.") from error
    with tempfile.TemporaryDirectory(prefix=".check-", dir=folder) as scratch:
        return _measure(config, Path(scratch))


def _measure(config: Config, scratch: Path) -> Findings:
    name, file = config.data.name, scratch / "head.txt"
    source, lines = _head(config, file)
    split = config.data.split if isinstance(config.data.split, SplitConfig) else SplitConfig()
    least = math.ceil(_LEAST_BATCHES * config.train.batch_size / split.train)
    if lines < least:
        raise UserError(
            f"{source} has {lines:,} lines, and a check needs at least {least:,} for {_LEAST_BATCHES} batches of "
            "train.batch_size: raise check.lines, or lower train.batch_size."
        )
    head = CriteoKaggleConfig(path=str(file), on_bad_row="skip", vocabulary=config.data.vocabulary, split=split)
    paths = PathsConfig(*(str(scratch / name) for name in ("data", "runs", "report")))
    train = replace(config.train, steps=config.check.steps, evaluate_every=None, save_model=False)
    config = replace(config, data=head, paths=paths, train=train, experiment=None)
    started = time.perf_counter()
    dataset = Dataset.open(preprocess(config))
    seconds = time.perf_counter() - started
    counts, splits = dataset.histogram(), dataset.description["splits"].values()
    rejected = dataset.description["rejected_rows"]
    return Findings(
        data=name,
        source=source,
        lines=lines,
        malformed=rejected["total"],
        first=next((text.replace(str(file), source) for text in rejected["first"]), None),
        positives=sum(part["positives"] for part in splits) / sum(part["rows"] for part in splits),
        hashed=dataset.description["vocabulary"]["policy"] == "hash",
        features=_features(head, dataset, counts),
        seconds=seconds,
        steps=config.check.steps,
        batch_size=config.train.batch_size,
        epsilon=config.privacy.epsilon,
        trials={name: _train(config, name, dataset.examples, counts) for name in ALGORITHMS},
    )


def _head(config: Config, file: Path) -> tuple[str, int]:
    """Write the first `check.lines` lines to a file; returns their source and their number.

    Raises:
        UserError: none of them is in Criteo's format.
    """
    data, wanted = config.data, config.check.lines
    if isinstance(data, GeneratorConfig):
        rows = {day: min(rows, wanted) for day, rows in data.rows_of_days().items() if day == 0}
        (written,) = write_criteo_files(file.parent, data, rows, lambda done, total: None)
        written.rename(file)
        return f"the generator of data={data.name}", rows[0]
    (path,) = data.source(data.day_numbers()[0], file.parent).paths
    lines = 0
    with file.open("wb") as head:
        for block in lines_of(path):
            count = count_bytes(block, b"\n")
            if lines == 0:
                _refuse_other_formats(path, block)
            if lines + count > wanted:
                ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                block, count = block[: ends[wanted - lines - 1] + 1], wanted - lines
            head.write(block)
            lines += count
            if lines == wanted:
                break
    return str(path), lines


def _refuse_other_formats(path: Path, block: bytes) -> None:
    parsed = parse_block(block)
    if len(parsed.line):
        return
    place, error = parsed.bad[0]
    fields = block.split(b"\n", place + 1)[place].count(b"\t") + 1
    test = " Kaggle's test.txt has no labels: give its train.txt." if fields == FIELDS - 1 else ""
    raise UserError(
        f"{path} is not in Criteo's format: line {place + 1} has {error}.{test} A line has a label, 13 integers and 26 "
        "categories of 8 hexadecimal digits, separated by tabs."
    )


def _features(head: CriteoKaggleConfig, dataset: Dataset, counts: Sequence[NDArray[np.int64]]) -> list[Feature]:
    """Count the values of the categories, with the reader that wrote the dataset."""
    blank, lines = np.zeros(len(counts)), 0

    def training_keys() -> Iterator[list[NDArray[np.uint64]]]:
        nonlocal blank, lines
        for block in CriteoFiles([Path(head.path)], head.on_bad_row).blocks(lambda done, total: None):
            blank, lines = blank + (block.keys == BLANK_KEY).sum(0), lines + len(block.label)
            yield block.keys_of(split_of(block, head.split) == 0)

    values = learn_vocabulary(training_keys(), VocabularyConfig(policy="all")).keys
    columns = zip(dataset.categorical_names, values, counts, blank / lines, strict=True)
    return [Feature(name, len(keys), len(rows), int((rows > 0).sum()), share) for name, keys, rows, share in columns]


def _train(config: Config, name: str, examples: int, counts: Sequence[NDArray[np.int64]]) -> Trial:
    algorithm = config.algorithm if config.algorithm.name == name else schema("algorithm", name)()
    optimizer = _NONPRIVATE if name == "nonprivate" else config.optimizer
    run = make_run(replace(config, algorithm=algorithm, optimizer=optimizer))
    summary = run.summary
    timings = json.loads((run.path / "private" / "timings.json").read_text(encoding="utf-8"))
    utility, gradient = summary["utility"], summary["embedding_gradient"]
    rate, dims = config.train.batch_size / examples, [table["dim"] for table in gradient["tables"]]
    expected = None
    if name == "nonprivate":
        expected = _mean_size([-np.expm1(rows * math.log1p(-rate)) for rows in counts], dims, summary["steps"])
    elif isinstance(algorithm, AdaFEST):
        noise = summary["privacy"]["map_noise_multiplier"]
        expected = _mean_size(
            [surviving(algorithm, noise, rows, rate, len(dims)) for rows in counts], dims, summary["steps"]
        )
    return Trial(
        algorithm=name,
        auc=utility["value"],
        error=utility["standard_error"],
        parameters=gradient["parameters"],
        coordinates=gradient["coordinates_mean"],
        expected=expected,
        seconds=timings["wall_seconds"] / summary["steps"],
        evaluation=timings["evaluation_seconds"] / timings["evaluated_examples"],
    )


def surviving(
    algorithm: AdaFEST, noise_multiplier: float, counts: NDArray[np.int64], rate: float, features: int
) -> NDArray[np.float64]:
    """Return the probability that each row passes DP-AdaFEST's map in a step, shape [rows].

    An example touches one row of each feature, so each counts min(1, C1 / √features); the number of a row's examples in
    a Poisson batch is binomial.

    Args:
        algorithm: threshold and C1.
        noise_multiplier: σ1.
        counts: number of training examples of each row, shape [rows].
        rate: sampling probability of an example.
        features: number of categorical features.
    """
    share = min(1.0, algorithm.contribution_clipping_norm / math.sqrt(features))
    deviation = noise_multiplier * algorithm.contribution_clipping_norm
    distinct, place = np.unique(counts, return_inverse=True)
    levels = (np.arange(_NODES) + 0.5) / _NODES  # approximate the binomial by its quantiles
    batch = stats.binom.ppf(levels, distinct[:, None], rate)
    return stats.norm.sf((algorithm.threshold - share * batch) / deviation).mean(1)[place]


def _mean_size(survival: Sequence[NDArray[np.float64]], dims: Sequence[int], steps: int) -> Expected:
    """Return the expected number of coordinates of rows that survive independently with these probabilities."""
    parts = list(zip(survival, dims, strict=True))
    value = sum(dim * float(share.sum()) for share, dim in parts)
    variance = sum(dim**2 * float((share * (1 - share)).sum()) for share, dim in parts)
    return Expected(value, math.sqrt(variance / steps))
