"""What a long command shows: a bar that survives a narrow terminal, and lines that a log can hold."""

from __future__ import annotations

import re

import pytest

from pipelines.system import progress as module
from pipelines.system.progress import duration, progress

TITLE = "criteo_kaggle/adafest_plus/0123456789ab"
WORDS = "12,345 examples/s  loss 0.4321  reduction 48,719.1x  epsilon 0.912 of 1 (rigorous, poisson, delta 3.8e-06)"


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_on_a_terminal_the_words_give_way(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with progress(TITLE) as report:
        report(5_000, 22_383, WORDS)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    bar, words = [line for line in re.split(r"[\r\n]+", shown) if line.strip()][-2:]
    assert TITLE in bar and "5,000/22,383" in bar and re.search(r"\d:\d\d|-:--", bar)
    assert len(re.findall("[━╸╺]", bar)) >= 10
    assert len(bar) <= columns and len(words) <= columns
    assert words.startswith(WORDS[: columns - 1]) and ("…" in words) == (columns < len(WORDS))


def _said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"[\d.]+ s", "_ s", line) for line in capsys.readouterr().err.splitlines()]


def test_in_a_log_each_report_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("run", interval=0) as report:
        report(20, 22_383, "loss 0.5")
        report(40, 22_383, "loss 0.4")
    wanted = ["run …", "run: 20/22,383 after _ s  loss 0.5", "run: 40/22,383 after _ s  loss 0.4", "run: done in _ s"]
    assert _said(capsys) == wanted


def test_in_a_log_lines_keep_their_distance(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 1_000, 4))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    with progress("reading", interval=10) as report:
        for done in range(1, 8):
            report(done * 500_000_000, 4_000_000_000)
    assert _said(capsys) == [
        "reading …",
        "reading: 1,500M/4,000M after _ s",
        "reading: 3,000M/4,000M after _ s",
        "reading: done in _ s",
    ]


def test_work_that_fails_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), progress("run"):
        raise KeyError
    assert _said(capsys) == ["run …"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59, "59 s"), (320, "5 min 20 s"), (7_830, "2 h 10 min"), (273_600, "3 d 4 h")],
)
def test_a_span_of_time_is_told_in_the_units_that_matter(seconds: float, said: str) -> None:
    assert duration(seconds) == said
