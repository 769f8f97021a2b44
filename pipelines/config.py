"""The typed configuration: one dataclass a section, each beside the code that it configures.

`typed` turns what Hydra composed into a `Config`, or says which key is wrong; `run_hash` names a run by the
settings that can change its result, and by those alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfest.errors import UserError
from pipelines.bench.config import BenchConfig
from pipelines.hub import HubConfig
from pipelines.schema import build, nearest, unknown_key

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from dpfest.topk import SelectionConfig

# section -> its choices by name -> the dataclass, as module:class, imported when it is needed.
SCHEMAS: dict[str, dict[str, str]] = {
    "data": {
        "nycflights": "pipelines.data.nycflights:NycflightsConfig",
        "nycflights_stream": "pipelines.data.nycflights_stream:NycflightsStreamConfig",
        "criteo_kaggle": "pipelines.data.criteo:CriteoKaggleConfig",
        "criteo_1tb": "pipelines.data.criteo_days:Criteo1TBConfig",
        "criteo_synthetic": "pipelines.data.synthetic:CriteoSyntheticConfig",
        "criteo_synthetic_stream": "pipelines.data.synthetic:CriteoSyntheticStreamConfig",
        "sst2": "pipelines.data.text_glue:Sst2Config",
        "qnli": "pipelines.data.text_glue:QnliConfig",
        "qqp": "pipelines.data.text_glue:QqpConfig",
        "xnli": "pipelines.data.text_glue:XnliConfig",
        "text_synthetic": "pipelines.data.text_synthetic:TextSyntheticConfig",
    },
    "model": {"pctr": "pipelines.models.pctr:PctrConfig", "roberta": "pipelines.models.roberta:RobertaConfig"},
    "algorithm": {
        "nonprivate": "dpfest.unproven:Nonprivate",
        "frozen": "dpfest.algorithms:Frozen",
        "dpsgd": "dpfest.algorithms:DPSGD",
        "fest": "dpfest.algorithms:FEST",
        "adafest": "dpfest.algorithms:AdaFEST",
        "adafest_plus": "dpfest.algorithms:AdaFESTPlus",
        "exponential": "dpfest.algorithms:Exponential",
        "lora_embedding": "pipelines.models.low_rank_table:LoraEmbedding",
    },
}
PLAIN_SCHEMAS = {
    "privacy": "pipelines.config:PrivacyConfig",
    "optimizer": "pipelines.optimizers:OptimizerConfig",
    "train": "pipelines.config:TrainConfig",
    "stream": "pipelines.config:StreamConfig",
}

TOKENIZER = "tokenizer"
"""An `algorithm.selection.prior` that is no file: what the tokenizer of the texts says of its tokens, which the hash of
the data covers."""

# Settings of `train` that change no result: they only say when something is written, or how a logical batch
# is cut into pieces that fit in memory (which moves sums by rounding, and nothing else).
WITHOUT_EFFECT = ("micro_batch_size", "evaluate_every", "checkpoint_every", "log_every", "save_model")


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
    """How a stream of days is trained; without effect on other data.

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
    """Size of the data for `dpfest budget`, which needs no dataset.

    Attributes:
        examples: training examples; in a stream, of all days that are trained on, taken as equally long. Null for those
            of the processed dataset.
    """

    examples: int | None = None

    def __post_init__(self) -> None:
        if self.examples is not None and self.examples < 1:
            raise ValueError(f"budget.examples={self.examples} must be 1 or more.")


@dataclass
class AuditConfig:
    """Size of `dpfest audit`.

    Attributes:
        draws: releases drawn of an engine in each of the two worlds, with the canary and without.
    """

    draws: int = 500_000

    def __post_init__(self) -> None:
        if self.draws < 1000:
            raise ValueError(f"audit.draws={self.draws} must be 1000 or more: fewer refute nothing.")


@dataclass
class SweepConfig:
    """How a sweep runs on this machine.

    Attributes:
        jobs: runs at once.
        records: folder in which the jobs record their outcomes; set by the sweep itself.
    """

    jobs: int = 1
    records: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"sweep.jobs={self.jobs} must be 1 or more.")


@dataclass
class PreprocessStageConfig:
    """How `dpfest preprocess` runs.

    Attributes:
        jobs: days of a stream that are written at once on this machine.
        day: the one day of a stream to write; null for all.
        verify: whether existing files are checked against their checksums, which reads them whole; damaged days of a
            stream are written again.
    """

    jobs: int = 1
    day: int | None = None
    verify: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"preprocess.jobs={self.jobs} must be 1 or more.")


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


def run_hash(config: Config) -> str:
    """Twelve hexadecimal digits that name a run by everything that can change its result.

    Left out are paths, hub, device, profile, experiment, budget, audit, bench, sweep and preprocess; of `train`, what
    only says when something is written, and micro_batch_size, which moves sums by rounding and nothing else (under
    lazy noise evaluate_every enters: an evaluation draws what is owed until then); `stream`, where the data are none.
    Data enter as `pipelines.preprocess.data_hash` sees them and a model as its `identity` says, so source files and
    weights may move.
    """
    train = dataclasses.asdict(config.train)
    for name in WITHOUT_EFFECT:
        if not (config.algorithm.lazy and name == "evaluate_every"):
            train.pop(name)
    settings = {
        "data": _load("pipelines.preprocess:data_hash")(config.data),
        "train": train,
        "seed": config.seed,
        "model": config.model.identity(),
        **{name: dataclasses.asdict(getattr(config, name)) for name in ("algorithm", "privacy", "optimizer")},
    }
    if config.algorithm.selection is not None:
        settings["selection"] = selection_settings(config.algorithm.selection)
        settings["algorithm"].pop("selection")
    if config.data.is_stream:
        settings["stream"] = dataclasses.asdict(config.stream)
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def selection_settings(selection: SelectionConfig) -> dict[str, Any]:
    """What decides a selection: its settings, and of a public prior the content, wherever it lies.

    Raises:
        UserError: the prior cannot be read.
    """
    settings = dataclasses.asdict(selection)
    if selection.source in (None, "streaming") or selection.prior is not None:
        del settings["source"]  # no choice, what a stream takes unless told otherwise, or no look at the days
    if selection.prior is not None and selection.prior != TOKENIZER:
        try:
            settings["prior"] = hashlib.sha256(Path(selection.prior).read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(
                f"algorithm.selection.prior={selection.prior} cannot be read ({error.strerror})."
            ) from error
    return settings


def run_folder(config: Config) -> Path:
    """Where the run lies: `<paths.runs>/<dataset>/<algorithm>/<hash>`."""
    return Path(config.paths.runs) / config.data.name / config.algorithm.name / run_hash(config)


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
    return build(_load(choices[choice]), values, name)


def _leaves(sections: Mapping[str, Any]) -> list[str]:
    from pipelines.schema import dotted_keys

    return dotted_keys({name: dataclasses.asdict(section) for name, section in sections.items()})


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
