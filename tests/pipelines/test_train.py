"""The train stage as a user meets it: killed, stopped, repeated, run twice at once, and its epsilon counted again."""

from __future__ import annotations

import json
import math
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dpfest.errors import UserError
from dpfest.training.loop import PrivateTraining
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.dataset import Dataset
from pipelines.preprocess import preprocess
from pipelines.runs.directory import RunDirectory
from pipelines.runs.identity import run_folder, run_hash
from pipelines.runs.weights import whole_weights
from pipelines.select import select
from pipelines.tasks.clicks import ClickTask, Evaluation
from pipelines.tasks.diverged import Diverged
from pipelines.train import Run, make_run
from tests.pipelines.killed import signal_at, train_until_killed


def overrides(tmp_path: Path, *more: str) -> list[str]:
    return [
        "profile=smoke",
        f"paths.data={tmp_path}/data",
        f"paths.runs={tmp_path}/runs",
        "privacy.noise_seed=5",
        # Small tables: these tests are about what is written when, not about size.
        f"data.vocabulary.sizes={[60] * 26}",
        *more,
    ]


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, prepared: Path, runs_in: Callable[[Path], Path]) -> None:
    """Calibrations, and data: a test that damages them has others."""
    for place in (tmp_path, *(tmp_path / name for name in ("quiet", "killed", "one", "two", "whole", "cut"))):
        runs_in(place / "runs")
        (place / "data").symlink_to(prepared)


def config(tmp_path: Path, *more: str) -> Config:
    return typed(Composer().compose(overrides(tmp_path, *more)))


def outcome(folder: Path) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """Summary, metrics, weights: all that must not depend on a kill."""
    summary = json.loads((folder / "release" / "summary.json").read_text())
    metrics = [json.loads(line) for line in (folder / "private" / "metrics.jsonl").read_text().splitlines()]
    return summary, metrics, load_file(folder / "release" / "model.safetensors")


LONG = ("train.steps=12", "train.checkpoint_every=3", "train.log_every=1")
"""Checkpoints at the start and after steps 3, 6 and 9; a run that ends after 7 steps takes the seventh again."""


@pytest.mark.parametrize(
    "algorithm",
    [
        "algorithm=adafest_plus",
        pytest.param("algorithm=dpsgd optimizer.tables.name=adam", marks=pytest.mark.slow),
        pytest.param("algorithm=dpsgd optimizer.schedule=linear", marks=pytest.mark.slow),
        # Saved before, and within, the steps that are averaged.
        pytest.param("algorithm=dpsgd optimizer.average=0.75", marks=pytest.mark.slow),
        pytest.param("algorithm=nonprivate", marks=pytest.mark.slow),
    ],
)
def test_killed_run_ends_as_if_it_never_was(tmp_path: Path, algorithm: str) -> None:
    """Slow but for one: a process that is killed."""
    more = (*LONG, *algorithm.split(), "algorithm.threshold=1" if "adafest" in algorithm else "seed=0")
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    expected = make_run(config(quiet, *more))
    folder = run_folder(config(killed, *more))
    train_until_killed(overrides(killed, *more), steps=7)
    assert (folder / "private" / "state.pt").exists() and not (folder / "release").exists()
    with open(folder / "private" / "metrics.jsonl", "a") as file:
        file.write('{"step": 9')  # a line cut short by the kill
    resumed = make_run(config(killed, *more))
    want, got = outcome(expected.path), outcome(resumed.path)
    assert got[0] == want[0]
    assert got[1] == want[1]
    assert got[2].keys() == want[2].keys()
    assert all(bool((got[2][name] == value).all()) for name, value in want[2].items())


def test_a_linear_schedule_sets_the_rates_of_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[list[float]] = []
    step = PrivateTraining.step

    def recorded(training: PrivateTraining, batch: Any) -> Any:
        rates.append([group["lr"] for one in training.optimizers for group in one.param_groups])
        return step(training, batch)

    monkeypatch.setattr(PrivateTraining, "step", recorded)
    made = config(tmp_path, "train.steps=4", "optimizer.schedule=linear")
    make_run(made)
    start = [made.optimizer.tables.learning_rate, made.optimizer.dense.learning_rate]
    assert rates == [[rate * share for rate in start] for share in (1, 0.75, 0.5, 0.25)]


