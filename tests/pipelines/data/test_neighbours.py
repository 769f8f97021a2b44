"""One line of the source more or less moves no other line: not its split, not its day, not a byte of its record.

The guarantee is for data that differ in one line. Were another line to change its split or its features with it, the
difference would be several examples.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipelines.data.clicks import names, nycflights, synthetic
from pipelines.data.clicks.criteo import CriteoKaggleConfig
from pipelines.data.clicks.criteo_days import Criteo1TBConfig
from pipelines.data.clicks.journey import JourneyConfig, JourneyStreamConfig
from pipelines.data.clicks.names import NamesConfig, NamesStreamConfig
from pipelines.data.clicks.nycflights import FLIGHTS, NycflightsConfig, NycflightsStreamConfig
from pipelines.data.clicks.packaged import Package
from pipelines.data.clicks.promotions import PROMOTED, PROMOTIONS, PromotionsConfig, PromotionsStreamConfig
from pipelines.data.clicks.promotions import kept as kept_promotions
from pipelines.data.clicks.synthetic import CriteoSyntheticConfig, CriteoSyntheticStreamConfig
from pipelines.data.clicks.table import TableConfig
from pipelines.data.dataset import Dataset
from pipelines.data.stream import Stream
from pipelines.data.text.glue import OfficialConfig, QnliConfig, Sst2Config
from pipelines.data.text.synthetic import TextSyntheticConfig
from tests.pipelines.data.conftest import ReadFlights
from tests.pipelines.data.criteo_text import run, some_lines

Placed = Counter[tuple[str, str, bytes]]
"""How often each record lies in each split of each day."""

REMOVED = {"the first": 0, "one in the middle": 140, "the last": -1, "one of two that are equal": 150}
pytestmark = pytest.mark.parametrize("which", REMOVED)


def placed(folder: Path) -> Placed:
    days = Stream.open(folder).days if (folder / "stream.json").exists() else [Dataset.open(folder)]
    found: Placed = Counter()
    for number, day in enumerate(days):
        size = day.description["record"]["bytes"]
        for split, rows in day.rows.items():
            content = (day.folder / f"{split}.rows").read_bytes()
            found.update((f"day {number}", split, content[row * size : (row + 1) * size]) for row in range(rows))
    return found


def assert_one_record_is_gone(whole: Placed, less: Placed) -> None:
    assert len({(day, split) for day, split, _ in whole}) > 1, "with one place alone nothing could move"
    assert not less - whole, f"{(less - whole).total()} other records changed or moved"
    assert (whole - less).total() == 1


def twice(lines: Sequence[Any]) -> list[Any]:
    """The lines, of which numbers 7 and 150 are equal."""
    return [*lines[:150], lines[7], *lines[150:]]


def without(lines: Sequence[Any], which: str) -> list[Any]:
    number = REMOVED[which] % len(lines)
    return [*lines[:number], *lines[number + 1 :]]


MADE: dict[str, Placed] = {}


def whole(key: Any, make: Callable[[], Placed]) -> Placed:
    """The records of all lines: made once, whichever line is then removed."""
    if str(key) not in MADE:
        MADE[str(key)] = make()
    return MADE[str(key)]


def compare(
    key: Any, make: Callable[[Path, Sequence[bytes]], Path], lines: Sequence[bytes], which: str, folder: Path
) -> None:
    """``make`` writes lines into a folder and preprocesses them."""

    def of(name: str, content: Sequence[bytes]) -> Placed:
        (folder / name).mkdir()
        return placed(make(folder / name, content))

    assert_one_record_is_gone(whole(key, lambda: of("whole", lines)), of("less", without(lines, which)))


def test_of_criteo_kaggle(tmp_path: Path, which: str) -> None:
    def make(folder: Path, lines: Sequence[bytes]) -> Path:
        (folder / "train.txt").write_bytes(b"\n".join([*lines, b""]))
        return run(CriteoKaggleConfig(path=str(folder / "train.txt")), folder / "data")

    compare("kaggle", make, twice(some_lines(300)), which, tmp_path)


def test_of_criteo_1tb(tmp_path: Path, which: str) -> None:
    def make(folder: Path, lines: Sequence[bytes]) -> Path:
        for day, content in enumerate((some_lines(250)[50:], lines)):
            (folder / f"day_{day}.tsv").write_bytes(b"\n".join([*content, b""]))
        return run(Criteo1TBConfig(path=str(folder), days=2), folder / "data")

    compare("1tb", make, twice(some_lines(300)), which, tmp_path)


@pytest.mark.parametrize(
    "config", [CriteoSyntheticConfig(rows=600, days=2), CriteoSyntheticStreamConfig(days=2, rows_per_day=300)]
)
def test_of_generated_clicks(tmp_path: Path, which: str, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write = synthetic.write_criteo_files

    def of(change: Callable[[list[bytes]], list[bytes]]) -> Placed:
        def written(*arguments: Any) -> list[Path]:
            paths = write(*arguments)
            first = next((path for path in paths if path.name == "day_0.txt"), None)
            if first is not None:
                first.write_bytes(b"".join(change(twice(first.read_bytes().splitlines(keepends=True)))))
            return paths

        monkeypatch.setattr(synthetic, "write_criteo_files", written)
        return placed(run(config, tmp_path / str(change)))

    assert_one_record_is_gone(whole(config, lambda: of(list)), of(lambda lines: without(lines, which)))


@pytest.mark.parametrize("config", [NycflightsConfig(), NycflightsStreamConfig(days=6)])
def test_of_the_flights(
    tmp_path: Path, which: str, config: Any, monkeypatch: pytest.MonkeyPatch, read_flights: ReadFlights
) -> None:
    """Every sixtieth flight, whole days of the busiest route among them, so that flights share hours and aircraft."""

    def of(change: Callable[[list[int]], list[int]], name: str) -> Placed:
        def changed(self: Package, file: str) -> pl.DataFrame:
            table = read_flights(self, file)
            if file != FLIGHTS:
                return table
            some = pl.int_range(pl.len()) % 60 == 0
            busy = (pl.col("dest") == "ATL") & (pl.col("day") == 5) | (pl.col("tailnum") == "N725MQ")
            kept = table.filter((some | busy) & pl.col("arr_delay").is_not_null())
            return kept[change(twice(range(kept.height)))]

        monkeypatch.setattr(Package, "read", changed)
        nycflights._in_order_of_departure.cache_clear()
        try:
            return placed(run(config, tmp_path / name))
        finally:
            nycflights._in_order_of_departure.cache_clear()

    assert_one_record_is_gone(whole(config, lambda: of(list, "whole")), of(lambda rows: without(rows, which), "less"))


@pytest.mark.parametrize("config", [NamesConfig(rows=300), NamesStreamConfig(rows=300, days=2)])
def test_of_names(tmp_path: Path, which: str, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(change: Callable[[list[int]], list[int]], name: str) -> Placed:
        people = np.array(change(twice(range(300))), np.uint64)
        monkeypatch.setattr(names, "people", lambda start, stop: people)
        return placed(run(config, tmp_path / name))

    assert_one_record_is_gone(whole(config, lambda: of(list, "whole")), of(lambda rows: without(rows, which), "less"))


@pytest.mark.parametrize("config", [JourneyConfig(), JourneyStreamConfig(days=3)])
def test_of_receipts(tmp_path: Path, which: str, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of some whole baskets, all weeks among them."""
    read = Package.read

    def of(change: Callable[[list[int]], list[int]], name: str) -> Placed:
        def changed(self: Package, file: str, columns: list[str] | None = None) -> pl.DataFrame:
            table = read(self, file, columns)
            kept = table.filter(pl.col("basket_id") % 3_000 == 0) if "transactions" in file else table
            return kept[change(twice(range(kept.height)))] if "transactions" in file else table

        monkeypatch.setattr(Package, "read", changed)
        return placed(run(config, tmp_path / name))

    assert_one_record_is_gone(whole(config, lambda: of(list, "whole")), of(lambda rows: without(rows, which), "less"))


