"""What the tests of reports share: one whole report a session, and reports whose figures nobody looks at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reports import write
from reports.build import build
from tests.once import Once
from tests.reports.synthetic import (
    write_audit,
    write_benches,
    write_comparison,
    write_map,
    write_run,
    write_streaming,
    write_units,
)
from tests.reports.synthetic_texts import write_texts


@pytest.fixture(scope="session")
def comparison(once: Once) -> Path:
    """Runs of every kind, by which all artifacts are complete, and one that failed; not to be changed."""

    def make(runs: Path) -> None:
        write_comparison(runs, epsilons=(1.0, 3.0), seeds=(0,))
        write_streaming(runs, periods=(1, 4))
        write_texts(runs)
        write_texts(runs, "xnli", 250_002)
        write_map(runs)
        write_units(runs)
        write_run(runs, "dpsgd", test=0.7, status="failed", settings={"clipping_norm": 7.0})

    return once("report-runs", make)


@pytest.fixture(scope="session")
def report(once: Once, comparison: Path) -> Path:
    """The whole report of these runs, the only one that draws every figure; not to be changed."""

    def make(folder: Path) -> None:
        write_audit(folder)
        write_benches(folder)
        build(comparison, folder)

    return once("report-whole", make)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are composed, but their files are empty drawings: most of a report's time goes into rendering them."""
    draw_only(monkeypatch)


def draw_only(patch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Render figures as these kinds of file alone; the others are empty drawings."""

    def empty(_: object) -> Callable[..., object]:
        return lambda out, metadata: out.write(b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"/>')

    patch.setattr("reports.build.printing", lambda beside: write.printing(beside=False))  # in this process
    for kind in write._PRINTED.keys() - set(kinds):
        patch.setitem(write._PRINTED, kind, empty)
    if not kinds:
        patch.setattr(write, "settle", lambda figure: None)
