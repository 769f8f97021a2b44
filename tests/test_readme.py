"""README.md and the pages it leads to: commands run, examples learn, links resolve, paths exist.

A `console` block holds commands that are run, at smoke size; a `sh` block those whose data are not at hand, of which
the configuration is composed and checked.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipelines.runs.cards import card_files, read_cards
from reports import beside
from reports.algorithms import label
from reports.comparison import populations
from reports.reading import load_runs
from reports.readme import CLAIMS, DIGEST, RESULTS, Results, digest, split
from tests.cli.conftest import run_here, write_own_parts

HOME = Path(__file__).resolve().parents[1]
README = HOME / "README.md"
PAGES = [README, HOME / "ARCHITECTURE.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))]
WHOLE = ("OWN_TABLE.md",)
"""Pages that a test of their own follows from the first command to the last."""


def blocks(page: Path, kind: str) -> list[str]:
    """The text of each fenced block of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def lines(kind: str) -> list[str]:
    """Every line of the blocks of a kind on all pages, once."""
    pages = [page for page in PAGES if page.name not in WHOLE]
    return list(dict.fromkeys(line for page in pages for block in blocks(page, kind) for line in block.splitlines()))


RUN = [line for line in lines("console") if line.startswith("dpfest ")]
FIRST = "dpfest train algorithm=fest"
QUICK = (FIRST, "dpfest report --list")
COMPOSED = lines("sh")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands: they share datasets and calibrations, as a user's would."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize(
    "line", [line if line in QUICK else pytest.param(line, marks=pytest.mark.documents) for line in RUN]
)
def test_command(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """At smoke size: a command must work; what it finds takes hours elsewhere. Documents: two minutes for all."""
    # The flights have no smoke size of their own: a stream of fewer slices, each of which reads them all.
    fewer = ["data.days=6", "stream.train_days=5"] if "data=nycflights_stream" in line else []
    fewer += ["bench.seconds=0.01"] if line.startswith("dpfest bench") else []
    # Bounds at 95% confidence: with a drawn key, a sound engine would seem refuted once in a while.
    fewer += ["privacy.noise_seed=0"] if line == "dpfest audit" else []
    ended = run_here(folder, monkeypatch, capfd, [*shlex.split(line)[1:], "profile=smoke", *fewer])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


@pytest.mark.parametrize("line", COMPOSED)
def test_command_whose_data_are_elsewhere(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration composes, every key exists, every value has its type."""
    from cli.examples import EXAMPLES
    from pipelines.config.code import named_code
    from pipelines.config.compose import Composer
    from pipelines.config.settings import typed

    program, *words = shlex.split(line, comments=True)
    if program == "make":
        assert subprocess.run(["make", "-n", *words], cwd=HOME, capture_output=True).returncode == 0
        return
    if program == "python":
        assert subprocess.run([sys.executable, *words[:2], "--help"], cwd=HOME, capture_output=True).returncode == 0
        return
    assert program == "dpfest" and words[0] in EXAMPLES
    overrides = [word for word in words[1:] if "=" in word and not word.startswith(("-", "hydra"))]
    if ".py:" in line:
        write_own_parts(tmp_path)
        monkeypatch.chdir(tmp_path)
    for _, cfg in Composer(None).expand(named_code(overrides)):
        typed(cfg)


def test_every_line_of_a_console_block_is_a_command_that_is_run() -> None:
    assert len(RUN) >= 10 and set(QUICK) < set(RUN)
    assert [line for line in lines("console") if line not in RUN] == ["make reproduce", "make test"]


def test_the_readme_fits_on_three_screens() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("target", ["reproduce", "estimate", "test", "lint", "setup", "clean", "help"])
def test_make_target(target: str) -> None:
    assert subprocess.run(["make", "-n", target], cwd=HOME, capture_output=True).returncode == 0


@pytest.mark.documents
def test_library_example(folder: Path) -> None:
    """Documents (trains for twenty seconds).

    Plain PyTorch, a model that is not pCTR, 20 lines; it learns, at the epsilon that it was asked.

    The data are those of one seed, the noise is fresh: over 16 runs the losses are 0.71 ± 0.02, 0.601 ± 0.007 (at least
    0.017 above the last) and 0.577 ± 0.002. The loss of a coin is 0.69.
    """
    (code,) = blocks(README, "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    (folder / "example.py").write_text(f"import torch\n\ntorch.manual_seed(0)\n{code}")
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    ended = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    printed = re.findall(r"held-out loss ([\d.]+) epsilon ([\d.]+) rows \[(\d+)\]", ended.stdout)
    losses, epsilons, rows = ([float(value) for value in column] for column in zip(*printed, strict=True))
    assert len(printed) == 3 and losses[2] < losses[1] < losses[0] and losses[2] < 0.6
    assert epsilons == sorted(epsilons) and 2.9 < epsilons[-1] <= 3.0
    assert max(rows) < 1_000  # of 100,000


def anchors(page: Path) -> set[str]:
    """The anchor of each heading, as GitHub makes it."""
    headings = re.findall(r"^##* (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if not target.startswith("http"):
            there = page.parent / file if file else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


def test_readme_leads_to_every_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f"({page.relative_to(HOME)})" not in text] == []


def test_every_path_of_the_file_tree_exists() -> None:
    (tree,) = [text for text in blocks(HOME / "ARCHITECTURE.md", "text") if text.startswith("dpfest/")]
    folder = HOME
    for line in tree.splitlines():
        name = line.split()[0]
        folder = folder if line.startswith(" ") else HOME / name
        path = folder / name if line.startswith(" ") else folder
        assert path.exists() and name.endswith("/") == path.is_dir(), line
        assert len(line.split()) > 1, f"{name} lacks its words"


REFERENCE = HOME / "docs" / "reference"
CARDS = pytest.mark.skipif(not card_files(REFERENCE), reason="docs/reference holds no run cards yet")


def test_what_the_first_command_prints_is_what_other_seeds_found() -> None:
    """Its own run takes a minute: within four standard deviations over the seeds of its reference runs."""
    (said,) = [text for text in blocks(README, "text") if text.startswith("journey fest: AUC ")]
    auc, reduction = re.findall(r"AUC ([\d.]+) on test .* gradient ([\d.]+) times smaller", said)[0]
    cards, _ = read_cards(REFERENCE / "journey.jsonl.xz")
    alike = [card.summary for card in cards if _is_first(card.config)]
    scores = [summary["utility"]["value"] for summary in alike]
    assert len(scores) >= 5
    assert abs(float(auc) - statistics.mean(scores)) < 4 * statistics.stdev(scores)
    assert float(reduction) == pytest.approx(statistics.mean(s["embedding_gradient"]["reduction"] for s in alike), 0.01)
    of_journey = [one for one in beside._controls() if one["data"] == "journey"]
    controls = {one["algorithm"]: one["test"] for one in of_journey if one["question"].get("epsilon", 1.0) == 1.0}
    words = ", ".join(f"{label(name)} {controls[name]:.4f}" for name in beside.CONTROLS)
    assert f"\n  beside it: {words} (dpfest's own runs)\n" in said


def _is_first(config: Mapping[str, Any]) -> bool:
    """Whether a run of journey has the settings of FIRST, but for its seed."""
    algorithm, privacy = config["algorithm"], config["privacy"]
    selection = algorithm.get("selection") or {}
    wanted = {"rows": 10_000, "split": "joint", "noise_multiplier": 20.0}
    return (
        (algorithm["name"], algorithm.get("clipping_norm"), privacy["epsilon"]) == ("fest", 1.0, 1.0)
        and {name: selection.get(name) for name in wanted} == wanted
        and not algorithm.get("bands")
    )


def test_a_row_of_the_results_is_that_of_its_cards() -> None:
    """The smallest data set: DP-SGD's setting that is best on validation, at each epsilon."""
    inside = (HOME / RESULTS).read_text(encoding="utf-8")
    (group,) = populations(load_runs(REFERENCE / "sst2.jsonl.xz")[0])
    for epsilon in group.epsilons:
        best = max(
            (setting for setting in group.settings if (setting.algorithm, setting.epsilon) == ("dpsgd", epsilon)),
            key=lambda setting: setting.validation,
        )
        scores = [run.test for run in best.runs]
        said = f"{statistics.mean(scores):.4f} ± {statistics.stdev(scores):.4f}"
        (row,) = re.findall(rf"^\| sst2 \| {epsilon:g} \| [\d,]+ \| [\d,]+ \| — \| (.+?) \|", inside, flags=re.M)
        assert row == said


@pytest.mark.documents
@CARDS
def test_results_are_those_of_the_reference() -> None:
    """Documents (judges all run cards).

    Every number of README's results is what the run cards say; `make readme` writes them.
    """
    _, inside, _ = split(README.read_text(encoding="utf-8"))
    results = Results.read(REFERENCE)
    assert inside == results.text
    assert beside.FILE.read_text(encoding="utf-8") == results.controls
    costs = REFERENCE / "costs.json"  # computed where they are asked for, and told by docs/FINDINGS.md's test
    assert json.loads(costs.read_text(encoding="utf-8")) == json.loads(results.costs)


@pytest.mark.documents
@CARDS
def test_claims_are_those_of_the_reference() -> None:
    """Documents (judges all run cards).

    Every verdict and its evidence in docs/CLAIMS.md, and every number in docs/RESULTS.md, follow from the run cards;
    `make readme` writes them.
    """
    results = Results.read(REFERENCE)
    assert (HOME / CLAIMS).read_text(encoding="utf-8") == results.claims
    assert (HOME / RESULTS).read_text(encoding="utf-8") == results.results


@pytest.mark.documents
@CARDS
def test_the_pictures_are_of_the_reference() -> None:
    """Documents (reads all run cards).

    Pixels differ between versions of matplotlib; the values that they show are in the pictures as a digest.
    """
    for file, (_, values, _) in Results.read(REFERENCE).pictures.items():
        assert Image.open(HOME / file).text.get(DIGEST) == digest(values)  # type: ignore[attr-defined]


@pytest.mark.documents
@CARDS
def test_the_reference_is_small_and_says_what_made_it() -> None:
    """Documents: reads all run cards."""
    files = card_files(REFERENCE)
    assert sum(path.stat().st_size for path in files) <= 5e6
    for path in files:
        cards, damaged = read_cards(path)
        assert cards and damaged == []
        assert all(card.maker.commit and "+" not in card.maker.commit for card in cards)


def test_no_result_stands_outside_of_the_results() -> None:
    """A utility (0.7114) or a reduction (68,500-fold, 3.9×) is told between the two lines alone."""
    before, _, after = split(README.read_text(encoding="utf-8"))
    prose = re.sub(r"```.*?```", "", before + after, flags=re.S)
    assert re.findall(r"\b0\.\d{3,}|[\d,.]+(?:-fold|×)", prose) == []