def test_a_constant_schedule_keeps_the_names_of_earlier_runs(tmp_path: Path) -> None:
    """The literal is the hash of a version without schedules and averages; another would train finished runs again."""
    more = ["schedule=null", "average=null", "schedule=linear", "average=0.5"]
    runs = [run_hash(config(tmp_path, f"optimizer.{text}")) for text in more]
    assert runs[:2] == ["c7c151c039af"] * 2 and len(set(runs)) == 3


def test_averaged_weights_are_released_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after: list[dict[str, torch.Tensor]] = []
    step = PrivateTraining.step

    def recorded(training: PrivateTraining, batch: Any) -> Any:
        taken = step(training, batch)
        after.append({name: value.double() for name, value in training.model.state_dict().items()})
        return taken

    monkeypatch.setattr(PrivateTraining, "step", recorded)
    made = make_run(config(tmp_path, "train.steps=8", "optimizer.average=0.5"))
    released = load_file(made.path / "release" / "model.safetensors")
    assert len(after) == 8 and released.keys() == after[0].keys()
    for name, value in released.items():
        mean = torch.stack([weights[name] for weights in after[4:]]).mean(0)
        torch.testing.assert_close(value.double(), mean, rtol=0, atol=1e-6)
    last = make_run(config(tmp_path, "train.steps=8"))
    assert made.summary["utility"]["loss"] != last.summary["utility"]["loss"]
    assert made.summary["privacy"] == last.summary["privacy"]


def test_a_run_stopped_before_its_evaluation_goes_on_with_the_averaged_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["train.steps=8", "optimizer.average=0.5"]
    expected = make_run(config(tmp_path / "whole", *more))
    settings = config(tmp_path / "cut", *more)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        signal_at(patch, 7, signal.SIGTERM)  # in the last step
        make_run(settings)
    state = RunDirectory(run_folder(settings)).load_state()
    assert state["training"]["steps_done"] == 8 and not state["evaluations"]
    resumed = make_run(settings)
    want, got = outcome(expected.path), outcome(resumed.path)
    assert got[0] == want[0]
    assert all(bool((got[2][name] == value).all()) for name, value in want[2].items())


@pytest.mark.parametrize("share", [0, 1.5])
def test_a_share_beyond_its_range_is_refused(share: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"optimizer\.average must be a number"):
        config(tmp_path, f"optimizer.average={share}")


def test_weights_that_lack_noise_are_not_averaged(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"optimizer\.average takes .*algorithm\.noise=lazy still lack noise"):
        config(tmp_path, "algorithm=dpsgd", "algorithm.noise=lazy", "optimizer.average=0.5")


def stopped(monkeypatch: pytest.MonkeyPatch, settings: Config) -> Path:
    """The folder of a run that SIGTERM ended after 7 steps."""
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        signal_at(patch, 7, signal.SIGTERM)
        make_run(settings)
    assert ended.value.code == 143
    return run_folder(settings)


def test_sigterm_saves_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stopped(monkeypatch, config(tmp_path, *LONG))
    assert json.loads((folder / "status.json").read_text())["status"] == "stopped"
    assert RunDirectory(folder).load_state()["training"]["steps_done"] == 8  # the step under way is finished
    assert "Stopping after this step; the same command goes on from there." in capsys.readouterr().err
    assert make_run(config(tmp_path, *LONG)).summary["steps"] == 12
    assert "8/12 after 0 s  goes on after step 8" in capsys.readouterr().err
    assert json.loads((folder / "status.json").read_text())["status"] == "done"


