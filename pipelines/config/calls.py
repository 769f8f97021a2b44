"""Stages called with a configuration, each in a process of its own, here or on another machine.

Another machine reads what to call from a file: a configuration can hold the noise seed and private paths, so it goes by
a file of the owner alone, and through no scheduler.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from dpfest.errors import UserError
from pipelines.config.commands import SweepConfig
from pipelines.config.settings import Config, typed
from pipelines.system.engines import Jobs, Share, Task, function
from pipelines.system.files import OWNER_ONLY, private_folder, write_json
from pipelines.system.processes import output_to
from pipelines.system.records import recording

Job = TypeVar("Job")
RECORDS = ".sweep"
"""Folder below ``paths.runs`` of what jobs record."""


@dataclass(frozen=True)
class Call:
    """A stage, called with a configuration.

    Attributes:
        stage: as ``module:function``.
        config: its argument.
        record: file in which it records how it ended, beside its log; None for none.
        arguments: further arguments by name, plain values.
    """

    stage: str
    config: Config
    record: Path | None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> None:
        """Call the stage; a failure is recorded and not raised."""
        with recording(self.record):
            function(self.stage)(self.config, **self.arguments)


def records_folder(config: Config) -> Path:
    """Return the folder of what jobs record: how they ended, and logs."""
    return Path(config.paths.runs).resolve() / RECORDS


def cluster_jobs(settings: SweepConfig, jobs: Iterable[Job], call: Callable[[Job], Call]) -> Jobs[Job]:
    """Hand jobs to the Ray or Slurm cluster of the settings.

    Args:
        settings: engine, cluster, and what a job may take.
        jobs: in the order in which to start them.
        call: of a job; its record must not be None.

    Raises:
        ClusterError: the cluster cannot be used.
    """
    share = Share(
        cores=settings.cores or 1,
        memory=int(settings.memory * 1e9) if settings.memory else None,
        gpus=settings.gpus,
        minutes=settings.minutes,
        retries=settings.retries,
    )
    tasks = [(job, _task(call(job), share.cores)) for job in jobs]
    entry = f"{__name__}:{perform.__name__}"
    if settings.engine == "ray":
        from pipelines.system.ray_engine import RayJobs

        return RayJobs(entry, tasks, share, settings.address)
    from pipelines.system.slurm_engine import SlurmJobs

    return SlurmJobs(entry, tasks, share, settings.partition)


def _task(call: Call, threads: int) -> Task:
    """Write what another machine needs to make a call."""
    assert call.record is not None
    # What a job starts, it starts where it is.
    config = replace(call.config, sweep=replace(call.config.sweep, engine="local"))
    task = Task(call.record.stem, call.record.with_suffix(".call"), call.record, call.record.with_suffix(".log"))
    private_folder(task.file.parent)
    content = {
        "stage": call.stage,
        "config": config.to_dict(),
        "arguments": dict(call.arguments),
        "record": str(call.record),
        "folder": os.getcwd(),
        "threads": threads,
        "version": version("dpfest"),
    }
    write_json(task.file, content, OWNER_ONLY)
    return task


def perform(file: str) -> None:
    """Make the call that a file describes: in the folder in which it was written, with its output in its log.

    Raises:
        UserError: this machine does not share that folder, or has another version of dpfest.
    """
    try:
        described = json.loads(Path(file).read_text(encoding="utf-8"))
        os.chdir(described["folder"])
    except OSError as error:
        raise UserError(
            f"{socket.gethostname()} cannot read {error.filename} ({error.strerror}): all machines of the cluster must "
            "share this folder and paths.runs, under the same names."
        ) from error
    if described["version"] != version("dpfest"):
        raise UserError(
            f"{socket.gethostname()} has dpfest {version('dpfest')}, the sweep {described['version']}: install one "
            "version on all machines."
        )
    record = Path(described["record"])
    output_to(record.with_suffix(".log"), anew=False)
    import torch

    torch.set_num_threads(described["threads"])
    Call(described["stage"], typed(described["config"]), record, described["arguments"])()
