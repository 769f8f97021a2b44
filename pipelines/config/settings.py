"""The typed configuration: one dataclass for each section.

`typed` converts a composed configuration to a `Config`, or names the wrong key.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch

from dpfest.accounting.accountant import LEAST_DELTA
from dpfest.accounting.calibration import LEAST_EPSILON, MOST_DELTA, MOST_EPSILON
from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from dpfest.gradients.units import UnitConfig
from dpfest.noise.key import NoiseKey, default_cipher
from dpfest.planning.fidelity import FIDELITIES
from dpfest.planning.ledger import EXAMPLE
from pipelines.config.commands import (
    AuditConfig,
    BenchConfig,
    BudgetConfig,
    CheckConfig,
    PreprocessStageConfig,
    SweepConfig,
)
from pipelines.config.compose import container
from pipelines.config.own import OwnAlgorithm, own_algorithm
from pipelines.config.schema import build, dotted_keys, nearest, unknown_key
from pipelines.config.unit import UnitSettings, check_unit
from pipelines.system.hub import HubConfig
from pipelines.system.ranges import Count, Days, Jobs, Seed, Within
from pipelines.system.trackers import Choice

if TYPE_CHECKING:
    from omegaconf import DictConfig

# section -> choice -> its dataclass, as module:class, imported on first use.
SCHEMAS: dict[str, dict[str, str]] = {
    "data": {
        "journey": "pipelines.data.clicks.journey:JourneyConfig",
        "journey_stream": "pipelines.data.clicks.journey:JourneyStreamConfig",
        "promotions": "pipelines.data.clicks.promotions:PromotionsConfig",
        "promotions_stream": "pipelines.data.clicks.promotions:PromotionsStreamConfig",
        "names": "pipelines.data.clicks.names:NamesConfig",
        "names_stream": "pipelines.data.clicks.names:NamesStreamConfig",
        "nycflights": "pipelines.data.clicks.nycflights:NycflightsConfig",
        "nycflights_stream": "pipelines.data.clicks.nycflights:NycflightsStreamConfig",
        "criteo_kaggle": "pipelines.data.clicks.criteo:CriteoKaggleConfig",
        "criteo_1tb": "pipelines.data.clicks.criteo_days:Criteo1TBConfig",
        "criteo_synthetic": "pipelines.data.clicks.synthetic:CriteoSyntheticConfig",
        "criteo_synthetic_stream": "pipelines.data.clicks.synthetic:CriteoSyntheticStreamConfig",
        "map_synthetic": "pipelines.data.clicks.map_synthetic:MapSyntheticConfig",
        "table": "pipelines.data.clicks.table:TableConfig",
        "table_stream": "pipelines.data.clicks.table_stream:TableStreamConfig",
        "module": "pipelines.data.clicks.own_table:OwnTableConfig",
        "journey_text": "pipelines.data.text.journey:JourneyTextConfig",
        "sst2": "pipelines.data.text.glue:Sst2Config",
        "sst2_phrases": "pipelines.data.text.glue:Sst2PhrasesConfig",
        "sst2_halves": "pipelines.data.text.glue:Sst2HalvesConfig",
        "qnli": "pipelines.data.text.glue:QnliConfig",
        "qqp": "pipelines.data.text.glue:QqpConfig",
        "xnli": "pipelines.data.text.glue:XnliConfig",
        "text_synthetic": "pipelines.data.text.synthetic:TextSyntheticConfig",
    },
    "model": {
        "pctr": "pipelines.tasks.pctr:PctrConfig",
        "dlrm": "pipelines.tasks.dlrm:DlrmConfig",
        "deepfm": "pipelines.tasks.deepfm:DeepfmConfig",
        "sequence": "pipelines.tasks.sequence:SequenceConfig",
        "module": "pipelines.tasks.own_model:ModuleConfig",
        "roberta": "pipelines.tasks.roberta:RobertaConfig",
    },
    "algorithm": {
        "nonprivate": "dpfest.planning.unproven:Nonprivate",
        **{name: f"{algorithm.__module__}:{algorithm.__name__}" for name, algorithm in ALGORITHMS.items()},
        "lora_embedding": "pipelines.tasks.low_rank_table:LoraEmbedding",
        "smaller_tables": "pipelines.tasks.smaller_tables:SmallerTables",
        "module": "pipelines.config.own:OwnAlgorithm",
    },
}
PLAIN_SCHEMAS = {
    "privacy": "pipelines.config.settings:PrivacyConfig",
    "search": "pipelines.config.settings:SearchConfig",
    "optimizer": "pipelines.tasks.optimizers:OptimizerConfig",
    "train": "pipelines.config.settings:TrainConfig",
    "stream": "pipelines.config.settings:StreamConfig",
    "unit": "pipelines.config.unit:UnitSettings",
}

TOKENIZER_PRIOR = "tokenizer"
"""The `algorithm.selection.prior` that stands for the tokenizer's own ranking of its tokens, instead of a file. The
hash of the data covers it."""


@dataclass
class PrivacyConfig:
    """The privacy target of a run, and its accounting.

    Attributes:
        fidelity: ``rigorous`` (batches sampled as accounted, every release composed) or ``paper`` (shuffled batches of
            a fixed size accounted as if they were Poisson, a selection's claimed epsilon added).
        epsilon: target of the whole run, including row selection.
        delta: target; null for 1 / examples, or 1 / units.
        sampling: ``poisson``, ``truncated_poisson`` (at most ``max_batch_size`` examples) or ``balls_in_bins`` (every
            example once an epoch); null for poisson, for cyclic_poisson (one group of examples after another) with
            ``algorithm.bands``, and for shuffled under ``paper``.
        max_batch_size: for truncated_poisson; null for a size that hardly any run exceeds.
        unit: what neighbouring data sets differ in: one ``example``, or all training examples with one value of a
            column, such as household_id. Then ``train.batch_size`` counts units.
        noise_seed: null for a key drawn from the operating system; set it only to reproduce results on public data.
        cipher: of the key: ``aes256-ctr`` or ``chacha20/1``; null for aes256-ctr on a CPU and chacha20/1 on a GPU.
    """

    fidelity: Literal["rigorous", "paper"] = "rigorous"
    epsilon: Annotated[float, Within(LEAST_EPSILON, MOST_EPSILON)] = 1.0
    delta: Annotated[float, Within(LEAST_DELTA, MOST_DELTA)] | None = None
    sampling: Literal["poisson", "truncated_poisson", "balls_in_bins", "cyclic_poisson", "shuffled"] | None = None
    max_batch_size: Count | None = None
    noise_seed: int | None = None
    cipher: Literal["aes256-ctr", "chacha20/1"] | None = None
    unit: str = EXAMPLE

    def key(self, purpose: str, device: torch.device) -> NoiseKey:
        """Return a new key for a purpose: fresh, or a function of the seed, under the cipher of these settings."""
        cipher = self.cipher or default_cipher(device)
        if self.noise_seed is None:
            return NoiseKey.fresh(cipher)
        return NoiseKey.from_seed(self.noise_seed, purpose, cipher)


@dataclass
class SearchConfig:
    """A private search: `dpfest sweep` makes a random number of runs, and one epsilon covers the choice of the best.

    Attributes:
        distribution: of the number of runs: ``negative_binomial`` (at least one), ``poisson`` (possibly none), or
            ``none``: all runs of the grid are made and released, each with its own epsilon.
        mean: expected number of runs.
        shape: of the negative binomial distribution: 0 is the logarithmic (the cheapest), 1 the geometric distribution.
    """

    distribution: Literal["none", "negative_binomial", "poisson"] = "none"
    mean: Annotated[float, Within(1, 10_000)] = 10.0
    shape: Annotated[float, Within(0, 100)] = 0.0

    @property
    def asked(self) -> bool:
        """Whether a private search is asked for."""
        return self.distribution != "none"


@dataclass
class TrainConfig:
    """Length of training, and intervals of evaluation, checkpoints and logs, in optimiser steps.

    Attributes:
        batch_size: expected number B of examples in a logical batch (of units, unless ``privacy.unit=example``).
        micro_batch_size: examples in memory at once; null for the whole batch.
        epochs: steps = ceil(epochs * examples / batch_size) unless ``steps`` is set; in a stream, for each period from
            its own examples.
        steps: optimiser steps; null to derive them from ``epochs``.
        evaluate_every: steps between evaluations; null for one at the end. With ``algorithm.noise=lazy``, an evaluation
            draws the pending noise, so this can change the result.
        checkpoint_every: steps between checkpoints, from which a killed run resumes.
        log_every: steps between entries of metrics.jsonl, and between updates of terminal or log (loss, reduction,
            epsilon so far); at most a twentieth of all steps. The last step is always logged.
        save_model: whether a finished run keeps its weights.
        calibrate: ``platt`` to fit, on validation rows, the two numbers that make scores of clicks probabilities; they
            are released, and validation rows are outside of the guarantee. ``none`` leaves them out.
    """

    batch_size: Count = 2048
    micro_batch_size: Count | None = None
    epochs: Annotated[float, Within(0, 1e6, above=True)] = 1.0
    steps: Count | None = None
    evaluate_every: Count | None = None
    checkpoint_every: Count = 200
    log_every: Count = 20
    save_model: bool = True
    calibrate: Literal["platt", "none"] = "platt"


@dataclass
class StreamConfig:
    """Training on a stream of days; no effect on other data.

    Attributes:
        train_days: number of training days, the first of the stream; later days are held out.
        period: length of a streaming period, in days; the last period may be shorter.
    """

    train_days: Days = 18
    period: Days = 1

    def __post_init__(self) -> None:
        if self.period > self.train_days:
            raise ValueError(
                f"stream.period={self.period} must lie between 1 and stream.train_days={self.train_days}, the number "
                "of training days."
            )


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
class PathsConfig:
    """Output folders.

    Attributes:
        data: processed datasets.
        runs: run directories.
        report: figures, tables, benchmarks and the page.
        log: where `log` writes, a folder, for MLflow the address of a server or database (http://host:5000,
            sqlite:///mlflow.db); null for the run's private folder.
    """

    data: str = "data"
    runs: str = "runs"
    report: str = "report"
    log: str | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value == "":
                raise ValueError(f"paths.{name} is empty: name a folder, or . for this one.")


@dataclass
class ExperimentConfig:
    """A named set of grids, one for each profile: a union of products of override values."""

    name: str
    grids: dict[str, list[dict[str, list[Any]]]]


@dataclass
class Config:
    """The whole configuration, typed and checked.

    Attributes:
        seed: seed of the initial model; ``privacy.noise_seed`` fixes the randomness of the guarantee.
        device: auto, cpu, cuda, cuda:1, ...; auto uses a GPU if there is one.
        log: where losses, batch sizes and learning rates go besides private/metrics.jsonl: none, csv, tensorboard or
            mlflow; epsilon does not cover them.
        profile: smoke (seconds), demo (minutes on two CPU cores) or paper (the paper's grids): scales data, training
            and grids.
        distributed: auto trains over ranks if torchrun started this process; off trains in one process.
        experiment: grid of ``dpfest sweep``: comparison, frontier, streaming, text, text_large_vocabulary, search,
            private_search, map, map_fine, units, correlated, optimizers, batch_size or reference; none by default.
    """

    data: Any
    model: Any
    algorithm: Any
    privacy: PrivacyConfig
    optimizer: Any
    train: TrainConfig
    search: SearchConfig = field(default_factory=SearchConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)
    unit: UnitSettings = field(default_factory=UnitSettings)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    check: CheckConfig = field(default_factory=CheckConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    preprocess: PreprocessStageConfig = field(default_factory=PreprocessStageConfig)
    seed: Seed = 0
    device: str = "auto"
    distributed: Literal["auto", "off"] = "auto"
    log: Choice = "none"
    ranks: RanksConfig = field(default_factory=RanksConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    profile: str = "demo"
    experiment: ExperimentConfig | None = None

    def __post_init__(self) -> None:
        for section in (self.data, self.model):
            section.hub = self.hub  # consulted before files are downloaded
        if self.data.task != self.model.task:
            fitting = " or ".join(name for name in SCHEMAS["model"] if schema("model", name).task == self.data.task)
            raise ValueError(
                f"model={self.model.name} cannot be trained on data={self.data.name}: choose model={fitting}, or other "
                "data."
            )
        if self.algorithm.name == "lora_embedding" and self.data.task != "text":
            raise ValueError(
                f"algorithm=lora_embedding replaces a word embedding, and data={self.data.name} holds no texts: choose "
                "algorithm=dpsgd, or text data."
            )
        if self.algorithm.name == "smaller_tables" and self.data.task != "clicks":
            raise ValueError(
                f"algorithm=smaller_tables makes the tables of click data smaller, and data={self.data.name} holds "
                "texts: choose algorithm=lora_embedding, or click data."
            )
        if self.optimizer.average is not None and self.algorithm.lazy:
            raise ValueError(
                "optimizer.average takes the mean of weights that under algorithm.noise=lazy still lack noise: choose "
                "algorithm.noise=dense, or leave it null."
            )
        selection = self.algorithm.selection
        if selection is not None and selection.source is not None and not self.data.is_stream:
            raise ValueError(
                f"algorithm.selection.source={selection.source} chooses the days of a stream to count, and "
                f"data={self.data.name} is no stream: leave it null, or choose a stream such as data=nycflights_stream."
            )
        if selection is not None:
            selection = selection.named(FIDELITIES[self.privacy.fidelity], self.data.is_stream)
            self.algorithm = dataclasses.replace(self.algorithm, selection=selection)
        check_unit(self)

    @property
    def unit_matters(self) -> bool:
        """Whether the section ``unit`` identifies a run: the unit is no example, or something else was asked for."""
        return self.privacy.unit != EXAMPLE or self.unit != UnitSettings()

    @property
    def unit_of_privacy(self) -> UnitConfig | None:
        """The unit, named as its column without ``_id``; None for an example."""
        if self.privacy.unit == EXAMPLE:
            return None
        return UnitConfig(self.privacy.unit.removesuffix("_id"), self.unit.max_examples, self.unit.combine)

    @property
    def over_ranks(self) -> bool:
        """Whether training is over ranks: torchrun says in the environment who they are."""
        launched = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
        return launched and self.distributed == "auto"

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and scalars, as in Hydra's YAML."""
        return dataclasses.asdict(self)


def typed(cfg: DictConfig | Mapping[str, Any], run_code: bool = True) -> Config:
    """Convert a composed configuration to a typed one.

    Args:
        cfg: the configuration.
        run_code: False to look at no code of the user's own, for settings that somebody else may have written.

    Raises:
        UserError: an unknown key (with the nearest known one), a wrong type, a missing mandatory value, or a
            value that its dataclass refuses.
    """
    values = container(cfg)
    sections = {name: _section(name, values.pop(name, {}), run_code) for name in (*SCHEMAS, *PLAIN_SCHEMAS)}
    for key in values:
        if key not in Config.__dataclass_fields__:
            leaves = dotted_keys({name: dataclasses.asdict(section) for name, section in sections.items()})
            raise unknown_key(str(key), [*Config.__dataclass_fields__, *leaves])
    return build(Config, values | sections)


def _section(name: str, values: Any, run_code: bool) -> Any:
    if name in PLAIN_SCHEMAS:
        return build(resolve_name(PLAIN_SCHEMAS[name]), values, name)
    choices = SCHEMAS[name]
    named = values.get("name") if isinstance(values, Mapping) else None
    choice = values.get("kind", named) if isinstance(values, Mapping) else None  # of one with a name of the user's own
    if not isinstance(choice, str) or choice not in choices:
        guess = nearest(str(choice), choices)
        raise UserError(
            f"{name}.name={choice} is none of {', '.join(choices)}"
            + (f"; did you mean {name}={guess}?" if guess else f"; choose one with {name}=...")
            + (" A file for a table of your own says kind: table." if name == "data" else "")
        )
    if not run_code and values.get("target") is not None and values.get("code") is None:
        raise UserError(f"{name}.target names code, and {name}.code does not say which: a run writes both.")
    own = schema(name, choice) is OwnAlgorithm
    section: Any = own_algorithm(values, run_code) if own else build(schema(name, choice), values, name)
    if section.name != choice and section.name in choices:
        raise UserError(f"{name}.name={section.name} is the name of other {name}: give yours another.")
    return section


def schema(section: str, choice: str) -> type[Any]:
    """Return the dataclass of a choice of data, model or algorithm."""
    return resolve_name(SCHEMAS[section][choice])