def test_a_run_does_not_go_on_with_rows_that_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step done again on other rows, under the same noise, would be a second release."""
    settings = config(tmp_path, f"paths.data={tmp_path}/own")
    dataset = Dataset.open(preprocess(settings))
    with monkeypatch.context() as patch:
        patch.setattr(PrivateTraining, "step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make_run(settings)
    assert (run_folder(settings) / "private" / "state.pt").exists()
    rows = dataset.folder / "train.rows"
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=rf"{rows} is damaged: .* Delete {dataset.folder} and preprocess"):
        make_run(settings)
    rows.write_bytes(whole)
    assert make_run(settings).summary["steps"] == 3


def test_done_run_is_found_done_and_its_private_state_is_gone(tmp_path: Path) -> None:
    first = make_run(config(tmp_path))
    again = make_run(config(tmp_path, "train.log_every=2", "profile=smoke"))
    assert not first.skipped and again.skipped and again.path == first.path
    assert not (first.path / "private" / "state.pt").exists()
    assert (first.path / "release" / "model.safetensors").exists()


def test_a_done_run_that_is_asked_otherwise_says_how_it_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make_run(config(tmp_path, "train.save_model=false"))
    make_run(config(tmp_path, "train.save_model=false"))
    assert "was made with" not in capsys.readouterr().err
    again = make_run(config(tmp_path, "device=cpu", "train.evaluate_every=2"))
    assert again.skipped and again.summary == first.summary
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "was made with" in line]
    assert f"{first.path} was made with device=auto, train.evaluate_every=null, train.save_model=false: " in line


def test_a_full_disk_is_named_and_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # a write past it fails as one on a full disk does
    try:
        large = {"step": 1, "weights": torch.zeros(10_000)}
        with pytest.raises(UserError, match=r"checkpoint cannot be written to .*run \(File too large\); there is no"):
            directory.save_state(large)
        directory.save_state({"step": 0})
        with pytest.raises(UserError, match="previous checkpoint is intact"):
            directory.save_state(large)
        with pytest.raises(UserError, match="previous checkpoint is intact"):
            directory.finish({}, {}, {}, whole_weights(torch.nn.Linear(10_000, 1)), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert directory.load_state() == {"step": 0}
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == ["private", "state.pt", "timings.json"]
    assert directory.summary() is None


def test_a_fresh_key_is_kept_only_in_the_private_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path, "privacy.noise_seed=null", *LONG)
    folder = stopped(monkeypatch, settings)
    saved = RunDirectory(folder).load_state()
    assert saved is not None and len(saved["training"]["key"]) == 32
    assert (folder / "private" / "state.pt").stat().st_mode & 0o077 == 0
    key = bytes(saved["training"]["key"].tolist())
    for file in (path for path in folder.rglob("*") if path.is_file() and path.name != "state.pt"):
        assert key.hex() not in file.read_text()
    resumed: list[bytes] = []
    release = Run.release
    monkeypatch.setattr(Run, "release", lambda run, told: (resumed.append(run.key.secret), release(run, told))[1])
    assert make_run(settings).summary["privacy"]["epsilon"] <= 1
    assert resumed == [key], "under another key, the steps since the checkpoint would be a second release"
    assert not (folder / "private" / "state.pt").exists()


def test_a_checkpoint_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path, *LONG)
    directory = RunDirectory(stopped(monkeypatch, settings))
    saved = directory.load_state()
    assert saved is not None
    del saved["evaluated"]
    directory.save_state(saved)
    with pytest.raises(UserError, match=r"which another version of dpfest wrote: it lacks evaluated\."):
        make_run(settings)


def test_times_and_losses_of_batches_are_private(tmp_path: Path) -> None:
    """Both depend on the batches that were drawn: one example more or less moves them."""
    settings = config(tmp_path)
    run = make_run(settings)
    timings = json.loads((run.path / "private" / "timings.json").read_text())
    assert timings["evaluated_examples"] == sum(
        Dataset.open(preprocess(settings)).rows[part] for part in ("validation", "test")
    )
    assert timings["evaluation_seconds"] > 0
    examples = run.summary["steps"] * run.summary["batch_size"]
    assert timings["examples_per_second"] * timings["wall_seconds"] == pytest.approx(examples)
    assert "throughput" not in run.summary and run.summary["schema"] == 2
    assert {path.name for path in run.path.iterdir()} == {"status.json", "release", "private"}
    for path in (run.path / "private", *(run.path / "private").iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_example_whose_loss_overflows_does_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a run stops is seen by all; the loss of a raw batch is not for all to see."""
    losses = ClickTask.losses

    def overflow(self: ClickTask, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        found = losses(self, model, batch)
        return torch.where(batch[2] > 0, found * float("inf"), found)

    monkeypatch.setattr(ClickTask, "losses", overflow)
    run = make_run(config(tmp_path))
    assert run.summary["steps"] == 3
    metrics = [json.loads(line) for line in (run.path / "private" / "metrics.jsonl").read_text().splitlines()]
    assert {line["loss"] for line in metrics if line["split"] == "train"} == {None}


def test_scores_that_overflow_are_a_divergence_which_a_search_counts_as_the_worst() -> None:
    """Finite weights, and logits or a loss past float32: a function of released weights and held-out rows."""
    numbers, ids = torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.int64)
    for logit in (math.inf, 3e38):
        with pytest.raises(Diverged, match="not finite: lower optimizer"):
            Evaluation().add(lambda *_, logit=logit: torch.full((4,), logit), (numbers, ids, torch.zeros(4)))  # type: ignore[arg-type]


