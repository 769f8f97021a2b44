"""A table whose rows a class yields: those of data=table, what identifies them, when they change, every refusal."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfest.errors import UserError
from pipelines.config.code import named_code
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.clicks.own_table import OwnTableConfig
from pipelines.data.clicks.table import TableConfig
from pipelines.data.dataset import Dataset
from pipelines.data.identity import data_hash
from pipelines.data.units import identifiers
from pipelines.preprocess import preprocess
from pipelines.runs.release import checked
from pipelines.sweep import _PRELOADED
from pipelines.system.processes import Child
from pipelines.train import make_run
from tests.pipelines.data.clicks.test_table import CONFIG, clicks, written
from tests.pipelines.data.criteo_text import run, settings

ROWS = """
from pathlib import Path

import polars as pl


class Rows:
    def __init__(self, path, size=70):
        self.path, self.size = path, size

    def files(self):
        return [self.path]

    def frames(self):
        frame = pl.read_parquet(self.path)
        for start in range(0, len(frame), self.size):
            yield frame[start : start + self.size]
"""
COLUMNS = {name: getattr(CONFIG, name) for name in ("label", "categorical", "numeric", "unit")}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, clicks())
    Path("rows.py").write_text(ROWS)
    return tmp_path


def own(**changes: Any) -> OwnTableConfig:
    options = {"path": "clicks.parquet", **changes.pop("options", {})}
    return OwnTableConfig(**{"target": "rows.py:Rows", "options": options, **COLUMNS, **changes})


def change(old: str, new: str) -> None:
    text = Path("rows.py").read_text()
    assert text.count(old) == 1
    Path("rows.py").write_text(text.replace(old, new))


def refused(config: OwnTableConfig) -> str:
    """The sentence with which data are refused; nothing is kept."""
    with pytest.raises(UserError) as raised:
        run(config, Path("refused"))
    assert not list(Path("refused").glob("*")) and "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.usefixtures("here")
def test_its_rows_are_those_of_a_table_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.data.clicks.table_frames.FRAME_ROWS", 33)
    table = Dataset.open(run(TableConfig(path="clicks.parquet", **COLUMNS), Path("data"))).description
    change("for start", "yield frame.clear()\n        for start")
    for size in (1000, 70):
        config = own(options={"size": size})
        made = Dataset.open(run(config, Path("data")))
        for part in ("name", "sources", "made_with"):
            made.description.pop(part), table.pop(part, None)
        assert made.description == table
    assert config.name == "Rows" and made.folder.name == f"Rows-{data_hash(config)}"


@pytest.mark.usefixtures("here")
def test_code_options_and_files_identify_the_data_and_the_place_of_the_code_does_not() -> None:
    known = {data_hash(own())}
    assert data_hash(own()) in known

    def is_other(config: OwnTableConfig) -> bool:
        found = data_hash(config)
        other = found not in known
        known.add(found)
        return other

    Path("parts").mkdir()
    Path("parts/rows.py").write_text(ROWS)
    assert not is_other(own(target="parts/rows.py:Rows"))
    assert is_other(own(options={"size": 71})) and is_other(own(name="mine")) and is_other(own(label="rating > 3"))
    Path("copy.parquet").write_bytes(Path("clicks.parquet").read_bytes())
    assert is_other(own(options={"path": "copy.parquet"})), "what a class makes of a name is its own affair"
    before = own()
    written(Path(), clicks(599))
    assert is_other(own())
    Path("rows.py").write_text(ROWS + "\n")
    assert is_other(own())
    with pytest.raises(UserError, match=r"data\.target=rows\.py:Rows is no longer the code that the settings name"):
        data_hash(before)  # as of a sweep whose code changes, or of a released config.yaml


@pytest.mark.usefixtures("here")
def test_what_changes_under_way_leaves_nothing() -> None:
    change("yield", 'Path("rows.py").open("a").write("\\n")\n            yield')
    assert "is no longer the code that the settings name" in refused(own())
    Path("rows.py").write_text(ROWS)
    change("yield", "frame.head(70).write_parquet(self.path)\n            yield")
    assert re.search("The source of refused/Rows-.* changed while it was read", refused(own()))


@pytest.mark.usefixtures("here")
def test_other_rows_at_a_second_reading_are_refused() -> None:
    drawn = "frame = pl.read_parquet(self.path).sample(fraction=1.0, shuffle=True)"
    change("frame = pl.read_parquet(self.path)", drawn)
    assert "data.target yields other rows, or in another order, when it is read again" in refused(own())
    later = (
        "frame = pl.read_parquet(self.path); frame = frame[:70].vstack(frame[70:].sample(fraction=1.0, shuffle=True))"
    )
    change(drawn, later)  # beyond the first frame, which is read twice
    vocabulary = dataclasses.replace(CONFIG.vocabulary, policy="all")
    assert "data.target yields other rows, or in another order, when it is read again" in refused(
        own(vocabulary=vocabulary)
    )
    unit = settings(own(), Path("data"))
    folder = preprocess(unit)  # read once: no order is wrong
    unit.privacy.unit = "household_id"
    with pytest.raises(UserError, match=r"The source of data/Rows-.* has other rows now than were written"):
        preprocess(unit)
    assert not list(folder.glob("train.*.npy"))


@pytest.mark.usefixtures("here")
def test_units_are_those_of_a_table() -> None:
    found = []
    for config in (TableConfig(path="clicks.parquet", **COLUMNS), own()):
        asked = settings(config, Path("data"))
        asked.privacy.unit = "household_id"
        found.append(identifiers([Dataset.open(preprocess(asked))], "household_id")[0].tolist())
    assert found[0] == found[1] and len(found[0]) > 400


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("class Rows:", "class Row:", "data.target=rows.py:Rows: the module rows.py has no Rows."),
        ("class Rows:", "Rows = 3\nclass Row:", "data.target=rows.py:Rows is no class."),
        ("import polars", "import polarz", "the module rows.py cannot be imported (ModuleNotFoundError: No module"),
        ("def frames", "def frame", "has no method frames(), which yields the rows as polars DataFrames."),
        ("def files", "def file", "has no method files(), which returns the paths of all files that these are made"),
        ("size=70", "size", "Rows(**{'path': 'clicks.parquet'}) fails (TypeError: "),
        ("return [self.path]", "return self.path", "files() must return a list of paths, those of all that frames()"),
        ("return [self.path]", "return [1]", "files() must return a list of paths, those of all that frames() reads"),
        ("return [self.path]", "return ['no.csv']", "The data file no.csv cannot be read: No such file or directory."),
        ("return [self.path]", "return ['.']", "The data file . cannot be read: Is a directory."),
        ("return [self.path]", "return [self.paht]", "files() fails (AttributeError: 'Rows' object has no attribute"),
        ("for start", "return\n        for start", "frames() yields no row."),
        ("yield frame[start : start + self.size]", "yield frame.clear()", "frames() yields no row."),
        ("yield frame[start : start + self.size]", "pass", "frames() fails (TypeError: 'NoneType' object is"),
        ("frame[start : start + self.size]", "frame.lazy()", "frame 1 is a LazyFrame, and frames() must yield"),
        ("yield frame[start : start + self.size]", "yield frame['item']", "frame 1 is a Series, and"),
        ("self.size)", "0)", "frames(), asked for frame 1, fails (ValueError: range() arg 3 must not be zero)."),
        (
            "frame[start : start + self.size]",
            "frame[start : start + 70].drop(['user'] if start == 140 else [])",
            "frame 3 of rows.py:Rows has no column user, which data.categorical names; it has clicked, item,",
        ),
        (
            "frame[start : start + self.size]",
            "frame[start : start + 70].cast({'item': pl.String if start else pl.Int8})",
            "frame 2 of rows.py:Rows: the column item is of type String, but in frame 1 of rows.py:Rows of type Int8: "
            "write all with one type.",
        ),
        (
            "frame[start : start + self.size]",
            "frame.with_columns(price=pl.when(pl.arange(600) == 77).then(float('inf')).otherwise('price'))",
            "frame 1 of rows.py:Rows, row 78: price is inf, too large a number",
        ),
        ("pl.read_parquet(self.path)", "pl.read_parquet(self.path).cast({'item': pl.Float32})",
         "frame 1 of rows.py:Rows: the column item holds Float32, and data.categorical takes text, a whole number,"),
        ("pl.read_parquet(self.path)", "pl.read_parquet(self.path).select('nope')",
         "frames(), asked for frame 1, fails (ColumnNotFoundError: "),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused_in_a_sentence(
    old: str, new: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.data.clicks.table_frames.FRAME_ROWS", 33)
    change(old, new)
    assert said in refused(own())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["data=other.py:Rows"], r"data\.target=other\.py:Rows: other\.py cannot be read \(No such file"),
        (["data=other:Rows"], r"data\.target=other:Rows: the module other cannot be imported"),
        (["data=module"], r"data\.target must be set"),
        (["data=rows.py:Rows", "data.path=clicks.parquet"], r"there is no key data\.path; .* data\.options"),
        (["data=rows.py:Rows", "data.day=joined"], r"there is no key data\.day;"),
        (["data=rows.py:Rows", "data.name=journey"], r"data\.name=journey is the name of other data"),
        (
            ["data=rows.py:Rows", "data.options.place=/home/x/y.csv"],
            r"data\.options holds /home/x/y\.csv, a path",
        ),
        (["data=rows.py:Rows", "data.options.path=[/home/x/y.csv]"], r"or call the option path: of that, the last nam"),
        (["data=rows.py:Rows", "data.lable=x"], r"there is no key data\.lable; did you mean data\.label\?"),
        (["data=rows.py:Rows,journey"], r"there is no data=rows\.py:Rows"),
        (["data=rows.py:Rows", "model=roberta"], r"model=roberta cannot be trained on data=Rows"),
        (["data=rows.py:journey"], r"data\.name=journey is the name of other data: give yours another"),
    ],
)
def test_settings_that_name_no_table_are_refused(line: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        for _, cfg in Composer().expand(named_code([*line, "data.label=clicked"])):
            typed(cfg)


def config(here: Path, runs_in: Callable[[Path], Path], *more: str) -> Config:
    line = ["data=rows.py:Rows", f"data.options.path={here}/clicks.parquet", "data.label=clicked",
            "data.categorical={user: 64, item: 100}", "data.unit=[household_id]"]  # fmt: skip
    quick = ["train.steps=2", "train.batch_size=32", "model.hidden=[8]", "device=cpu"]
    paths = [f"paths.data={here}/data", f"paths.runs={runs_in(here / 'runs')}"]
    return typed(Composer().compose(named_code([*line, *quick, *paths, *more])))


@pytest.mark.usefixtures("here")
def test_settings_of_somebody_else_neither_run_code_nor_look_for_it() -> None:
    line = ["data=rows:Rows", "data.options.path=x", "data.label=clicked"]
    settings = typed(Composer().compose(named_code(line))).to_dict()
    Path("rows.py").unlink()
    assert typed(settings, run_code=False).data.name == "Rows"
    settings["data"]["code"] = None
    with pytest.raises(UserError, match=r"data\.target names code, and data\.code does not say which"):
        typed(settings, run_code=False)


@pytest.mark.parametrize("more", [["algorithm=fest"], ["algorithm=adafest", "privacy.unit=household_id"]])
def test_it_trains_and_its_release_is_checked_without_running_it(
    here: Path, runs_in: Callable[[Path], Path], more: list[str]
) -> None:
    settings = config(here, runs_in, *more)
    made = make_run(settings)
    assert made.path.parts[-3] == made.summary["dataset"] == "Rows"
    released = yaml.safe_load((made.path / "release" / "config.yaml").read_text())["data"]
    assert (released["target"], released["options"], released["code"]) == (
        "rows.py:Rows", {"path": "clicks.parquet"}, settings.data.code
    )  # fmt: skip
    Path("rows.py").write_text("raise SystemExit('somebody else has written this')")
    assert checked(made.path).config["data"] == released
    with pytest.raises(UserError, match="no longer the code that the settings name"):
        make_run(settings)
    Path("rows.py").write_text(ROWS)
    assert make_run(config(here, runs_in, *more)).skipped


def _killed_within(parent: Connection, overrides: list[str]) -> None:
    preprocess(typed(Composer().compose(overrides)))


@pytest.mark.slow
def test_killed_half_way_it_leaves_no_data_and_the_same_command_makes_them(here: Path) -> None:
    change("yield", "if start and Path('armed').exists():\n                os.kill(os.getpid(), 9)\n            yield")
    change("import polars", "import os\nimport polars")
    named = ["data=module", "data.target=rows.py:Rows", "+data.options.path=clicks.parquet", "data.label=clicked",
             "data.categorical={user: 64}"]  # fmt: skip
    Path("armed").touch()
    child = Child(_killed_within, named, preload=_PRELOADED)
    child.join()
    assert child.failure == "was killed (out of memory?)" and not list(here.glob("data/*/dataset.json"))
    Path("armed").unlink()
    made = Dataset.open(preprocess(typed(Composer().compose(named))))
    made.verify(anew=True)
    assert sum(made.rows.values()) == 600
    (sources,) = [json.loads((made.folder / "dataset.json").read_text())["sources"]]
    assert [sorted(one) for one in sources] == [["bytes", "path", "sha256"], ["rows", "sha256"]]
