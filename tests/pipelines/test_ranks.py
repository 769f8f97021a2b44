"""Training over ranks as a user meets it: the same files from any number of ranks, after kills and on resuming."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dpfest.errors import UserError
from dpfest.ranks.group import Group
from dpfest.ranks.training import RankTraining
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.preprocess import preprocess
from pipelines.runs.directory import RunDirectory
from pipelines.runs.grid import plan
from pipelines.runs.identity import run_folder
from pipelines.runs.weights import write_pieces
from pipelines.system.processes import StopRequest
from pipelines.train import ranks
from tests.dpfest.ranks.together import together
from tests.pipelines.ranks import SAVING, train_on_ranks

RunsIn = Callable[[Path], Path]
ON_ONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
LONG = ("train.steps=6", "train.checkpoint_every=2", "train.log_every=1")


@pytest.fixture(scope="session")
def data(prepared: Path) -> Path:
    preprocess(config(prepared, prepared))
    return prepared


def overrides(data: Path, runs: Path, *more: str) -> list[str]:
    return [
        "profile=smoke", f"paths.data={data}", f"paths.runs={runs}", "privacy.noise_seed=5", "model.hidden=[16]",
        f"data.vocabulary.sizes={[60] * 26}", *more,
    ]  # fmt: skip


def config(data: Path, runs: Path, *more: str) -> Config:
    return typed(Composer().compose(overrides(data, runs, *more)))


def release(runs: Path) -> dict[str, str]:
    """SHA-256 of every released file of the one run there is."""
    (summary,) = runs.glob("*/*/*/release/summary.json")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in summary.parent.iterdir()}


LAZY = ("algorithm=dpsgd", "algorithm.noise=lazy", "train.evaluate_every=3")


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), pytest.param(LAZY, marks=pytest.mark.slow)], ids=["adafest", "lazy"])
def test_ranks_killed_and_resumed_on_others_release_the_same_bytes(
    more: tuple[str, ...], data: Path, tmp_path: Path, runs_in: RunsIn
) -> None:
    quiet, killed = (runs_in(tmp_path / name) for name in ("quiet", "killed"))
    assert train_on_ranks(overrides(data, quiet, *LONG, *more), 1) == [None]
    assert train_on_ranks(overrides(data, killed, *LONG, *more), 2, signal_at=3)[1] is not None
    (private,) = killed.glob("*/*/*/private")
    assert [path.name for path in private.glob("shards-*")] == ["shards-2-0"]
    often = [
        *overrides(data, killed, *LONG, *more),
        "train.checkpoint_every=1",
    ]  # also due after that step
    stopped = train_on_ranks(often, 4, signal_at=4, number=signal.SIGTERM)
    assert stopped == ["ended with exit status 143"] * 4
    assert [path.name for path in private.glob("shards-*")] == ["shards-5-0"]
    assert train_on_ranks(overrides(data, killed, *LONG, *more), 2) == [None, None]
    assert release(killed) == release(quiet) and len(release(quiet)) == 6
    assert not list(private.glob("shards-*")) and not (private / "state.pt").exists()
    summary = json.loads((private.parent / "release" / "summary.json").read_text())
    assert summary["utility"]["value"] is not None and summary["privacy"]["epsilon"] <= 1


@pytest.mark.slow
def test_ranks_killed_while_they_save_resume_from_a_whole_checkpoint(
    data: Path, tmp_path: Path, runs_in: RunsIn
) -> None:
    """Slow (five trainings over ranks).

    Of the checkpoints after steps 0, 2 and 4, one is always whole: a rank dies in the last's third shard, before the
    state that names it, and before the one before it is removed.
    """
    quiet, killed = (runs_in(tmp_path / name) for name in ("quiet", "killed"))
    assert train_on_ranks(overrides(data, quiet, *LONG), 1) == [None]
    own = overrides(data, killed, *LONG)
    for world, *killed_in in (2, "a shard", 2 * 8 + 2), (1, "the state", 0), (1, "removing the last checkpoint", 0):
        assert train_on_ranks(own, world, killed_in=killed_in)[-1] == "was killed (out of memory?)"
        (private,) = killed.glob("*/*/*/private")
        assert {path.name for path in private.glob("shards-*")} == {"shards-2-0", "shards-4-0"}
    assert train_on_ranks(own, 2) == [None, None]
    assert release(killed) == release(quiet)
    assert not list(private.glob("shards-*"))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the only rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, ON_ONE[name])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_is_whole_before_it_is_named_and_named_before_the_last_one_goes(
    data: Path, tmp_path: Path, runs_in: RunsIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that after a kill one is always whole: those who are killed in each part are under ``slow``."""
    done = list[str]()

    def noted(part: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any, **options: Any) -> Any:
            if part != "removing the last checkpoint" or Path(arguments[0]).name.startswith("shards-"):
                done.append(part)
            return own(*arguments, **options)

        return noting

    for part, (owner, name) in SAVING.items():
        monkeypatch.setattr(owner, name, noted(part, getattr(owner, name)))
    ranks.make_run(config(data, runs_in(tmp_path / "runs"), *LONG, "ranks.shards=2"))
    saving = ["a shard", "a shard", "the state"]
    assert done[:8] == [*saving, *saving, "removing the last checkpoint", "a shard"]


