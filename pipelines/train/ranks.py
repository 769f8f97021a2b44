"""The train stage over ranks: one run by all processes that torchrun started.

``torchrun --nproc-per-node=4 -m dpfest train ...`` makes one run in four processes, each of which holds a quarter of
the tables and reads a quarter of every batch (:mod:`dpfest.ranks`). All ranks read the processed data and the run's
folder, on a file system that they share; rank 0 alone writes into it, except for the shards of checkpoints. The result
depends on ``ranks.shards``, ``ranks.parts`` and ``ranks.threads``, and not on the number of ranks: a run can be resumed
by more or fewer of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dpfest.errors import UserError
from dpfest.ranks.group import Group
from pipelines.config.settings import Config
from pipelines.data.stream import Stream
from pipelines.preprocess import dataset_folder, prepared
from pipelines.runs.directory import RunDirectory
from pipelines.runs.identity import run_folder, settings_of
from pipelines.runs.weights import Weights
from pipelines.system.processes import StopRequest, stop_requests
from pipelines.system.progress import Reporter, progress
from pipelines.system.trackers import package_of
from pipelines.tasks.own_model import ModuleConfig
from pipelines.train import RunOutcome, finished, prepare, warn_of_differences
from pipelines.train.rank_run import RankRun

_PATIENCE = timedelta(days=2)  # while rank 0 preprocesses; a rank that dies is noticed at once
_STEPS_PATIENCE = timedelta(minutes=30)  # from then on: how much longer one rank may take over a checkpoint
_OF_A_MACHINE = ("paths", "hub", "device")  # settings that may differ between ranks; data are compared by content


def make_run(config: Config) -> RunOutcome | None:
    """Make the run of a configuration with all ranks, resume it, or find it finished.

    Returns:
        The outcome on rank 0, None on the others.

    Raises:
        UserError: as :func:`pipelines.train.make_run`; a setting that needs one process; or the ranks do not agree.
        SystemExit: SIGINT or SIGTERM stopped a rank; the state is saved, and the same call resumes it.
    """
    _refuse(config)
    os.environ.setdefault("OMP_NUM_THREADS", str(config.ranks.threads))
    torch.set_num_threads(config.ranks.threads)
    if sys.platform == "linux" and os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # on one machine, data without noise stay on it
    dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        outcome = _make_run(config, Group())
        Group().wait()  # a rank that left first would close connections that others still read
        return outcome
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        raise UserError(
            f"Rank {dist.get_rank()} ends because another one has ended, whose own message says why (above, or in "
            f"private/failure*.txt of the run), or cannot be reached: {str(error).splitlines()[0]}"
        ) from error
    finally:
        dist.destroy_process_group()


def refuse_ranks_apart() -> None:
    """Refuse to train in one process where torchrun started several.

    Raises:
        UserError: it did.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ["WORLD_SIZE"] != "1":
        raise UserError(
            f"distributed=off trains in one process, and torchrun started {os.environ['WORLD_SIZE']}: leave it at "
            "auto, or start dpfest without torchrun."
        )


def _refuse(config: Config) -> None:
    if config.data.task != "clicks":
        raise UserError(
            f"data={config.data.name} holds texts, and training over ranks is for click data: start `dpfest train` "
            "without torchrun, or with distributed=off."
        )
    if isinstance(config.model, ModuleConfig):
        raise UserError(
            f"model={config.model.name} holds its tables whole, and training over ranks divides those of dpfest's own "
            "models: choose one of them, or start `dpfest train` without torchrun, or with distributed=off."
        )
    if config.algorithm.joint:
        raise UserError(
            f"algorithm={config.algorithm.name} cannot be trained over ranks: it chooses rows from all tables jointly, "
            "by sums over all ranks that must be complete before the first is chosen. Start it without torchrun."
        )
    if config.train.micro_batch_size is not None:
        raise UserError("Over ranks a batch is cut by ranks.parts: leave train.micro_batch_size null.")
    if config.optimizer.average is not None:
        raise UserError(
            f"optimizer.average={config.optimizer.average} is not implemented over ranks: leave it null, or start "
            "`dpfest train` without torchrun, or with distributed=off."
        )
    if config.search.asked:
        raise UserError(
            f"search.distribution={config.search.distribution} is for dpfest sweep, whose runs have no ranks."
        )
    if config.device not in ("auto", "cpu"):
        raise UserError(f"device={config.device}: training over ranks computes on CPUs; set device=cpu.")