def test_weights_that_overflow_stop_a_run_and_the_status_does_not_tell_more(tmp_path: Path) -> None:
    settings = config(tmp_path, "optimizer.dense.name=sgd", "optimizer.dense.learning_rate=1e300")
    with pytest.raises(UserError, match=r"The weights .* are not finite after step 1: lower optimizer\.dense"):
        make_run(settings)
    folder = run_folder(settings)
    status = json.loads((folder / "status.json").read_text())
    assert status == {"status": "failed", "reason": "see private/failure.txt"}
    assert "are not finite after step 1" in (folder / "private" / "failure.txt").read_text()
    assert not (folder / "release").exists()


def test_two_secret_keys_give_two_results(tmp_path: Path) -> None:
    values = set()
    for name in ("one", "two"):
        run = make_run(config(tmp_path / name, "privacy.noise_seed=null"))
        values.add(run.summary["utility"]["loss"])
    assert len(values) == 2


def test_the_same_run_twice_at_once_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with RunDirectory(run_folder(settings)).lock(), pytest.raises(UserError, match="training the same run"):
        make_run(settings)


def test_failure_is_written_down_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateTraining, "step", lambda self, batch: batch.nosuch)
        with pytest.raises(AttributeError, match="nosuch"):
            make_run(settings)
    folder = run_folder(settings)
    assert json.loads((folder / "status.json").read_text())["status"] == "failed"
    assert "AttributeError" in (folder / "private" / "failure.txt").read_text()
    assert not make_run(settings).skipped
    assert json.loads((folder / "status.json").read_text()) == {"status": "done", "reason": None}
    assert not (folder / "private" / "failure.txt").exists()


def test_a_step_is_not_taken_again_in_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums round otherwise in other micro-batches, and a loss may be another of the same name: either would be a second
    release of the steps since the checkpoint, under the same noise."""
    with monkeypatch.context() as patch:
        patch.setattr(PrivateTraining, "step", lambda self, batch: batch.nosuch)
        with pytest.raises(AttributeError, match="nosuch"):
            make_run(config(tmp_path))
    with pytest.raises(UserError, match=r"saved under another reader.*the same train\.micro_batch_size, device"):
        make_run(config(tmp_path, "train.micro_batch_size=50"))
    with monkeypatch.context() as patch:
        patch.setattr(ClickTask, "losses", lambda self, model, batch: model(*batch[:2]).square())
        with pytest.raises(UserError, match="saved under another loss_fn"):
            make_run(config(tmp_path))
    torch.set_num_threads(threads := torch.get_num_threads() + 1)  # sums follow it: the checkpoint's is taken again
    assert make_run(config(tmp_path)).summary["steps"] == 3
    assert torch.get_num_threads() == threads - 1


def test_a_run_of_an_earlier_version_is_named_and_not_trained_over(tmp_path: Path) -> None:
    """Its checkpoint's key is not read: steps taken anew under another key would be a second release."""
    settings = config(tmp_path)
    folder = run_folder(settings)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("privacy: {noise_seed: 5}")
    with pytest.raises(UserError, match="made by an earlier version of dpfest"):
        make_run(settings)
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]