@pytest.mark.usefixtures("alone")
def test_a_shard_that_is_not_the_one_that_was_saved_is_named(
    data: Path, tmp_path: Path, runs_in: RunsIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(data, runs_in(tmp_path / "runs"), *LONG, "ranks.shards=2")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RankTraining, "step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        ranks.make_run(settings)
    (shards,) = run_folder(settings).glob("private/shards-0-0")
    shutil.copy(shards / "00000.safetensors", shards / "00001.safetensors")
    with pytest.raises(UserError, match=r"00001\.safetensors is not the shard that was saved"):
        ranks.make_run(settings)


@pytest.mark.slow
def test_a_stream_over_two_ranks_is_that_of_one(tmp_path: Path, prepared: Path, runs_in: RunsIn) -> None:
    more = (
        "data=criteo_synthetic_stream", "stream.train_days=3", "stream.period=2", "train.steps=2",
        "optimizer.tables.name=adagrad", "train.batch_size=64", "algorithm=adafest_plus",
    )  # fmt: skip
    one, two = (runs_in(tmp_path / name) for name in ("one", "two"))
    assert train_on_ranks(overrides(prepared, one, *more), 1) == [None]
    assert train_on_ranks(overrides(prepared, two, *more), 2) == [None, None]
    assert release(one) == release(two)
    (summary,) = one.glob("*/*/*/release/summary.json")
    assert len(json.loads(summary.read_text())["periods"]) == 2


def test_ranks_whose_settings_differ_refuse_instead_of_waiting(data: Path, tmp_path: Path, runs_in: RunsIn) -> None:
    log, own = tmp_path / "log", overrides(data, runs_in(tmp_path / "runs"), *LONG)
    assert all(train_on_ranks(own, 2, of_last=["train.evaluate_every=2"], log=log))
    assert "The ranks do not agree on the settings of train: rank 1" in log.read_text()


@pytest.mark.slow
def test_ranks_whose_checkpoints_differ_refuse_instead_of_waiting(data: Path, tmp_path: Path, runs_in: RunsIn) -> None:
    """Slow: three trainings over ranks."""
    here, elsewhere = (runs_in(tmp_path / name) for name in ("here", "elsewhere"))
    log, own = tmp_path / "log", overrides(data, here, *LONG)
    assert train_on_ranks(own, 1, signal_at=2, number=signal.SIGTERM) == ["ended with exit status 143"]
    assert all(train_on_ranks(own, 2, of_last=[f"paths.runs={elsewhere}"], log=log))
    assert "do not agree on the checkpoint (paths.runs must be one folder" in log.read_text()

    (shards,) = here.glob("*/*/*/private/shards-3-0")
    shutil.copy(shards / "00010.safetensors", shards / "00012.safetensors")
    assert all(train_on_ranks(own, 2))
    said = (shards.parent / "failure-1.txt").read_text()  # the second rank has the last 8 of 16 shards
    assert "00012.safetensors is not the shard that was saved" in said


def test_a_run_that_is_on_its_way_ends_every_rank_with_a_sentence(
    data: Path, tmp_path: Path, runs_in: RunsIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = overrides(data, runs_in(tmp_path / "runs"), *LONG)
    for name, value in ON_ONE.items():
        monkeypatch.setenv(name, value)
    with RunDirectory(run_folder(typed(Composer().compose(own)))).lock():
        for name in ON_ONE:
            monkeypatch.delenv(name)
        # Not killed by the other rank's end, as under SIGKILL, while it still writes what is read below.
        assert all(train_on_ranks(own, 2, number=signal.SIGTERM, log=tmp_path / "log"))
    assert "UserError: Another process is training the same run" in (tmp_path / "log").read_text()
    last = (tmp_path / "log-1").read_text().splitlines()[-1]
    assert "UserError: Rank 1 ends because another one has ended, whose own message says why" in last


def test_one_process_is_not_trained_in_by_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    ranks.refuse_ranks_apart()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"^distributed=off trains in one process, and torchrun started 2: leave it at"):
        ranks.refuse_ranks_apart()


def test_a_signal_and_its_echo_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun sends SIGTERM twice, 2 ms apart, if it was itself signalled with its process group."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stop = StopRequest()
    stop.receive(signal.SIGTERM, None)
    now[0] += 0.002
    stop.receive(signal.SIGTERM, None)
    assert stop.signal == signal.SIGTERM
    now[0] += 1
    with pytest.raises(SystemExit, match="143"):
        stop.receive(signal.SIGTERM, None)


def asked_to_stop(numbers: tuple[int, ...]) -> int | None:
    own, group = StopRequest(), Group()
    if numbers[group.rank]:
        own.receive(numbers[group.rank], None)
    stop = ranks._AgreedStop(own, group)
    assert stop.requested == any(numbers)
    return stop.signal


def test_any_ranks_signal_is_every_ranks_and_the_strongest_counts() -> None:
    assert together(asked_to_stop, 2, (0, 0)) == [None, None]
    assert together(asked_to_stop, 2, (signal.SIGINT, signal.SIGTERM)) == [signal.SIGTERM] * 2


def test_what_needs_one_process_is_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    for more, said in {
        ("algorithm=exponential",): "algorithm=exponential cannot be trained over ranks",
        ("data=text_synthetic",): "is for click data",
        ("train.micro_batch_size=8",): r"ranks\.parts",
        ("optimizer.average=0.5",): r"optimizer\.average=0\.5 is not implemented over ranks",
        ("device=cuda",): "computes on CPUs",
    }.items():
        own = overrides(data, tmp_path, *more)
        kept = [one for one in own if "text" not in str(more) or not one.startswith(("data.v", "model."))]
        with pytest.raises(UserError, match=said):
            ranks.make_run(typed(Composer().compose(kept)))


def test_a_run_over_ranks_has_a_name_of_its_own_and_their_number_is_no_part_of_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = run_folder(config(data, tmp_path))
    for name, value in ON_ONE.items():
        monkeypatch.setenv(name, value)
    over = run_folder(config(data, tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert run_folder(config(data, tmp_path)) == over != alone
    assert run_folder(config(data, tmp_path, "ranks.shards=8")) != over
    assert run_folder(config(data, tmp_path, "distributed=off")) == alone
    (run,) = plan(Composer(), overrides(data, tmp_path)).runs
    assert run.folder == run_folder(run.config) == alone, "runs of a sweep are never over ranks"


def test_ranks_of_one_machine_talk_over_its_loopback_alone(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Exception):
        pass

    def start(*arguments: object, **options: object) -> None:
        raise Started

    monkeypatch.setattr(ranks.dist, "init_process_group", start)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "1")  # restored in the end, whatever is set meanwhile
    for local, world, chosen, expected in (
        ("2", "2", None, "lo"), ("2", "4", None, None), (None, "2", None, None), ("2", "2", "eth1", "eth1"),
    ):  # fmt: skip
        given = {"LOCAL_WORLD_SIZE": local, "WORLD_SIZE": world, "GLOO_SOCKET_IFNAME": chosen}
        for name, value in given.items():
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        with pytest.raises(Started):
            ranks.make_run(config(data, tmp_path))
        assert os.environ.get("GLOO_SOCKET_IFNAME") == expected


def test_weights_written_in_pieces_are_those_of_safetensors(tmp_path: Path) -> None:
    tensors = {
        "tables.10.weight": torch.randn(7, 3),
        "network.0.bias": torch.randn(2),
        "tables.2.weight": torch.randn(5, 1),
    }
    save_file(tensors, tmp_path / "whole")
    ordered = dict(sorted(tensors.items()))
    pieces = (piece for tensor in ordered.values() for piece in tensor.split(2))
    write_pieces(tmp_path / "pieces", torch.float32, {name: tensor.shape for name, tensor in ordered.items()}, pieces)
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()
    assert torch.equal(load_file(tmp_path / "pieces")["tables.10.weight"], tensors["tables.10.weight"])


@pytest.mark.slow
def test_torchrun_starts_it(data: Path, tmp_path: Path, runs_in: RunsIn) -> None:
    runs = runs_in(tmp_path / "runs")
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "dpfest",
            "train", *overrides(data, runs, "train.steps=2"),
        ],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "adafest: AUC" in done.stdout and done.stdout.count("AUC") == 1