def _make_run(config: Config, group: Group) -> RunOutcome | None:
    package_of(config.log)  # before there is a folder
    first = group.rank == 0
    shared = {name: repr(value) for name, value in config.to_dict().items() if name not in ("data", *_OF_A_MACHINE)}
    group.refuse_difference({f"the settings of {name}": text for name, text in shared.items()})
    with _first(group):  # the others find what rank 0 has written
        stream = prepared(config) if first else None
    stream = stream or Stream.open(dataset_folder(config))
    folder = run_folder(config, data=stream.hash)
    group.refuse_difference(
        {
            "the settings of data": folder.name,
            "days": repr(stream.hashes),
            "vocabulary": repr(stream.days[0].vocabulary_sha256),
        }
    )
    directory = RunDirectory(folder) if first else _Onlooker(folder, group.rank)
    with directory.lock():
        summary = directory.summary() if first else None
        if group.any(summary is not None):
            if summary is None:
                return None
            directory.clear()
            warn_of_differences(directory, config)
            return RunOutcome(directory.path, summary, skipped=True)
        settings = settings_of(config)
        with directory.recording(settings, stream.hash), stop_requests() as own:
            with _first(group):  # calibrations and selections are found again
                schedule = prepare(config, stream) if first else None
            schedule = schedule or prepare(config, stream)
            group.refuse_difference({_SHARED: repr(directory.state_sha256())})
            group = Group(_STEPS_PATIENCE)
            run = RankRun(config, schedule, directory, group)
            summary = finished(run, settings, _AgreedStop(own, group), progress if first else _silence)
    return RunOutcome(directory.path, summary, skipped=False) if first else None


@contextmanager
def _first(group: Group) -> Iterator[None]:
    """A context whose end every rank awaits."""
    yield
    group.wait()


@contextmanager
def _silence(title: str, interval: float = 0.0) -> Iterator[Reporter]:
    yield lambda done, total, words="": None


_SHARED = "the checkpoint (paths.runs must be one folder that all of them share)"


class _AgreedStop(StopRequest):
    """A request to any rank, which all ranks heed after the same step."""

    def __init__(self, own: StopRequest, group: Group) -> None:
        super().__init__()
        self._own, self._group = own, group

    @property
    def requested(self) -> bool:
        """True from the first signal to any rank on; every rank asks at once."""
        own = torch.tensor([self._own.signal or 0])
        self._signal = int(self._group.joined(own, [1] * self._group.world).max()) or None
        return self._signal is not None


class _Onlooker(RunDirectory):
    """A run's folder as ranks other than 0 use it: they read; rank 0 writes, except for shards and failures."""

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__(path)
        self._rank = rank

    @contextmanager
    def lock(self, wait: bool = False) -> Iterator[None]:
        """Rank 0 holds the lock for all."""
        yield

    def write_config(self, config: dict[str, Any], data_hash: str) -> None:
        """Leave it to rank 0, as all that follows."""

    def write_status(self, status: str) -> None:
        """See :meth:`write_config`."""

    def fail(self, error: BaseException) -> None:
        """Record why this rank failed: rank 0 may only see that a connection was closed."""
        self._write_failure(error, f"failure-{self._rank}.txt")

    def log_metrics(self, record: dict[str, Any]) -> None:
        """See :meth:`write_config`."""

    def keep_metrics_until(self, step: int) -> None:
        """See :meth:`write_config`."""

    def save_state(self, state: dict[str, Any]) -> None:
        """See :meth:`write_config`."""

    def finish(
        self, config: Any, ledger: Any, summary: Any, weights: Weights | None, timings: Any, vocabulary: Any = None
    ) -> None:
        """Answer rank 0, which writes the weights."""
        if weights is not None:
            weights.write(Path(os.devnull))
