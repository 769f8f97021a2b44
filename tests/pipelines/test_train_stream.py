"""Training on a stream as a user meets it: periods, killed runs, histograms noised once, what is held out, refusals."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfest.errors import UserError
from dpfest.selection.topk import most_frequent
from dpfest.training.loop import PrivateTraining
from pipelines.budget import budget
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.dataset import Dataset
from pipelines.data.rows import RECORD, Rows
from pipelines.data.stream import Stream
from pipelines.preprocess import preprocess
from pipelines.runs.identity import run_folder, run_hash
from pipelines.select import Selection, select
from pipelines.tasks.clicks import ClickTask
from pipelines.train import make_run, prepare
from tests.pipelines.killed import train_until_killed
from tests.pipelines.resealed import reseal
from tests.pipelines.test_train import outcome

# Six days to train on, in periods of four and two; two held out.
SETTINGS = (
    "profile=smoke",
    "data=criteo_synthetic_stream",
    "data.days=8",
    "data.rows_per_day=200",
    f"data.vocabulary.sizes={[60] * 26}",
    "stream.train_days=6",
    "stream.period=4",
    "train.batch_size=40",
    "train.steps=null",
    "privacy.noise_seed=5",
)
FEST = ("algorithm=fest", "algorithm.selection.rows=260")
FIRST, SECOND = 757, 381  # rows that the two periods train on, of 800 and 400
TRAINED = FIRST + SECOND


@pytest.fixture
def overrides(tmp_path: Path, prepared: Path, runs_in: Callable[[Path], Path]) -> Any:
    """The overrides of a run in a folder of its own under `tmp_path`."""

    def of(name: str, *more: str) -> list[str]:
        return [*SETTINGS, f"paths.data={prepared}", f"paths.runs={runs_in(tmp_path / name)}", *more]

    return of


@pytest.fixture
def config(overrides: Any) -> Any:
    def of(*more: str, name: str = "runs") -> Config:
        return typed(Composer().compose(overrides(name, *more)))

    return of


def opened(settings: Config) -> Stream:
    return Stream.open(preprocess(settings))


@pytest.mark.parametrize(
    ("algorithm", "every"),
    [
        ("adafest_plus", 100),
        pytest.param("nonprivate", 3, marks=pytest.mark.slow),
        pytest.param("adafest_plus", 3, marks=pytest.mark.slow),
        pytest.param("adafest_plus optimizer.average=0.5", 1, marks=pytest.mark.slow),
    ],
)
def test_a_stream_killed_in_its_second_period_ends_as_if_it_never_was(
    overrides: Any, config: Any, algorithm: str, every: int
) -> None:
    """Slow but for two, whose last checkpoints are of the first period and of the second: a process that is killed."""
    more = [*f"algorithm={algorithm}".split(), "train.steps=6", f"train.checkpoint_every={every}", "train.log_every=1"]
    more += ["algorithm.threshold=1", "algorithm.selection.rows=260"] if "adafest_plus" in algorithm else []
    expected = make_run(config(*more, name="quiet"))
    folder = run_folder(config(*more, name="killed"))
    train_until_killed(overrides("killed", *more), steps=6 + 4)
    assert not (folder / "release").exists()
    assert '"step": 10' in (folder / "private" / "metrics.jsonl").read_text()
    resumed = make_run(config(*more, name="killed"))
    want, got = outcome(expected.path), outcome(resumed.path)
    assert got[0] == want[0] and len(got[0]["periods"]) == 2
    assert got[1] == want[1]
    assert all(bool((got[2][name] == value).all()) for name, value in want[2].items())
    if algorithm != "nonprivate":
        ledgers = [json.loads((run.path / "release" / "ledger.json").read_text()) for run in (expected, resumed)]
        assert ledgers[0] == ledgers[1] and ledgers[0]["epsilon"] <= 1


def test_a_period_starts_from_the_averaged_weights_of_the_one_before(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = list[torch.Tensor](), list[torch.Tensor]()
    step = PrivateTraining.step

    def recorded(training: PrivateTraining, batch: Any) -> Any:
        before.append(weights(training.model))
        taken = step(training, batch)
        after.append(weights(training.model))
        return taken

    def weights(model: torch.nn.Module) -> torch.Tensor:
        return torch.cat([value.double().flatten() for value in model.state_dict().values()])

    monkeypatch.setattr(PrivateTraining, "step", recorded)
    make_run(config("algorithm=nonprivate", "train.steps=6", "optimizer.average=0.5"))
    assert len(before) == 12
    assert all(torch.equal(before[n], after[n - 1]) for n in range(1, 12) if n != 6)
    torch.testing.assert_close(before[6], torch.stack(after[3:6]).mean(0), rtol=0, atol=1e-6)
    assert not torch.equal(before[6], after[5])


@pytest.mark.parametrize(
    "algorithm",
    [
        "nonprivate",
        pytest.param("frozen", marks=pytest.mark.slow),
        pytest.param("dpsgd", marks=pytest.mark.slow),
        pytest.param("fest algorithm.selection.rows=260 algorithm.selection.source=first_day", marks=pytest.mark.slow),
        "fest algorithm.selection.rows=260 algorithm.selection.source=all_days",
        pytest.param("adafest algorithm.threshold=1", marks=pytest.mark.slow),
        "adafest_plus algorithm.selection.rows=260 algorithm.threshold=1",
        pytest.param("exponential algorithm.rows_per_step=20", marks=pytest.mark.slow),
    ],
)
def test_every_rule_takes_one_pass_over_each_period_and_is_judged_after_it(config: Any, algorithm: str) -> None:
    """Slow but for three: each rule has noise of its own to calibrate, for both periods."""
    summary = make_run(config(*f"algorithm={algorithm}".split())).summary
    # A twentieth of 200 rows a day is held out.
    assert (summary["examples"], summary["steps"]) == (TRAINED, -(-FIRST // 40) + -(-SECOND // 40))
    first, second = summary["periods"]
    assert (first["days"], first["examples"], second["days"], second["examples"]) == (
        [0, 1, 2, 3],
        FIRST,
        [4, 5],
        SECOND,
    )
    assert first["following"]["auc"] is not None and "test" not in first
    assert second["test"]["auc"] == summary["utility"]["value"]
    assert second["validation"]["auc"] == summary["utility"]["validation"]
    if summary["algorithm"] != "nonprivate":
        assert 0.99 < summary["privacy"]["epsilon"] <= 1
        noise = [period["noise_multiplier"] for period in summary["privacy"]["periods"]]
        assert noise[1] > noise[0]  # the short period has a rate and a noise of its own


def numeric(*parts: Any) -> list[bytes]:
    """What tells the rows of parts from others."""
    return [row.tobytes() for part in parts for chunk in part.chunks(64) for row in chunk.numeric]


def test_the_held_out_days_are_never_trained_on_and_divided_between_choice_and_report(config: Any) -> None:
    settings = config()
    made, stream = prepare(settings, opened(settings)), opened(settings)
    trained = np.concatenate([chunk.days for rows in made.rows for chunk in rows.chunks(300)])
    assert np.unique(trained).tolist() == [0, 1, 2, 3, 4, 5] and len(trained) == TRAINED
    chosen, reported = numeric(made.validation), numeric(made.test)
    # An eighth of 400, give or take four binomial standard deviations: 1 seed in 10,000 would pass them.
    assert abs(len(chosen) - 50) < 4 * (400 / 8 * 7 / 8) ** 0.5 and not set(chosen) & set(reported)
    assert sorted(chosen + reported) == sorted(
        numeric(*(stream.days[day].split(part) for day in (6, 7) for part in ("train", "validation")))
    )


def test_a_period_is_judged_by_rows_of_the_next_one_that_are_never_trained_on(config: Any) -> None:
    settings = config()
    made, stream = prepare(settings, opened(settings)), opened(settings)
    judging = numeric(made.following(0))
    assert judging == numeric(*(stream.days[day].split("validation") for day in (4, 5))) and len(judging) > 10
    assert not set(judging) & set(numeric(*made.rows))
    assert made.following(1) is None


def test_training_rows_of_a_later_period_move_nothing_that_was_published_before_it(config: Any, tmp_path: Path) -> None:
    """All labels of a day of the second period are flipped, under the same noise: what the first period's end says
    stays the same to the last digit, and so does the cost; only what the second period's noise covers moves."""
    more = ("algorithm=adafest", "algorithm.threshold=1", "train.steps=3")
    summaries = []
    for name in ("whole", "flipped"):
        settings = config(*more, f"paths.data={tmp_path}/{name}-data", name=name)
        day = Stream.open(preprocess(settings)).days[4]
        if name == "flipped":
            rows = np.memmap(day.folder / "train.rows", RECORD, "r+", shape=(day.examples,))
            rows["label"] = 1 - rows["label"]
            rows.flush()
            reseal(day.folder)
        summaries.append(make_run(settings).summary)
    whole, flipped = summaries
    assert whole["periods"][0] == flipped["periods"][0]
    assert whole["privacy"] == flipped["privacy"] and whole["examples"] == flipped["examples"]
    assert whole["periods"][1]["test"] != flipped["periods"][1]["test"], "no row was drawn: nothing was tested"


