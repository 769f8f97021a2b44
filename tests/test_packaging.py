"""The wheel holds all that dpfest needs: code, configurations, data files."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
import setuptools

import dpfest
from cli import start

HOME = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`dpfest`, installed from its wheel into a fresh environment that borrows this one's dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    # Built from a copy: setuptools writes build/ and *.egg-info beside the sources.
    source = folder / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=HOME,
        capture_output=True,
        text=True,
    )
    names = tracked.stdout.split("\0")[:-1] if tracked.returncode == 0 else []
    if not names:
        pytest.skip("the sources are not a git checkout, so what belongs to them is not known")
    for name in names:
        if (HOME / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HOME / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheel = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "-q",
        "-w",
        str(folder),
        str(source),
    ]
    subprocess.run(wheel, check=True)

    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    # Only the folder of this environment's packages is named: Python does not read the .pth files in it, so
    # an editable install of the sources there cannot stand in for what the wheel lacks.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = environment / "bin" / "python"
    install = [*pip, "--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*install, *map(str, folder.glob("*.whl"))], check=True)
    return environment / "bin" / "dpfest"


def run(command: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(command), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_every_file_beside_the_code_is_of_a_kind_that_the_wheel_holds() -> None:
    """What pyproject.toml says of packages and their data, without a wheel."""
    said = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = setuptools.find_namespace_packages(str(HOME), include=said["packages"]["find"]["include"])
    kinds = [
        "*.py",
        "*.pyi",
        *said["package-data"]["*"],
        *(c for module in said["ext-modules"] for c in module["sources"]),
    ]
    for name in ("dpfest", "pipelines", "reports", "cli", "conf"):
        for path in sorted((HOME / name).rglob("*")):
            inside = path.relative_to(HOME)
            if path.is_file() and "__pycache__" not in inside.parts and path.suffix != ".so":
                assert ".".join(inside.parent.parts) in packages, inside
                assert any(inside.match(kind) for kind in kinds), inside


def test_the_library_needs_its_own_dependencies_alone() -> None:
    """The extra `run` is for the command line: no module of the library imports a package of it."""
    said = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in said["dependencies"]}
    found = set()
    for path in (HOME / "dpfest").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {name.partition(".")[0] for name in named}
    assert found - set(sys.stdlib_module_names) - {"dpfest", "triton"} == own
    assert sorted(name for name in dir(dpfest) if not name.startswith("_")) == sorted(dpfest.__all__)


def test_the_command_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert start._missing() == []
    monkeypatch.setattr(start, "_installed", lambda name: name not in ("polars", "hydra-core"))
    with pytest.raises(SystemExit, match="2"):
        start.main()
    assert "(hydra-core, polars): install dpfest with its extra, dpfest[run]." in capsys.readouterr().err


@pytest.mark.slow
def test_the_installed_command_helps(command: Path, tmp_path: Path) -> None:
    """Slow: a wheel, and an environment of its own."""
    shown = run(command, tmp_path, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Train one model" in shown.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_compiled_loops(command: Path, tmp_path: Path) -> None:
    """Slow: a wheel, and an environment of its own."""
    shown = subprocess.run(
        [str(command.with_name("python")), "-c", "from dpfest import kernels; print(kernels.library is not None)"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.strip() == str(shutil.which("cc") is not None)


@pytest.mark.slow
def test_the_installed_command_trains_from_another_folder(command: Path, tmp_path: Path) -> None:
    """Slow: a wheel, and an environment of its own."""
    line = ["profile=smoke", "data=criteo_synthetic", "algorithm=nonprivate"]
    ended = run(command, tmp_path, "train", *line)
    assert ended.returncode == 0, ended.stderr
    assert "criteo_synthetic nonprivate: AUC" in ended.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"data", "runs"}
    assert len(list(tmp_path.glob("runs/criteo_synthetic/nonprivate/*/release/summary.json"))) == 1
    reported = run(command, tmp_path, "report", "profile=smoke")
    assert reported.returncode == 0, reported.stderr
    assert (tmp_path / "report" / "report.json").exists()
