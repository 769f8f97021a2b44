"""What all tests share: what is prepared once for all workers, imports of new processes, the table of slow tests."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.once import Once

# What is remembered of files, and what the accountant computed, is shared by workers and by the processes that tests
# start, which inherit these; it is no business of the user's own memory, and goes with the session.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _session = tempfile.mkdtemp(prefix="dpfest-tests-")
    atexit.register(shutil.rmtree, _session, ignore_errors=True)
    for _name in ("DPFEST_CACHE", "DPFEST_TESTS_EPSILONS"):
        os.environ[_name] = f"{_session}/{_name.lower()}"
        os.mkdir(os.environ[_name])

# Read when torch is first imported. Workers share the cores, and tests of ranks compare sums of one thread each.
os.environ["OMP_NUM_THREADS"] = "1"

# Read when Triton is first imported: without a GPU its kernels are interpreted (tests/dpfest/device).
if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd"))):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# One server forks the processes of all tests, and imports only what the first of them asks for: what any of them needs.
_SERVED = (
    "tests.accountant", "pipelines.train", "pipelines.train.ranks", "pipelines.bench.step", "pipelines.bench.text",
    "torch._dynamo", "transformers.models.roberta.modeling_roberta", "peft",
)  # fmt: skip
_preload = forkserver.set_forkserver_preload


def _preload_all(modules: Sequence[str]) -> None:
    _preload(list(_SERVED))


forkserver.set_forkserver_preload = _preload_all


@pytest.fixture(scope="session", autouse=True)
def epsilons() -> None:
    """No epsilon is computed twice in a session (`tests.accountant`)."""
    import tests.accountant  # noqa: F401


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Makes folders that tests only read, once for all workers: ``once("name", make)`` (`tests.once`)."""
    base = tmp_path_factory.getbasetemp()
    # Of several workers each has a base of its own within that of the session.
    return Once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once")


@pytest.fixture(scope="session")
def calibrations(once: Once) -> Path:
    """A folder for noise calibrations, to be linked to as ``<paths.runs>/.calibration``."""
    return once.folder("calibrations")


@pytest.fixture(scope="session")
def prepared(once: Once) -> Path:
    """A folder for ``paths.data`` in which each data set is made by whoever asks for it first; not to be damaged."""
    return once.folder("data")


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of a benchmark hold one step, where a test does not ask how exact its times are."""
    monkeypatch.setattr("pipelines.bench.measure._TURN_SECONDS", 1e-3)


SHOWN, LONG = 20, 10.0
"""The slowest tests that a run ends with; seconds beyond which a test says why (``@pytest.mark.long("reason")``)."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    if mark := item.get_closest_marker("long"):
        item.user_properties.append(("long", mark.args[0]))
    yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the slowest tests with their reasons, whichever worker ran them."""
    seconds: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
                reasons.update((report.nodeid, str(why)) for key, why in report.user_properties if key == "long")
    slowest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:SHOWN]
    if slowest:
        terminalreporter.section(
            f"slowest {len(slowest)} of {len(seconds)} tests, {sum(seconds.values()):.0f} s in all"
        )
    for name in slowest:
        why = reasons.get(name) or ("gives no reason" if seconds[name] > LONG else "")
        terminalreporter.line(f"{seconds[name]:6.1f} s  {name}{why and f'  ({why})'}")