def test_a_day_is_noised_once_however_many_periods_and_settings_follow(config: Any) -> None:
    secret = "privacy.noise_seed=null"
    for more in (("stream.period=4",), ("stream.period=1",), ("algorithm.selection.rows=52",)):
        settings = config(*FEST, secret, *more)
        select(settings)
        released = sorted(Path(settings.paths.runs).glob(".selections/*/*/release/counts.npy"))
        assert len(released) == 6
    before = [path.read_bytes() for path in released]
    make_run(settings)
    assert [path.read_bytes() for path in released] == before
    assert len(list(Path(settings.paths.runs).glob(".selections/*/*"))) == 6


def test_rows_come_from_the_sum_of_the_noised_days_up_to_the_periods_last(config: Any) -> None:
    settings = config(*FEST)
    stream, selection = opened(settings), settings.algorithm.selection
    chooser = Selection(settings, stream)
    rows = [chooser.rows(days) for days in (range(4), range(4, 6))]
    noised = {}
    for folder in Path(settings.paths.runs).glob(".selections/*/*/release"):
        noised[json.loads((folder / "selection.json").read_text())["day"]] = np.load(folder / "counts.npy")
    assert sorted(noised) == [0, 1, 2, 3, 4, 5]
    for wanted, days in zip(rows, (4, 6), strict=True):
        total = np.split(sum(noised[day] for day in range(days)), np.arange(60, 26 * 60, 60))
        assert wanted.tolist() == most_frequent(enumerate(total), selection, [60] * 26).tolist()
    assert rows[0].tolist() != rows[1].tolist()
    raw = np.concatenate(stream.days[3].histogram())
    spread = float(np.std(noised[3] - raw))
    assert spread == pytest.approx(selection.noise_multiplier * 26**0.5, rel=0.1)


