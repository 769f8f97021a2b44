"""Sweeps and days on a Ray cluster of three simulated nodes, which listen on the loopback alone.

Most are under ``cluster``: to start it takes a quarter of a minute, and to lose a node one more.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.preprocess import preprocess
from pipelines.runs.grid import PlannedRun, plan
from pipelines.sweep import Stages, log_file, run_all
from pipelines.system.engines import ClusterError, Share, Task
from pipelines.system.ray_engine import RayJobs
from tests.pipelines.watched import (
    ATTEMPTS,
    GO_ON,
    HELD,
    HOLD,
    HOME,
    KEYS,
    STAGE,
    lines,
    released,
    sweeping,
    until,
    written,
)

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # or Ray replaces 127.0.0.1 by the machine's own address
ray = pytest.importorskip("ray", reason="ray is not installed: pip install -e '.[ray]'")
STAGES = Stages(train=STAGE)
LINE = ["profile=smoke", "train.steps=5", "train.checkpoint_every=1", "privacy.noise_seed=1", "sweep.cores=1"]


class Simulated:
    """A cluster of a head and two nodes, each of one core."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}
        self.cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        self.nodes = [self.cluster.add_node(**node, resources={name: 1}) for name in ("first", "second")]
        self.address = str(self.cluster.address)

    def name_of(self, resource: str) -> str:
        """Ray's name of the node that has a resource."""
        return next(node["NodeID"] for node in ray.nodes() if node["Alive"] and resource in node["Resources"])


@pytest.fixture(scope="module")
def simulated() -> Iterator[Simulated]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HOME))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        try:
            cluster = Simulated()
            ray.init(address=cluster.address, log_to_driver=False)
        except (RuntimeError, ConnectionError, OSError) as error:  # of Ray itself: nothing of ours has run yet
            pytest.skip(f"no Ray cluster can be started here: {error}")
        yield cluster
        ray.shutdown()
        cluster.cluster.shutdown()


def planned(folder: Path, *overrides: str) -> list[PlannedRun]:
    places = [f"paths.runs={folder}/runs", f"paths.data={folder}/data"]
    return plan(Composer(), [*LINE, *places, *overrides]).runs


@pytest.mark.cluster
def test_a_run_is_carried_by_ray_and_ends_as_it_does_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cluster, which `.ci/run` tests nevertheless: one node, one run, nobody killed; half a minute."""
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    (here,) = planned(tmp_path / "here")
    assert [outcome.status for outcome in run_all([here], stages=STAGES)] == ["done"]
    (there,) = planned(tmp_path / "there", "sweep.engine=ray")
    try:
        ray.init(
            num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20,
            _node_ip_address="127.0.0.1",
        )  # fmt: skip
    except (RuntimeError, ConnectionError, OSError) as error:
        pytest.skip(f"no Ray node can be started here: {error}")
    try:
        assert [outcome.status for outcome in run_all([there], stages=STAGES)] == ["done"]
    finally:
        ray.shutdown()
    assert released(tmp_path / "there" / "runs") == released(tmp_path / "here" / "runs")
    assert len(lines(there.folder / ATTEMPTS)) == len(lines(there.folder / KEYS)) == 1


class Imitated:
    """What `RayJobs` asks of Ray, which ends tasks as a test says: with an error, or without one."""

    exceptions = ray.exceptions

    def __init__(self, *ends: Exception | None) -> None:
        self.ends, self.options_given, self.started, self.cancelled = list(ends), {}, [], []

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0, "memory": 1e9}}]

    def remote(self, **options: Any) -> Callable[[object], Any]:
        self.options_given = options
        start = SimpleNamespace(remote=lambda *words: (self.started.append(words), len(self.started) - 1)[1])
        return lambda perform: SimpleNamespace(options=lambda name: start)

    def wait(self, references: list[int], num_returns: int) -> tuple[list[int], list[int]]:
        return references[:num_returns], references[num_returns:]

    def get(self, reference: int) -> None:
        if error := self.ends[reference]:
            raise error

    def cancel(self, reference: int, force: bool) -> None:
        self.cancelled.append((reference, force))


def imitated(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *ends: Exception | None, share: Share | None = None
) -> tuple[Imitated, RayJobs[int]]:
    """A Ray that ends its tasks so, and the engine that has started as many."""
    fake = Imitated(*ends)
    monkeypatch.setattr("pipelines.system.ray_engine.package", lambda *_: fake)
    tasks = [
        (job, Task(f"run {job}", folder / f"{job}.call", folder / f"{job}.json", folder / "log"))
        for job in range(len(ends))
    ]
    return fake, RayJobs("module:function", tasks, share or Share(), None)


def test_what_ray_says_of_a_tasks_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, in place of nodes that are lost under ``cluster``."""
    errors = ray.exceptions
    raised = errors.RayTaskError("perform", "traceback", OSError("no such folder\nat all"))
    ends = (None, errors.TaskCancelledError(), raised, errors.WorkerCrashedError())
    fake, jobs = imitated(monkeypatch, tmp_path, *ends, share=Share(cores=1, retries=2))
    with jobs:
        found = {job: lost.failure for job, lost in jobs}
    assert found == {
        0: None,
        1: "was cancelled",
        2: "could not be started on its node (no such folder)",
        3: "was lost with its process or node, 3 times (WorkerCrashedError)",
    }
    assert fake.options_given["max_retries"] == 2 and fake.options_given["max_calls"] == 1
    assert fake.started == [("module:function", str(tmp_path / f"{job}.call")) for job in range(4)]
    assert fake.cancelled == []