def test_corrupt_checkpoint_is_named(tmp_path: Path) -> None:
    settings = config(tmp_path)
    path = run_folder(settings) / "private" / "state.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match=r"state\.pt cannot be read"):
        make_run(settings)


def test_micro_batches_change_rounding_alone(tmp_path: Path) -> None:
    more = ("algorithm.threshold=1", "train.batch_size=32")
    whole = make_run(config(tmp_path / "whole", *more))
    for micro in (12, 32):
        cut = make_run(
            config(tmp_path / "cut", *more, f"train.micro_batch_size={micro}", f"paths.runs={tmp_path}/{micro}")
        )
        assert not cut.skipped and cut.summary["embedding_gradient"] == whole.summary["embedding_gradient"]
        assert cut.summary["utility"]["loss"] == pytest.approx(whole.summary["utility"]["loss"], abs=1e-5)


def test_batch_larger_than_the_data_is_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.batch_size=9999"):
        make_run(config(tmp_path, "train.batch_size=9999"))


def test_unknown_device_is_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device=tpu"):
        make_run(config(tmp_path, "device=tpu"))


def test_selection_is_made_once_and_shared(tmp_path: Path) -> None:
    settings = config(tmp_path, "algorithm=fest", "algorithm.selection.rows=260", "privacy.noise_seed=null")
    folder = select(settings)
    before = (folder / "rows.npy").read_bytes()
    assert select(settings) == folder and (folder / "rows.npy").read_bytes() == before
    make_run(settings)
    assert (folder / "rows.npy").read_bytes() == before
    with pytest.raises(UserError, match="selects no rows"):
        select(config(tmp_path, "algorithm=dpsgd"))


def test_public_prior_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "prior.npy", np.ones(5))
    more = ("algorithm=fest", "algorithm.selection.mechanism=public", f"algorithm.selection.prior={tmp_path}/prior.npy")
    with pytest.raises(UserError, match=r"prior\.npy holds float64 of shape \(5,\)"):
        select(config(tmp_path, *more))


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param("algorithm=dpsgd", marks=pytest.mark.slow),
        pytest.param("algorithm=frozen", marks=pytest.mark.slow),
        pytest.param("algorithm=adafest", marks=pytest.mark.slow),
        pytest.param("algorithm=fest", marks=pytest.mark.slow),
        pytest.param(
            "algorithm=fest algorithm.selection.mechanism=laplace algorithm.selection.epsilon=0.2",
            marks=pytest.mark.slow,
        ),
        "algorithm=adafest_plus algorithm.noise_ratio=1",
        "algorithm=exponential",
    ],
)
def test_epsilon_from_the_summary_and_dp_accounting_alone(tmp_path: Path, algorithm: str) -> None:
    """The reviewer's ten lines: no code of ours, but for exponential selection's published pair. Slow but for two, of
    which one has a map and a selection: the accountant composes each anew.
    """
    summary = make_run(config(tmp_path, *algorithm.split())).summary
    import dp_accounting as dpa
    from dp_accounting.pld import PLDAccountant

    privacy, q, steps = summary["privacy"], summary["batch_size"] / summary["examples"], summary["steps"]
    if per_row := privacy["step"].get("epsilon_per_draw"):
        from dpfest.accounting.dominating_pair import privacy_loss

        rows = privacy["step"]["draws"]
        step = privacy_loss(per_row, rows, privacy["noise_multiplier"], q, 1e-4)
        epsilon = step.self_compose(steps).get_epsilon_for_delta(privacy["delta"])
    else:
        accountant = PLDAccountant()
        gaussian = dpa.GaussianDpEvent(privacy["noise_multiplier"])
        accountant.compose(dpa.PoissonSampledDpEvent(q, gaussian), steps)
        if selection := privacy["selection"]:
            kind = {"gaussian": dpa.GaussianDpEvent, "laplace": dpa.LaplaceDpEvent}[selection["kind"]]
            accountant.compose(kind(selection["noise_multiplier"]), selection["count"])
        epsilon = accountant.get_epsilon(privacy["delta"])
    assert epsilon == pytest.approx(privacy["epsilon"], abs=1e-3)
    assert privacy["epsilon"] <= 1.0
    if privacy["map_noise_multiplier"]:
        both = (privacy["map_noise_multiplier"] ** -2 + privacy["gradient_noise_multiplier"] ** -2) ** -0.5
        assert both == pytest.approx(privacy["noise_multiplier"])