@pytest.mark.parametrize("config", [PromotionsConfig(rows=10_000_000), PromotionsStreamConfig(rows=10_000_000, days=2)])
def test_of_promotions(tmp_path: Path, which: str, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promotions of two products in six weeks, of which the subset keeps about a half."""
    scan = Package.scan
    some = pl.col("product_id").is_in([880_150, 944_534])
    kept = scan(PROMOTIONS.package, PROMOTED).filter(some & (pl.col("week") % 9 == 1)).collect()
    chosen = kept_promotions(kept, config.rows)
    assert 300 < chosen.height < 0.6 * kept.height

    def of(change: Callable[[list[int]], list[int]], name: str) -> Placed:
        changed = chosen[change(twice(range(chosen.height)))]
        # What the subset leaves out is there, too.
        file = pl.concat([changed, kept.join(chosen, on=PROMOTIONS.fields, how="anti")])
        monkeypatch.setattr(
            Package, "scan", lambda self, name: file.lazy() if "promotions" in name else scan(self, name)
        )
        return placed(run(config, tmp_path / name))

    assert_one_record_is_gone(whole(config, lambda: of(list, "whole")), of(lambda rows: without(rows, which), "less"))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_of_a_table(tmp_path: Path, which: str, ending: str) -> None:
    """Of the columns' values one is numbers and a word: a type guessed from all rows would change with that row."""
    lines = [b"%d,%s,%d,%d" % (i % 3 == 0, b"word" if i == 140 else b"%03d" % i, i % 7, i // 4) for i in range(300)]
    config = TableConfig(
        label="clicked", categorical={"word": 10**6, "item": 64}, numeric={"item": "log1p"}, unit=["user"]
    )

    def make(folder: Path, lines: Sequence[bytes]) -> Path:
        path = folder / "clicks.csv"
        path.write_bytes(b"\n".join([b"clicked,word,item,user", *lines, b""]))
        if ending == "parquet":
            pl.read_csv(path, infer_schema=False).write_parquet(path := path.with_suffix(".parquet"))
        return run(dataclasses.replace(config, path=str(path)), folder / "data")

    compare(f"table {ending}", make, twice(lines), which, tmp_path)


LABELLED = [
    f"{' '.join('abc'[row // 3**place % 3] for place in range(6))}\t{row % 5 % 2}".encode() for row in range(320)
]
TEXTS, JUDGED = twice(LABELLED[:300]), LABELLED[300:]


def _sst2(folder: Path, lines: Sequence[bytes]) -> OfficialConfig:
    for name, content in (("train", lines), ("dev", JUDGED)):
        (folder / f"{name}.tsv").write_bytes(b"\n".join([b"sentence\tlabel", *content, b""]))
    return Sst2Config()


def _qnli(folder: Path, lines: Sequence[bytes]) -> OfficialConfig:
    for name, content in (("train", lines), ("dev", JUDGED)):
        pairs = [b"0\ta b\t" + line[:-1] + (b"entailment", b"not_entailment")[int(line[-1:])] for line in content]
        (folder / f"{name}.tsv").write_bytes(b"\n".join([b"index\tquestion\tsentence\tlabel", *pairs, b""]))
    return QnliConfig()


def _parquet(folder: Path, lines: Sequence[bytes]) -> OfficialConfig:
    (folder / "sst2").mkdir()
    for name, content in (("train", lines), ("validation", JUDGED)):
        texts, labels = zip(*(line.decode().split("\t") for line in content), strict=True)
        frame = pl.DataFrame({"sentence": texts, "label": list(map(int, labels))})
        frame.write_parquet(folder / "sst2" / f"{name}-00000-of-00001.parquet")
    return Sst2Config()


@pytest.mark.parametrize("write", [_sst2, _qnli, _parquet])
def test_of_texts(tmp_path: Path, which: str, write: Callable[[Path, Sequence[bytes]], OfficialConfig]) -> None:
    pytest.importorskip("tokenizers")
    from tests.pipelines.data.text.test_glue import model_folder

    def make(folder: Path, lines: Sequence[bytes]) -> Path:
        config = write(folder, lines)
        config.path, config.max_length, config.validation = str(folder), 16, 0.3
        config.tokenizer = str(model_folder(folder / "model"))
        return run(config, folder / "data")

    compare(write.__name__, make, TEXTS, which, tmp_path)


def test_of_generated_texts(tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    config = TextSyntheticConfig(rows=300, test_rows=20, vocabulary_size=300)
    files = TextSyntheticConfig.files

    def of(change: Callable[[list[bytes]], list[bytes]], name: str) -> Placed:
        def changed(self: TextSyntheticConfig, scratch: Path) -> Any:
            found = files(self, scratch)
            header, *lines = found["train"].path.read_bytes().splitlines(keepends=True)
            found["train"].path.write_bytes(b"".join([header, *change(twice(lines))]))
            return found

        monkeypatch.setattr(TextSyntheticConfig, "files", changed)
        return placed(run(config, tmp_path / name))

    assert_one_record_is_gone(whole(config, lambda: of(list, "whole")), of(lambda lines: without(lines, which), "less"))
