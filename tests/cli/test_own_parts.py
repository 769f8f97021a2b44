"""A table, a model and a rule of one's own at the prompt, as docs/OWN.md says: in every command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command, write_own_parts

SMOKE = ("profile=smoke", "data=names", "data.rows=3000", "device=cpu")


@pytest.fixture
def own(tmp_path: Path, prepared: Path, calibrations: Path) -> tuple[str, ...]:
    """The files that the document shows, in the folder of the command; where its data are."""
    write_own_parts(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".calibration").symlink_to(calibrations)
    return (*SMOKE, f"paths.data={prepared}")


@pytest.mark.slow
@pytest.mark.long("starts a process for each run of a sweep, and builds a report")
def test_they_run_in_every_command(dpfest_here: Command, own: tuple[str, ...], tmp_path: Path) -> None:
    for command in ("sweep", "train"):  # the second finds what the first has made
        rule = ["algorithm=rules.py:EveryOther", "algorithm.nth=3", "model=models.py:TwoTower", "model.options.width=8"]
        ended = dpfest_here(command, *own, *rule)
        assert ended.returncode == 0, ended.stderr
    assert "done before: names EveryOther" in ended.stdout
    ended = dpfest_here("sweep", *own, "algorithm=every_other,fest", "model=two_tower")
    assert ended.returncode == 0 and "2 runs (1 every_other, 1 fest): 0 done, 2 to do." in ended.stdout
    ended = dpfest_here("budget", *own, "budget.examples=50000", "algorithm=every_other")
    assert ended.returncode == 0 and re.search(r"algorithm +every_other", ended.stdout)
    ended = dpfest_here(
        "release",
        *(str(path) for path in (tmp_path / "runs").glob("names/*/*")),
        "--cards",
        "c.jsonl",
        "--made-by",
        "a test",
    )
    assert ended.returncode == 0, ended.stderr
    ended = dpfest_here("report", "profile=smoke", "paths.runs=c.jsonl", "--only", "fig8")
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "every_other" in page and "algorithm.nth=3" in page and "algorithm.code" not in page.split("<pre")[0]
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/*/*/release/summary.json")]
    assert sorted((one["model"], one["algorithm"]) for one in summaries) == [
        ("module", "EveryOther"), ("two_tower", "every_other"), ("two_tower", "fest"),
    ]  # fmt: skip


def test_rules_of_ones_own_and_the_librarys_are_audited_together(
    dpfest_here: Command, own: tuple[str, ...], tmp_path: Path
) -> None:
    quick = ("audit", "audit.draws=1000", "audit.canaries=0", "privacy.noise_seed=0")
    ended = dpfest_here(*quick, "algorithm=every_other,frozen")
    assert ended.returncode == 0, ended.stderr
    audits = json.loads((tmp_path / "report" / "audit" / "audit.json").read_text())["audits"]
    assert [one["algorithm"] for one in audits] == ["frozen", "every_other"]


def test_what_cannot_be_trained_is_one_sentence(dpfest_here: Command, own: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "models.py"
    path.write_text(path.read_text().replace("nn.ReLU()", "nn.BatchNorm1d(width)"))
    ended = dpfest_here("train", *own, "algorithm=fest", "model=two_tower")
    layers = r"(\n- The layer .*BatchNorm1d.*){2}"
    said = rf"error: model\.target=models\.py:TwoTower: 2 things keep this from being trained privately:{layers}"
    assert ended.returncode == 2 and re.search(said, ended.stderr)
    assert not (tmp_path / "runs" / ".selections").exists()


@pytest.fixture
def visits(own: tuple[str, ...], tmp_path: Path) -> None:
    """The log and the table of products that the document's class reads."""
    lines = [
        {"bought": i % 3 == 0, "visitor": f"v{i % 40}", "product": f"p{i % 25}", "price": i * 0.1} for i in range(400)
    ]
    (tmp_path / "visits.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "products.csv").write_text("product,kind\n" + "".join(f"p{i},k{i % 5}\n" for i in range(20)))


QUICK = ("train.steps=2", "train.batch_size=32", "device=cpu")
TYPED = (
    "data=rows.py:Visits", "data.options.path=visits.jsonl", "data.options.products=products.csv", "data.label=bought",
    "data.categorical={visitor: 8192, product: 4096, kind: 64}", "data.numeric={price: log1p}", "data.unit=[visitor]",
)  # fmt: skip


@pytest.mark.long("nine commands, one of which builds a report")
@pytest.mark.usefixtures("visits", "no_reference")
def test_a_table_of_ones_own_runs_in_every_command(dpfest_here: Command, tmp_path: Path) -> None:
    for line in (TYPED, ("data=visits",)):
        made = dpfest_here("preprocess", *line)
        assert made.returncode == 0 and "(made): " in made.stderr
    typed, named = (json.loads(path.read_text())["splits"] for path in tmp_path.glob("data/*isits-*/dataset.json"))
    assert typed == named
    card = dpfest_here("card", "data=visits")
    assert card.stdout.startswith("visits: 400 rows") and re.search(r"\nkind +64 +6 ", card.stdout), "5 and a blank"
    asked = ("data=visits", *QUICK, "algorithm=fest")
    for command in ("select", "train", "budget"):
        ended = dpfest_here(command, *asked)
        assert ended.returncode == 0, ended.stderr
    assert dpfest_here("train", *asked).stdout.startswith("done before: visits fest")
    runs = [str(path) for path in tmp_path.glob("runs/visits/*/*")]
    packed = dpfest_here("release", *runs, "--cards", "c.jsonl", "--made-by", "a test")
    assert packed.returncode == 0 and len(runs) == 1, packed.stderr
    assert '"rows.py:Visits"' in (tmp_path / "c.jsonl").read_text()
    (tmp_path / "rows.py").unlink()  # reports run no code
    report = dpfest_here("report", "profile=smoke", "paths.runs=c.jsonl", "--only", "fig8")
    assert report.returncode == 0, report.stderr


@pytest.mark.slow
@pytest.mark.long("starts a process for each run of a sweep")
@pytest.mark.usefixtures("visits")
def test_a_table_of_ones_own_is_swept(dpfest_here: Command, tmp_path: Path) -> None:
    swept = dpfest_here("sweep", "data=visits", *QUICK, "algorithm=dpsgd,fest")
    assert swept.returncode == 0 and "2 runs (1 dpsgd, 1 fest): 0 done, 2 to do." in swept.stdout, swept.stderr
    assert len(list(tmp_path.glob("runs/visits/*/*/release/summary.json"))) == 2


@pytest.mark.usefixtures("visits")
def test_a_table_with_a_wrong_value_is_one_sentence_with_its_frame_and_row(
    dpfest_here: Command, tmp_path: Path
) -> None:
    path = tmp_path / "rows.py"
    path.write_text(path.read_text().replace("100_000", "150").replace("pl.Boolean", "pl.Int64"))
    log = (tmp_path / "visits.jsonl").read_text().splitlines(keepends=True)
    log[151] = log[151].replace("false", "7").replace("true", "7")
    (tmp_path / "visits.jsonl").write_text("".join(log).replace("true", "1").replace("false", "0"))
    ended = dpfest_here("train", "data=visits", *QUICK)
    assert ended.returncode == 2 and ended.stderr.count("error: ") == 1
    assert "error: frame 2 of rows.py:Visits, row 2: bought is 7, but a label is 0 or 1" in ended.stderr
    assert not list(tmp_path.glob("data/*"))