@pytest.mark.parametrize(("source", "days"), [("first_day", 1), ("all_days", 6), ("streaming", 4)])
def test_a_source_looks_at_its_own_days_and_at_no_other(
    config: Any, monkeypatch: pytest.MonkeyPatch, source: str, days: int
) -> None:
    settings, seen = config(*FEST, f"algorithm.selection.source={source}"), []
    chooser, histogram = Selection(settings, opened(settings)), Dataset.histogram

    def looked_at(self: Dataset) -> Any:
        seen.append(self.folder.name)
        return histogram(self)

    monkeypatch.setattr(Dataset, "histogram", looked_at)
    first = chooser.rows(range(4))
    assert seen == [f"day_{number:02d}" for number in range(days)]
    later = chooser.rows(range(4, 6))
    assert (later.tolist() == first.tolist()) == (source != "streaming")


@pytest.mark.slow
def test_paper_fidelity_says_what_its_epsilon_is_worth(config: Any) -> None:
    """Slow: composes a stream three ways."""
    run = make_run(config("privacy=paper", "algorithm=dpsgd", "privacy.noise_seed=5"))
    privacy = run.summary["privacy"]
    assert (privacy["fidelity"], privacy["sampling"]) == ("paper", "shuffled")
    assert privacy["epsilon"] <= 1 < privacy["epsilon_at_own_rates"] < privacy["sound_epsilon"]
    said = json.loads((run.path / "release" / "ledger.json").read_text())["statements"][-1]
    assert f"gives epsilon {privacy['epsilon_at_own_rates']:.4g}" in said and "in one period only" in said


