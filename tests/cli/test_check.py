"""`dpfest check` at the prompt: sound files pass, and each kind of wrong one is named."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.data.clicks.synthetic import write_criteo_files
from tests.cli.conftest import Command

SMALL = (
    "profile=smoke",
    "privacy.noise_seed=0",
    "data.split={train: 0.5, validation: 0.1, test: 0.4}",
    "data.vocabulary.sizes=[" + ",".join(["40"] * 26) + "]",
    "model.hidden=[32]",
    "train.batch_size=250",
    "train.log_every=1000",
)
LEARNT, SHORT = "check.steps=120", "check.steps=2"


@pytest.fixture(autouse=True)
def enough_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration takes seconds, and what is tested here does not depend on it."""
    monkeypatch.setattr("pipelines.budget.remembered_calibration", lambda runs: lambda events, target, delta: 8.0)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Lines of Criteo's format whose labels follow from their features."""
    folder = tmp_path_factory.mktemp("criteo")
    data = typed(Composer().compose(["data=criteo_synthetic"])).data
    (file,) = write_criteo_files(folder, data, {0: 8000}, lambda done, total: None)
    return file.read_bytes().splitlines(keepends=True)


def row(output: str, start: str) -> str:
    """The one line of the output that begins so."""
    (found,) = [line for line in output.splitlines() if line.startswith(start)]
    return found


def check(dpfest_here: Command, file: Path, *more: str) -> Any:
    return dpfest_here("check", "data=criteo_kaggle", f"data.path={file}", *SMALL, SHORT, *more)


@pytest.mark.slow
def test_generated_lines_are_what_they_should_be(dpfest_here: Command, tmp_path: Path) -> None:
    """Slow: trains until labels are learnt."""
    ended = dpfest_here("check", "data=criteo_synthetic", "data.rows=8000", *SMALL, LEARNT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "OUTSIDE" not in ended.stdout
    assert "8,000 lines; 120 steps of 250 examples" in ended.stdout
    assert row(ended.stdout, "categorical-feature-16").split()[2:4] == ["82,742", "40"]
    assert "9 runs of the paper's grid take" in row(ended.stdout, "Non-private: ")
    assert list((tmp_path / "data").iterdir()) == [] and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_of_a_folder_of_days_the_first_is_read(dpfest_here: Command, tmp_path: Path, lines: list[bytes]) -> None:
    """Slow: another whole check."""
    (tmp_path / "day_0.gz").write_bytes(gzip.compress(b"".join(lines)))
    small = [text for text in SMALL if not text.startswith("data.split")]
    ended = dpfest_here("check", "data=criteo_1tb", f"data.path={tmp_path}", *small, SHORT)
    assert "OUTSIDE" in row(ended.stdout, "label 1") and ended.returncode == 1  # a quarter is too much there
    assert "day_0.gz: 8,000 lines" in ended.stdout and "experiment=streaming" in ended.stdout


def test_malformed_lines_and_another_share_of_positives_lie_outside(
    dpfest_here: Command, tmp_path: Path, lines: list[bytes]
) -> None:
    few = [line for number, line in enumerate(lines) if line[:1] == b"1" or number % 4]
    file = tmp_path / "train.txt"
    file.write_bytes(b"".join([*few[:2000], few[2000].replace(b"\n", b"\t\n"), *few[2001:]]))
    ended = check(dpfest_here, file)
    assert ended.returncode == 1
    assert "OUTSIDE" in row(ended.stdout, "malformed lines") and "OUTSIDE" in row(ended.stdout, "label 1")
    assert f"{file}, line 2001: 41 fields between tabs, 40 wanted" in row(ended.stdout, "malformed lines")
    assert "measurements lie OUTSIDE their ranges" in ended.stderr


@pytest.mark.slow
def test_labels_of_other_lines_lie_outside_and_the_head_alone_is_read(
    dpfest_here: Command, tmp_path: Path, lines: list[bytes]
) -> None:
    """What follows the head of a .gz may even be broken."""
    labels, file = [line[:1] for line in lines], tmp_path / "train.txt.gz"
    random.Random(0).shuffle(labels)
    other = b"".join(label + line[1:] for label, line in zip(labels, lines, strict=True))
    file.write_bytes(gzip.compress(other) + b"no gzip")
    ended = check(dpfest_here, file, "check.lines=5500")
    assert ended.returncode == 1, ended.stderr
    assert "OUTSIDE" in row(ended.stdout, "test AUC, Non-private")
    assert "ok" in row(ended.stdout, "label 1") and "ok" in row(ended.stdout, "malformed lines")
    assert f"{file}: 5,500 lines" in ended.stdout


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        (
            lambda lines: [line[2:] for line in lines],
            (),
            "line 1 has 39 fields between tabs, 40 wanted. Kaggle's test.txt",
        ),
        (
            lambda lines: [line.replace(b"\t", b",") for line in lines],
            (),
            "is not in Criteo's format: line 1 has 1 fields",
        ),
        (lambda lines: lines[:1000], (), "1,000 lines, and a check needs at least 5,000"),
        (lambda lines: lines, ("data.path=elsewhere.txt",), "There is no file elsewhere.txt: set data.path"),
        (lambda lines: lines, ("check.line=5",), "did you mean check.lines?"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(
    dpfest_here: Command, tmp_path: Path, lines: list[bytes], content: Any, more: tuple[str, ...], message: str
) -> None:
    file = tmp_path / "train.txt"
    file.write_bytes(b"".join(content(lines)))
    ended = check(dpfest_here, file, *more)
    assert (ended.returncode, ended.stdout) == (2, "") and message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_of_days_with_too_few_lines_the_first_is_named(
    dpfest_here: Command, tmp_path: Path, lines: list[bytes]
) -> None:
    for day in (0, 1):
        (tmp_path / f"day_{day}.gz").write_bytes(gzip.compress(b"".join(lines[: 1000 + day])))
    small = [text for text in SMALL if not text.startswith("data.split")]
    ended = dpfest_here("check", "data=criteo_1tb", f"data.path={tmp_path}", *small, SHORT)
    assert ended.returncode == 2 and "day_0.gz has 1,000 lines, and a check needs at least" in ended.stderr


def test_other_data_are_refused(dpfest_here: Command, tmp_path: Path) -> None:
    ended = dpfest_here("check", "data=journey")
    assert (ended.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "not data=journey: choose data=criteo_kaggle" in ended.stderr
