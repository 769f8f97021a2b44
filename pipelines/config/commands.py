"""Settings that one command reads: `dpfest budget`, `audit`, `check`, `bench`, `preprocess` and `sweep`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pipelines.system.ranges import Count, Jobs, Within


@dataclass
class BudgetConfig:
    """Size of the data for `dpfest budget`, which needs no dataset, and of training for `dpfest budget --plan`.

    Attributes:
        examples: number of training examples; in a stream, of all training days, assumed equally long. Null for the
            number in the processed dataset.
        examples_seen: for --plan, how many examples (units) all steps together may read, repeated ones included: batch
            size times steps. Null for those of ``train.*``.
    """

    examples: Annotated[int, Within(1, 10**15)] | None = None
    examples_seen: Annotated[int, Within(1, 10**15)] | None = None


@dataclass
class AuditConfig:
    """Size of `dpfest audit`.

    Attributes:
        draws: number of releases drawn from an engine with the canary, and number without.
        canaries: number of canaries in an audit of a whole training; 0 for audits of one step alone.
        steps: steps of such a training.
        epsilons: further claims at which DP-SGD's whole trainings are audited, besides `privacy.epsilon`.
    """

    draws: Annotated[int, Within(1000, 10**9)] = 500_000
    canaries: Annotated[int, Within(0, 10**7)] = 20_000
    steps: Annotated[int, Within(4, 10**6)] = 64
    epsilons: list[Annotated[float, Within(0.01, 1000)]] = field(default_factory=lambda: [2.0, 4.0, 8.0])

    def __post_init__(self) -> None:
        if 0 < self.canaries < 200:
            raise ValueError(f"audit.canaries={self.canaries} must be 0 or at least 200.")


@dataclass
class CheckConfig:
    """Size of `dpfest check`.

    Attributes:
        lines: number of lines read from the start of the file, or of the first day.
        steps: optimiser steps of each training.
    """

    lines: Annotated[int, Within(100, 10**9)] = 1_000_000
    steps: Count = 200


@dataclass
class BenchConfig:
    """Limits of a benchmark.

    Attributes:
        seconds: time after which a competitor takes no more turns at a size; it has at least three.
        largest_rows: largest number of rows, over all tables; larger sizes are reduced to it, and to what memory holds.
        dense_coordinates: largest table, in coordinates, that is timed with dense noise; the default is the paper's
            largest, 10 million rows of 64.
        preprocess_rows: rows of each generated file.
    """

    seconds: Annotated[float, Within(0, 86_400, above=True)] = 30.0
    largest_rows: Annotated[int, Within(100, 10**10)] = 100_000_000
    dense_coordinates: Annotated[int, Within(0, 10**12)] = 640_000_000
    preprocess_rows: list[Count] = field(default_factory=lambda: [1_000_000, 10_000_000])

    def __post_init__(self) -> None:
        if not self.preprocess_rows:
            raise ValueError("bench.preprocess_rows=[] must be a list of numbers, one per file.")


@dataclass
class SweepConfig:
    """Where the runs of a sweep are carried out, and what each may take; days that `dpfest preprocess` writes as well.

    Attributes:
        jobs: number of concurrent runs on this machine; on a cluster the scheduler decides.
        engine: ``local`` (processes of this machine), ``ray`` or ``slurm``, whose machines share the folders of
            `paths`.
        address: of the Ray cluster, as in 10.0.0.1:6379 or ray://10.0.0.1:10001; null for the environment variable
            RAY_ADDRESS, or else the cluster that this machine belongs to.
        partition: of the Slurm cluster; null for its default. sbatch reads other options from environment variables,
            such as SBATCH_ACCOUNT.
        cores: of a run; null for one on a cluster, and here for an equal share of this machine's.
        memory: of a run on a cluster in GB; null for what the cluster gives unasked.
        gpus: of a run on a cluster; a share such as 0.25 puts four runs on one GPU.
        minutes: after which Slurm ends a run's job; null for the partition's limit. The run goes on in another job.
        retries: how often a run is started again after its process, time or machine was lost; it goes on from its
            checkpoint.
    """

    jobs: Jobs = 1
    engine: Literal["local", "ray", "slurm"] = "local"
    address: str | None = None
    partition: str | None = None
    cores: Jobs | None = None
    memory: Annotated[float, Within(0, 1e6, above=True)] | None = None
    gpus: Annotated[float, Within(0, 64)] = 0.0
    minutes: Annotated[int, Within(1, 10**6)] | None = None
    retries: Annotated[int, Within(0, 1000)] = 3

    def __post_init__(self) -> None:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus={self.gpus:g} must be a whole number, or a share of one GPU such as 0.25.")


@dataclass
class PreprocessStageConfig:
    """How `dpfest preprocess` runs.

    Attributes:
        jobs: number of days of a stream to write concurrently on this machine.
        verify: whether to check existing files against their checksums, reading them completely; damaged days are
            written again.
    """

    jobs: Jobs = 1
    verify: bool = False