def test_a_stop_cancels_what_is_under_way_and_a_second_one_kills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stop, a task that never started is no run that was interrupted; leaving the block stops as well."""
    fake, jobs = imitated(monkeypatch, tmp_path, None, None, None)
    with jobs:
        assert next(jobs)[0] == 0
        jobs.stop()
        assert fake.cancelled == [(1, False), (2, False)]
        monkeypatch.setattr(Task, "status", property(lambda task: "interrupted" if task.name == "run 2" else None))
        assert [job for job, _ in jobs] == [2]
    fake, jobs = imitated(monkeypatch, tmp_path, None, None)
    with jobs:
        jobs.stop()
    assert fake.cancelled == [(0, False), (1, False), (0, True), (1, True)]


def test_what_no_node_has_is_waited_for_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imitated(monkeypatch, tmp_path, share=Share(cores=1))
    assert capsys.readouterr().err == ""
    imitated(monkeypatch, tmp_path, share=Share(cores=4, memory=2_000_000_000, gpus=0.5))
    assert "no node of the Ray cluster has sweep.cores=4 sweep.gpus=0.5 sweep.memory=2 now" in capsys.readouterr().err


def test_what_a_machine_of_a_cluster_is_told_is_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise seed goes by a file; what Ray carries, and others can list, is the file's name."""
    fake = Imitated(None)
    monkeypatch.setattr("pipelines.system.ray_engine.package", lambda *_: fake)
    (run,) = planned(tmp_path, "privacy.noise_seed=987654321", "sweep.engine=ray")
    list(run_all([run], stages=STAGES))
    ((_, file),) = fake.started
    assert "987654321" in Path(file).read_text() and "987654321" not in file
    assert Path(file).stat().st_mode & 0o077 == 0 == Path(file).parent.stat().st_mode & 0o077


@pytest.mark.cluster
def test_ray_listens_on_the_loopback_alone(simulated: Simulated) -> None:
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening and all(address.startswith("127.") or address == "::1" for address in listening)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("algorithms", "seeds"), [("adafest", 3), pytest.param("adafest,dpsgd", 20, marks=pytest.mark.slow)]
)
def test_a_sweep_outlives_a_node_and_ends_as_it_does_here(
    simulated: Simulated, tmp_path: Path, algorithms: str, seeds: int
) -> None:
    """A run that is on the node in its third step goes on elsewhere from its checkpoint, under the key that it has."""
    grid = [f"algorithm={algorithms}", f"seed=range({seeds})"]
    here = planned(tmp_path / "here", *grid, "sweep.jobs=2")
    assert {outcome.status for outcome in run_all(here, stages=STAGES)} == {"done"}

    runs = planned(tmp_path / "there", *grid, "sweep.engine=ray", f"sweep.address={simulated.address}")
    folder = Path(runs[0].config.paths.runs)
    folder.mkdir(parents=True)
    (folder / HOLD).write_text(simulated.name_of("first"))

    def remove() -> None:
        until(lambda: list(folder.glob(f"*/*/*/{HELD}")))
        simulated.cluster.remove_node(simulated.nodes[0], allow_graceful=False)

    removing = threading.Thread(target=remove, daemon=True)
    removing.start()
    outcomes = list(run_all(runs, stages=STAGES))
    removing.join(timeout=10)
    simulated.nodes[0] = simulated.cluster.add_node(
        num_cpus=1, object_store_memory=80 << 20, node_ip_address="127.0.0.1", resources={"first": 1}
    )
    assert [outcome.status for outcome in outcomes] == ["done"] * len(runs)
    attempts = [lines(run.folder / ATTEMPTS) for run in runs]
    assert sorted(map(len, attempts)) == [1] * (len(runs) - 1) + [2]
    assert all(len(lines(run.folder / KEYS)) == 1 for run in runs)  # none is paid for twice
    assert released(tmp_path / "there" / "runs") == released(tmp_path / "here" / "runs")
    assert len(set(itertools.chain(*attempts))) >= 2


