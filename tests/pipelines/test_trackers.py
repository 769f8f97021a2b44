"""`log=...`: a run's metrics in other forms, said not to be covered by epsilon, through a stop and a resumption."""

from __future__ import annotations

import csv
import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfest import PrivateTraining
from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.runs.identity import run_folder
from pipelines.train import make_run

SMALL = ["profile=smoke", "data=criteo_synthetic", "data.rows=300", "algorithm=adafest", "train.steps=4",
         "train.log_every=1", "train.checkpoint_every=2", "privacy.noise_seed=0"]  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, runs_in: Callable[[Path], Path], prepared: Path) -> Callable[..., Config]:
    runs = runs_in(tmp_path / "runs")
    return lambda *more: typed(Composer().compose([*SMALL, f"paths.runs={runs}", f"paths.data={prepared}", *more]))


def metrics(run: Path) -> list[tuple[int, str, float]]:
    """The numbers of private/metrics.jsonl."""
    lines = map(json.loads, (run / "private" / "metrics.jsonl").read_text().splitlines())
    return [
        (line["step"], f"{line['split']}/{name}", value)
        for line in lines
        for name, value in line.items()
        if name not in ("step", "split") and isinstance(value, int | float)
    ]


def stopped_after(steps: int, config: Config, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose process ends after so many steps, beyond its last checkpoint."""
    taken, step = [0], PrivateTraining.step

    def counted(training: PrivateTraining, batch: Any) -> Any:
        taken[0] += 1
        if taken[0] > steps:
            raise SystemExit(1)
        return step(training, batch)

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(PrivateTraining, "step", counted)
        make_run(config)
    return run_folder(config)


def test_a_table_holds_the_numbers_of_the_metrics_once_and_is_its_owners(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = config("log=csv")
    run = stopped_after(3, asked, monkeypatch)
    assert make_run(asked).path == run == run_folder(config()), "no other run"
    table = run / "private" / "metrics.csv"
    with table.open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["step", "name", "value"]
    assert [(int(step), name, float(value)) for step, name, value in lines] == metrics(run)
    assert [step for step, name, _ in metrics(run) if name == "train/loss"] == [1, 2, 3, 4]
    rates = {name: value for _, name, value in metrics(run) if "learning_rate" in name}
    optimizer = asked.optimizer
    assert rates == {
        "train/learning_rate_tables": optimizer.tables.learning_rate,
        "train/learning_rate_dense": optimizer.dense.learning_rate,
    }
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
    said = capsys.readouterr().err
    assert f"losses, batch sizes and learning rates to {table}: they are computed from training rows" in said
    assert "\nlog:" not in (run / "release" / "config.yaml").read_text()


def test_tensorboard_shows_each_step_once(config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    asked = config("log=tensorboard")
    run = stopped_after(3, asked, monkeypatch)
    make_run(asked)
    events = accumulator.EventAccumulator(str(run / "private" / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    wanted = [(step, value) for step, name, value in metrics(run) if name == "train/loss"]
    assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in wanted]
    assert set(events.Tags()["scalars"]) == {name for _, name, _ in metrics(run)}
    shown = events.Tensors("settings/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| algorithm.name | `adafest` |" in shown and "noise_seed" not in shown and "path" not in shown


class FakeMLflow(SimpleNamespace):
    """Keeps what it is told, as MLflow's client functions are called."""

    def __init__(self) -> None:
        super().__init__(told=[], runs=0)

    def start_run(self, run_id: str | None = None, run_name: str | None = None) -> Any:
        self.runs += run_id is None
        self.told.append(("run", run_id or run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=f"id-{self.runs}"))

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.told.append((name, *given, *named.values()))


def test_mlflow_goes_on_with_its_run_and_learns_no_seed(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    asked = config("log=mlflow", "paths.log=http://tracker:5000")
    run = stopped_after(3, asked, monkeypatch)
    make_run(asked)
    assert "to http://tracker:5000: they are computed from training rows" in capsys.readouterr().err
    told = fake.told
    assert told[:2] == [("set_tracking_uri", "http://tracker:5000"), ("set_experiment", "dpfest")]
    assert [one for one in told if one[0] == "run"] == [("run", "/".join(run.parts[-3:])), ("run", "id-1")]
    params = next(one[1] for one in told if one[0] == "log_params")
    assert params["algorithm.name"] == "adafest" and not any("noise_seed" in name for name in params)
    losses = [(one[2], one[1]["train/loss"]) for one in told if one[0] == "log_metrics" and "train/loss" in one[1]]
    wanted = {step: value for step, name, value in metrics(run) if name == "train/loss"}
    assert dict(losses) == wanted and [step for step, _ in losses] == [1, 2, 3, 3, 4]
    assert told[-1] == ("end_run",)


def test_a_package_that_is_missing_is_named(config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"log=mlflow needs the package mlflow: pip install mlflow\."):
        make_run(asked := config("log=mlflow"))
    assert not run_folder(asked).exists(), "it does not seem to run"


def test_a_run_that_is_refused_before_it_begins_says_why(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    asked = config("log=tensorboard")
    run = stopped_after(3, asked, monkeypatch)
    (run / "private" / "state.pt").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"state\.pt"):
        make_run(asked)