def test_paper_fidelity_says_what_it_is(tmp_path: Path) -> None:
    more = ("privacy=paper", "algorithm=fest", "privacy.noise_seed=5")
    privacy = make_run(config(tmp_path, *more)).summary["privacy"]
    assert (privacy["fidelity"], privacy["sampling"]) == ("paper", "shuffled")
    assert privacy["epsilon"] <= 1 < privacy["sound_epsilon"]
    assert privacy["selection"]["claimed_epsilon"] == 0.01  # the paper's Gumbel noise, unasked


def test_a_run_is_sampled_as_it_says(tmp_path: Path) -> None:
    more = ("algorithm=dpsgd", "privacy.sampling=balls_in_bins", "optimizer.dense.name=adambc")
    privacy = make_run(config(tmp_path, *more)).summary["privacy"]
    assert privacy["sampling"] == "balls_in_bins" and 0.999 < privacy["epsilon"] <= 1
    assert privacy["step"]["bins"] == round(1 / privacy["step"]["sampling_probability"]) > 1


def test_settings_of_sampling_name_other_runs_and_the_default_none(tmp_path: Path) -> None:
    default, named, other = (
        run_hash(config(tmp_path, *more))
        for more in ((), ("privacy.sampling=poisson",), ("privacy.sampling=truncated_poisson",))
    )
    assert default == named != other


def test_one_noise_seed_gives_every_run_its_own_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs under the same normals would show the data in their difference."""
    keys: list[bytes] = []
    save = RunDirectory.save_state

    def record(self: RunDirectory, state: dict[str, Any]) -> None:
        keys.append(bytes(state["training"]["key"].tolist()))
        save(self, state)

    monkeypatch.setattr(RunDirectory, "save_state", record)
    make_run(config(tmp_path / "one"))
    make_run(config(tmp_path / "one", "optimizer.tables.learning_rate=0.1"))
    make_run(config(tmp_path / "two"))
    assert keys[0] == keys[2] != keys[1]


def test_key_that_a_kill_left_beside_a_finished_run_is_removed(tmp_path: Path) -> None:
    done = make_run(config(tmp_path))
    for name in ("state.pt", ".state.pt.123.partial"):
        (done.path / "private" / name).write_bytes(b"secret")
    (done.path / ".release.123.partial").mkdir()
    assert make_run(config(tmp_path)).skipped
    assert not [path for path in done.path.rglob("*") if path.is_file() and path.read_bytes() == b"secret"]
    assert {path.name for path in done.path.iterdir()} == {"status.json", "release", "private"}


def test_a_changed_prior_is_another_selection_and_another_run(tmp_path: Path) -> None:
    import numpy as np

    more = ("algorithm=fest", "algorithm.selection.mechanism=public", f"algorithm.selection.prior={tmp_path}/prior.npy")
    folders = []
    for best in (0, 1):
        counts = np.zeros(26 * 60)
        counts[best] = 1
        np.save(tmp_path / "prior.npy", counts)
        folders.append((select(config(tmp_path, *more)), run_folder(config(tmp_path, *more))))
    assert folders[0][0] != folders[1][0] and folders[0][1] != folders[1][1]