@pytest.mark.cluster
def test_ctrl_c_cancels_and_the_same_command_goes_on(simulated: Simulated, tmp_path: Path) -> None:
    words = [*LINE, f"paths.runs={tmp_path}/runs", f"paths.data={tmp_path}/data", "seed=range(4)"]
    words += ["sweep.engine=ray", f"sweep.address={simulated.address}"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / HOLD).write_text("any")
    parent = sweeping(tmp_path, words)
    until(lambda: len(list(tmp_path.glob(f"runs/*/*/*/{HELD}"))) == 3)
    os.kill(parent.pid, signal.SIGINT)
    time.sleep(3.0)  # until the runs were told, also on a busy machine
    (tmp_path / "runs" / GO_ON).touch()
    out, _ = parent.communicate(timeout=200)
    assert re.findall(r"^\d+ (\w+)$", out, re.M) == ["interrupted"] * 3  # Ray's own notes stand between

    runs = plan(Composer(), words).runs
    assert {outcome.status for outcome in run_all(runs, stages=STAGES)} == {"done"}
    assert sorted(len(lines(run.folder / ATTEMPTS)) for run in runs) == [1, 2, 2, 2]
    assert all(len(lines(run.folder / KEYS)) == 1 for run in runs)


@pytest.mark.cluster
def test_a_failed_run_is_not_repeated_and_says_why(simulated: Simulated, tmp_path: Path) -> None:
    (run,) = planned(tmp_path, "optimizer.dense.name=adamm", "sweep.engine=ray")
    (outcome,) = run_all([run], stages=STAGES)
    assert outcome.status == "failed" and "adamm" in outcome.reason
    assert len(lines(run.folder / ATTEMPTS)) == 1


@pytest.mark.cluster
def test_what_a_run_is_told_is_for_its_owner_alone(simulated: Simulated, tmp_path: Path) -> None:
    """The noise seed goes by a file; what Ray carries, and others can list, is the file's name."""
    (run,) = planned(tmp_path, "privacy.noise_seed=987654321", "sweep.engine=ray")
    assert [outcome.status for outcome in run_all([run], stages=STAGES)] == ["done"]
    folder = log_file(run).parent
    assert folder.stat().st_mode & 0o077 == 0 and "987654321" in (folder / f"{run.folder.name}.call").read_text()
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = planned(tmp_path, "sweep.engine=ray", "sweep.address=127.0.0.1:1")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ClusterError, match=r"^no Ray cluster at sweep\.address=127\.0\.0\.1:1 answers within 5 sec"):
        list(run_all(runs))


@pytest.mark.cluster
@pytest.mark.parametrize("days", [3, 24])
def test_days_are_the_same_bytes(simulated: Simulated, tmp_path: Path, days: int) -> None:
    def config(folder: str, *more: str) -> Config:
        line = ["profile=smoke", "data=criteo_synthetic_stream", f"data.days={days}", f"paths.data={tmp_path / folder}"]
        return typed(Composer().compose([*line, f"paths.runs={tmp_path}/runs", *more]))

    preprocess(config("here"))
    preprocess(config("there", "sweep.engine=ray", f"sweep.address={simulated.address}"))
    there = written(tmp_path / "there")
    assert there == written(tmp_path / "here") and sum(name.endswith("dataset.json") for name in there) == days
