"""The typed configuration: one dataclass for each section.

`typed` converts a composed configuration to a `Config`, or names the wrong key.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dpfest.algorithms import ALGORITHMS
from dpfest.errors import UserError
from pipelines.config.schema import build, nearest, unknown_key
from pipelines.system.hub import HubConfig
from pipelines.system.ranges import Count, Day, Days, Jobs, Seed, Within

if TYPE_CHECKING:
    from omegaconf import DictConfig

# section -> its choices by name -> the dataclass, as module:class, imported when it is needed.
SCHEMAS: dict[str, dict[str, str]] = {
    "data": {
        "journey": "pipelines.data.clicks.journey:JourneyConfig",
        "journey_stream": "pipelines.data.clicks.journey:JourneyStreamConfig",
        "promotions": "pipelines.data.clicks.promotions:PromotionsConfig",
        "promotions_stream": "pipelines.data.clicks.promotions:PromotionsStreamConfig",
        "names": "pipelines.data.clicks.names:NamesConfig",
        "names_stream": "pipelines.data.clicks.names:NamesStreamConfig",
        "nycflights": "pipelines.data.clicks.nycflights:NycflightsConfig",
        "nycflights_stream": "pipelines.data.clicks.nycflights_stream:NycflightsStreamConfig",
        "criteo_kaggle": "pipelines.data.clicks.criteo:CriteoKaggleConfig",
        "criteo_1tb": "pipelines.data.clicks.criteo_days:Criteo1TBConfig",
        "criteo_synthetic": "pipelines.data.clicks.synthetic:CriteoSyntheticConfig",
        "criteo_synthetic_stream": "pipelines.data.clicks.synthetic:CriteoSyntheticStreamConfig",
        "map_synthetic": "pipelines.data.clicks.map_synthetic:MapSyntheticConfig",
        "sst2": "pipelines.data.text.glue:Sst2Config",
        "qnli": "pipelines.data.text.glue:QnliConfig",
        "qqp": "pipelines.data.text.glue:QqpConfig",
        "xnli": "pipelines.data.text.glue:XnliConfig",
        "text_synthetic": "pipelines.data.text.synthetic:TextSyntheticConfig",
    },
    "model": {"pctr": "pipelines.tasks.pctr:PctrConfig", "roberta": "pipelines.tasks.roberta:RobertaConfig"},
    "algorithm": {
        "nonprivate": "dpfest.unproven:Nonprivate",
        **{name: f"{algorithm.__module__}:{algorithm.__name__}" for name, algorithm in ALGORITHMS.items()},
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
    """The privacy target of a run, and how it is accounted.

    Attributes:
        fidelity: ``rigorous`` (true Poisson batches, every release composed) or ``paper`` (shuffled batches of a fixed
            size accounted as if they were Poisson, a selection's claimed epsilon added).
        epsilon: target of the whole run, selection of rows included.
        delta: target; null for 1 / examples.
        noise_seed: null for a key drawn from the operating system; fix it only to reproduce results on public data.
    """

    fidelity: Literal["rigorous", "paper"] = "rigorous"
    epsilon: Annotated[float, Within(0, 1e4, above=True)] = 1.0
    delta: float | None = None
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta={self.delta} must lie between 0 and 1, or be null for 1 / examples.")


@dataclass
class TrainConfig:
    """Length of training, and how often it evaluates, saves and logs; counts of steps are optimiser steps.

    Attributes:
        batch_size: expected size B of a logical batch, in examples.
        micro_batch_size: examples in memory at once; null for the whole batch.
        epochs: steps = ceil(epochs * examples / batch_size), unless `steps` is given; in a stream, of each period.
        steps: optimiser steps; null for as many as ``epochs`` asks for.
        evaluate_every: steps between evaluations; null for one at the end. Under lazy noise it can change the result.
        checkpoint_every: steps between checkpoints, from which a killed run resumes.
        log_every: steps between entries of metrics.jsonl, and between updates of what the terminal or the log shows
            (loss, reduction, epsilon so far). The last step always does both.
        save_model: whether a finished run keeps its weights.
    """

    batch_size: Count = 2048
    micro_batch_size: Count | None = None
    epochs: Annotated[float, Within(0, 1e6, above=True)] = 1.0
    steps: Count | None = None
    evaluate_every: Count | None = None
    checkpoint_every: Count = 200
    log_every: Count = 20
    save_model: bool = True


@dataclass
class StreamConfig:
    """How a stream of days is trained; without effect on other data.

    Attributes:
        train_days: days that are trained on, in their order; those after them are held out.
        period: days after which the model is updated; the last period may be shorter.
    """

    train_days: Days = 18
    period: Days = 1

    def __post_init__(self) -> None:
        if self.period > self.train_days:
            raise ValueError(
                f"stream.period={self.period} must lie between 1 and stream.train_days={self.train_days}: a period is "
                "so many of the days that are trained on."
            )


@dataclass
class BudgetConfig:
    """Size of the data for `dpfest budget`, which needs no dataset.

    Attributes:
        examples: training examples; in a stream, of all days that are trained on, taken as equally long. Null for those
            of the processed dataset.
    """

    examples: Annotated[int, Within(1, 10**15)] | None = None


@dataclass
class AuditConfig:
    """Size of `dpfest audit`.

    Attributes:
        draws: releases drawn of an engine in each of the two worlds, with the canary and without.
    """

    draws: Annotated[int, Within(1000, 10**9)] = 500_000


@dataclass
class CheckConfig:
    """Size of `dpfest check`.

    Attributes:
        lines: read from the start of the file, or of the first day.
        steps: of each training.
    """

    lines: Annotated[int, Within(100, 10**9)] = 1_000_000
    steps: Count = 200


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

    seconds: Annotated[float, Within(0, 86_400, above=True)] = 30.0
    largest_rows: Annotated[int, Within(100, 10**10)] = 100_000_000
    dense_coordinates: Annotated[int, Within(0, 10**12)] = 640_000_000
    preprocess_rows: list[Count] = field(default_factory=lambda: [1_000_000, 10_000_000])

    def __post_init__(self) -> None:
        if not self.preprocess_rows:
            raise ValueError("bench.preprocess_rows=[] must be a list of numbers, one a file.")


@dataclass
class SweepConfig:
    """How a sweep runs on this machine.

    Attributes:
        jobs: runs at once.
        records: folder in which the jobs record their outcomes; set by the sweep itself.
    """

    jobs: Jobs = 1
    records: str | None = None


@dataclass
class RanksConfig:
    """How training over ranks (under torchrun) is cut; its result depends on all three, and not on how many ranks.

    Attributes:
        shards: virtual shards that rows belong to; at most so many ranks.
        parts: parts of a batch, each run at once by one rank; so many ranks share its examples.
        threads: torch threads of a rank.
    """

    shards: Annotated[int, Within(1, 1 << 16)] = 16
    parts: Annotated[int, Within(1, 256)] = 4
    threads: Jobs = 1


@dataclass
class PreprocessStageConfig:
    """How `dpfest preprocess` runs.

    Attributes:
        jobs: days of a stream that are written at once on this machine.
        day: the one day of a stream to write; null for all.
        verify: whether existing files are checked against their checksums, which reads them whole; damaged days of a
            stream are written again.
    """

    jobs: Jobs = 1
    day: Day | None = None
    verify: bool = False


@dataclass
class PathsConfig:
    """Output folders.

    Attributes:
        data: processed datasets.
        runs: run directories.
        report: figures, tables, benchmarks and the page.
    """

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
    """The whole configuration, typed and checked.

    Attributes:
        seed: of the initial model; the randomness of the guarantee is ``privacy.noise_seed``.
        device: auto, cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.
        profile: smoke (seconds), demo (minutes on two CPU cores) or paper (the paper's grids): scales data, training
            and grids.
        distributed: auto trains over ranks where torchrun started this process; off, in one process.
        experiment: the grids of ``dpfest sweep``: comparison, streaming, text, text_large_vocabulary; null for none.
    """

    data: Any
    model: Any
    algorithm: Any
    privacy: PrivacyConfig
    optimizer: Any
    train: TrainConfig
    stream: StreamConfig = field(default_factory=StreamConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    check: CheckConfig = field(default_factory=CheckConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    preprocess: PreprocessStageConfig = field(default_factory=PreprocessStageConfig)
    seed: Seed = 0
    device: str = "auto"
    distributed: Literal["auto", "off"] = "auto"
    ranks: RanksConfig = field(default_factory=RanksConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    profile: str = "demo"
    experiment: ExperimentConfig | None = None

    def __post_init__(self) -> None:
        for section in (self.data, self.model):
            section.hub = self.hub  # those that name files ask it before they fetch any
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

    @property
    def over_ranks(self) -> bool:
        """Whether training is over ranks: torchrun says in the environment who they are. Runs of a sweep never are."""
        launched = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
        return launched and self.distributed == "auto" and self.sweep.records is None

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and scalars, as in Hydra's YAML."""
        return dataclasses.asdict(self)


def typed(cfg: DictConfig | Mapping[str, Any]) -> Config:
    """Convert a composed configuration to a typed one.

    Raises:
        UserError: an unknown key (with the nearest known one), a wrong type, a missing mandatory value, or a
            value that its dataclass refuses.
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
    """Return the dataclass of a choice of data, model or algorithm."""
    return _load(SCHEMAS[section][choice])


def _leaves(sections: Mapping[str, Any]) -> list[str]:
    from pipelines.config.schema import dotted_keys

    return dotted_keys({name: dataclasses.asdict(section) for name, section in sections.items()})


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
