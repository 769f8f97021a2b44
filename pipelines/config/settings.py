"""The typed configuration: one dataclass for each section.

`typed` turns what Hydra composed into a `Config`, or says which key is wrong.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpfest.errors import UserError
from pipelines.config.schema import build, nearest, unknown_key
from pipelines.system.hub import HubConfig

if TYPE_CHECKING:
    from omegaconf import DictConfig

# section -> its choices by name -> the dataclass, as module:class, imported when it is needed.
SCHEMAS: dict[str, dict[str, str]] = {
    "data": {
        "nycflights": "pipelines.data.clicks.nycflights:NycflightsConfig",
        "nycflights_stream": "pipelines.data.clicks.nycflights_stream:NycflightsStreamConfig",
        "criteo_kaggle": "pipelines.data.clicks.criteo:CriteoKaggleConfig",
        "criteo_1tb": "pipelines.data.clicks.criteo_days:Criteo1TBConfig",
        "criteo_synthetic": "pipelines.data.clicks.synthetic:CriteoSyntheticConfig",
        "criteo_synthetic_stream": "pipelines.data.clicks.synthetic:CriteoSyntheticStreamConfig",
        "sst2": "pipelines.data.text.glue:Sst2Config",
        "qnli": "pipelines.data.text.glue:QnliConfig",
        "qqp": "pipelines.data.text.glue:QqpConfig",
        "xnli": "pipelines.data.text.glue:XnliConfig",
        "text_synthetic": "pipelines.data.text.synthetic:TextSyntheticConfig",
    },
    "model": {"pctr": "pipelines.tasks.pctr:PctrConfig", "roberta": "pipelines.tasks.roberta:RobertaConfig"},
    "algorithm": {
        "nonprivate": "dpfest.unproven:Nonprivate",
        "frozen": "dpfest.algorithms:Frozen",
        "dpsgd": "dpfest.algorithms:DPSGD",
        "fest": "dpfest.algorithms:FEST",
        "adafest": "dpfest.algorithms:AdaFEST",
        "adafest_plus": "dpfest.algorithms:AdaFESTPlus",
        "exponential": "dpfest.algorithms:Exponential",
        "lora_embedding": "pipelines.tasks.low_rank_table:LoraEmbedding",
    },
}
PLAIN_SCHEMAS = {
    "privacy": "pipelines.config.settings:PrivacyConfig",
    "optimizer": "pipelines.tasks.optimizers:OptimizerConfig",
    "train": "pipelines.config.settings:TrainConfig",
    "stream": "pipelines.config.settings:StreamConfig",
}

TOKENIZER_PRIOR = "tokenizer"
"""An `algorithm.selection.prior` that is no file: what the tokenizer of the texts says of its tokens, which the hash of
the data covers."""


@dataclass
class PrivacyConfig:
    """The target of a run, and how it is counted.

    `fidelity` is `rigorous` (true Poisson batches, every release composed) or `paper` (shuffled batches of a fixed size
    accounted as if they were Poisson, a selection's claimed epsilon added); `delta` None is 1 / examples; `noise_seed`
    None is a key drawn from the operating system, and fixed only to reproduce results on public data.
    """

    fidelity: str = "rigorous"
    epsilon: float = 1.0
    delta: float | None = None
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        if self.fidelity not in ("rigorous", "paper"):
            raise ValueError(f"fidelity={self.fidelity} must be rigorous or paper.")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon={self.epsilon} must be above 0.")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta={self.delta} must lie between 0 and 1, or be null for 1 / examples.")


@dataclass
class TrainConfig:
    """Length of training and what is written on the way; the step counts are in optimiser steps.

    Attributes:
        batch_size: expected size B of a logical batch, in examples.
        micro_batch_size: examples in memory at once; null for the whole batch.
        epochs: steps = ceil(epochs * examples / batch_size), unless `steps` is given; in a stream, of each period.
        evaluate_every: null for at the end only.
        log_every: steps between lines of metrics.jsonl, and between updates of the progress (loss, reduction, epsilon
            so far): under the bar on a terminal, elsewhere a line of the log. The last step always does both.
        save_model: whether the weights are released.
    """

    batch_size: int = 2048
    micro_batch_size: int | None = None
    epochs: float = 1.0
    steps: int | None = None
    evaluate_every: int | None = None
    checkpoint_every: int = 200
    log_every: int = 20
    save_model: bool = True

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name != "save_model" and value is not None and not value > 0:
                raise ValueError(f"train.{name}={value} must be above 0.")


@dataclass
class StreamConfig:
    """How a stream of days is trained on; without effect on other data.

    Attributes:
        train_days: days that are trained on, in their order; those after them are held out.
        period: days after which the model is updated; the last period may be shorter.
    """

    train_days: int = 18
    period: int = 1

    def __post_init__(self) -> None:
        if self.train_days < 1:
            raise ValueError(f"stream.train_days={self.train_days} must be 1 or more.")
        if not 1 <= self.period <= self.train_days:
            raise ValueError(
                f"stream.period={self.period} must lie between 1 and stream.train_days={self.train_days}: a period is "
                "so many of the days that are trained on."
            )


@dataclass
class BudgetConfig:
    """What `dpfest budget` cannot know without a dataset: its number of training examples, in a stream those of all
    the days that are trained on, which are then taken as equally long."""

    examples: int | None = None

    def __post_init__(self) -> None:
        if self.examples is not None and self.examples < 1:
            raise ValueError(f"budget.examples={self.examples} must be 1 or more.")


@dataclass
class AuditConfig:
    """How many releases `dpfest audit` draws of an engine in each of the two worlds."""

    draws: int = 500_000

    def __post_init__(self) -> None:
        if self.draws < 1000:
            raise ValueError(f"audit.draws={self.draws} must be 1000 or more: fewer refute nothing.")


@dataclass
class BenchConfig:
    """What a benchmark may take.

    Attributes:
        seconds: a competitor that has run so long at one size takes no more turns, once it has had three.
        largest_rows: of all tables together; larger sizes are cut to it, and to what memory holds.
        dense_coordinates: tables of more coordinates are not timed with dense noise; the default is the paper's
            largest, 10 million rows of 64.
        preprocess_rows: rows of each generated file.
    """

    seconds: float = 30.0
    largest_rows: int = 100_000_000
    dense_coordinates: int = 640_000_000
    preprocess_rows: list[int] = field(default_factory=lambda: [1_000_000, 10_000_000])

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"bench.seconds={self.seconds} must be above 0.")
        if self.largest_rows < 100:
            raise ValueError(f"bench.largest_rows={self.largest_rows} must be 100 or more.")
        if self.dense_coordinates < 0:
            raise ValueError(f"bench.dense_coordinates={self.dense_coordinates} must be 0 or more.")
        if not self.preprocess_rows or min(self.preprocess_rows) < 1:
            raise ValueError(f"bench.preprocess_rows={self.preprocess_rows} must be a list of positive numbers.")


@dataclass
class SweepConfig:
    """How many runs at once on this machine, and the folder in which the jobs of a sweep record their outcomes."""

    jobs: int = 1
    records: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"sweep.jobs={self.jobs} must be 1 or more.")


@dataclass
class PreprocessStageConfig:
    """How many days of a stream are made at once on this machine; the one day to make, where it is a task of its own;
    and whether what is there is compared with its checksums (which reads it whole) and, where damaged, made again."""

    jobs: int = 1
    day: int | None = None
    verify: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"preprocess.jobs={self.jobs} must be 1 or more.")


@dataclass
class PathsConfig:
    """Where processed datasets, run directories and the report lie."""

    data: str = "data"
    runs: str = "runs"
    report: str = "report"


@dataclass
class ExperimentConfig:
    """A named set of grids, one for each profile: a union of products of override values."""

    name: str
    grids: dict[str, list[dict[str, list[Any]]]]


@dataclass
class Config:
    """Everything that a stage may ask, typed and checked."""

    data: Any
    model: Any
    algorithm: Any
    privacy: PrivacyConfig
    optimizer: Any
    train: TrainConfig
    stream: StreamConfig = field(default_factory=StreamConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    preprocess: PreprocessStageConfig = field(default_factory=PreprocessStageConfig)
    seed: int = 0
    device: str = "auto"
    paths: PathsConfig = field(default_factory=PathsConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    profile: str = "demo"
    experiment: ExperimentConfig | None = None

    def __post_init__(self) -> None:
        for section in (self.data, self.model):
            section.hub = self.hub  # those that name files ask it before they fetch any
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed} must be between 0 and 2**63 - 1.")
        if self.data.task != self.model.task:
            fitting = {"clicks": "pctr", "text": "roberta"}[self.data.task]
            raise ValueError(
                f"model={self.model.name} does not read what data={self.data.name} holds: choose model={fitting}, or "
                "other data."
            )
        if self.algorithm.name == "lora_embedding" and self.data.task != "text":
            raise ValueError(
                f"algorithm=lora_embedding puts factors in a word embedding's stead, and data={self.data.name} holds "
                "no texts: take algorithm=dpsgd, or data of texts."
            )
        selection = self.algorithm.selection
        if selection is not None and selection.source is not None and not self.data.is_stream:
            raise ValueError(
                f"algorithm.selection.source={selection.source} says which days of a stream are counted, and "
                f"data={self.data.name} is no stream: leave it null, or take a stream such as data=nycflights_stream."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, as Hydra's own yaml would show them."""
        return dataclasses.asdict(self)


def typed(cfg: DictConfig | Mapping[str, Any]) -> Config:
    """The typed configuration of what Hydra composed.

    Raises:
        UserError: a key that does not exist (with the nearest that does), a wrong type, a mandatory value
            that was not given, or a value that its dataclass refuses.
    """
    values = _container(cfg)
    sections = {name: _section(name, values.pop(name, {})) for name in (*SCHEMAS, *PLAIN_SCHEMAS)}
    for key in values:
        if key not in Config.__dataclass_fields__:
            raise unknown_key(str(key), [*Config.__dataclass_fields__, *_leaves(sections)])
    return build(Config, values | sections)


def _container(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import InterpolationKeyError

    try:
        values = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
    except InterpolationKeyError as error:
        if str(error.full_key).partition(".")[0] not in ("data", "model"):
            raise
        choices = " and ".join(f"{name}={cfg[name]['name']}" for name in ("data", "model"))
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"{choices} do not go together ({error.full_key}: {reason}). Choose data and a model of one kind."
        ) from error
    return dict(values)  # type: ignore[arg-type]


def _section(name: str, values: Any) -> Any:
    if name in PLAIN_SCHEMAS:
        return build(_load(PLAIN_SCHEMAS[name]), values, name)
    choices = SCHEMAS[name]
    choice = values.get("name") if isinstance(values, Mapping) else None
    if choice not in choices:
        guess = nearest(str(choice), choices)
        raise UserError(
            f"{name}.name={choice} is none of {', '.join(choices)}"
            + (f"; did you mean {name}={guess}?" if guess else f"; choose one with {name}=...")
        )
    return build(schema(name, choice), values, name)


def schema(section: str, choice: str) -> type[Any]:
    """The dataclass of a choice of data, model or algorithm."""
    return _load(SCHEMAS[section][choice])


def _leaves(sections: Mapping[str, Any]) -> list[str]:
    from pipelines.config.schema import dotted_keys

    return dotted_keys({name: dataclasses.asdict(section) for name, section in sections.items()})


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