def test_budget_answers_from_the_days_or_from_a_number_of_examples(config: Any, tmp_path: Path) -> None:
    settings = config("algorithm=adafest_plus", "algorithm.selection.rows=260")
    preprocess(settings)
    said = str(budget(settings)).splitlines()
    assert [line.split()[:4] for line in said[-2:]] == [
        ["1", "0-3", str(FIRST), str(-(-FIRST // 40))],
        ["2", "4-5", str(SECOND), str(-(-SECOND // 40))],
    ]
    assert any(line.startswith("epsilon ") and "of 1 (rigorous, poisson" in line for line in said)
    trained = make_run(settings).summary["privacy"]["periods"]
    sigmas = [f"{period[name]:.6g}" for period in trained for name in ("noise_multiplier", "gradient_noise_multiplier")]
    assert all(sigma in "\n".join(said[-2:]) for sigma in sigmas)
    elsewhere = f"paths.data={tmp_path}/nowhere"
    with pytest.raises(
        UserError, match=r"number of training examples is unknown: set budget\.examples.* 6 training days"
    ):
        budget(config(elsewhere))
    table = str(budget(config(elsewhere, "budget.examples=1201", "privacy=paper")))
    assert "801" in table and "400" in table and "epsilon at each period's own q" in table


class Generated:
    """So many rows, made as they are read."""

    def __init__(self, count: int) -> None:
        self.count = count

    def chunks(self, size: int) -> Iterator[Rows]:
        for start in range(0, self.count, size):
            numbers = np.arange(start, min(start + size, self.count))
            labels = (numbers % 3 == 0).astype(np.float32)
            tens = (numbers % 60).astype(np.int32)
            yield Rows(labels, tens, np.tile(labels[:, None], 13), np.tile(tens[:, None], 26))


def test_evaluation_holds_no_day_in_memory(config: Any) -> None:
    settings = config()
    task = ClickTask(opened(settings).days[0], settings.model, 0, torch.device("cpu"))
    peaks = []
    for rows in (50_000, 500_000):
        tracemalloc.start()
        assert task.evaluate(Generated(rows))["auc"] is not None
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.02 * peaks[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("stream.period=7",), r"stream\.period=7 must lie between 1 and stream\.train_days=6"),
        (("stream.period=0",), r"stream\.period must be a whole number from 1"),
        (("stream.train_days=8",), r"stream\.train_days=8 leaves none of the 8 days .* choose at most 7"),
        (
            ("train.batch_size=500",),
            rf"Period 2 \(days 4-5\) has {SECOND} examples, fewer than a batch .*batch_size=500",
        ),
        ((*FEST, "algorithm.selection.mechanism=gumbel"), "stream's days cannot be summed"),
        ((*FEST, "algorithm.selection.source=some_day"), "source=some_day must be one of first_day, all_days"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(config: Any, more: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_run(config(*more))


def test_streams_settings_name_a_run_on_a_stream_and_no_other() -> None:
    def name(*overrides: str) -> str:
        return run_hash(typed(Composer().compose(overrides)))

    stream, fest = "data=nycflights_stream", ("algorithm=fest", "stream.period=4")
    assert name("stream.period=4") == name()
    assert name(stream, "stream.period=4") != name(stream)
    assert name(stream, *fest) == name(stream, *fest, "algorithm.selection.source=streaming")
    assert name(stream, *fest) != name(stream, *fest, "algorithm.selection.source=first_day")
    with pytest.raises(UserError, match=r"source=first_day .* data=journey is no stream: leave it null"):
        name("algorithm=fest", "algorithm.selection.source=first_day")
