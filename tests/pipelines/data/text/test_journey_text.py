"""Receipts as texts: every line of the journey once, described by its product alone, split by its own content."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.data.clicks import journey as receipts
from pipelines.data.clicks.journey import JOURNEY, LINES, PROVENANCE
from pipelines.data.clicks.packaged import Package
from pipelines.data.dataset import Dataset
from pipelines.data.text.journey import DESCRIPTION, UNKNOWN, JourneyTextConfig, texts
from pipelines.preprocess import preprocess
from tests.pipelines.data.text.test_glue import model_folder

pytest.importorskip("tokenizers")


ALL_LINES = receipts.lines


def few(package: Package) -> pl.DataFrame:
    return ALL_LINES(package).head(20_000)


def split_rows(tmp_path: Path, **settings: float) -> dict[str, pl.DataFrame]:
    scratch = tmp_path / "scratch"
    scratch.mkdir(parents=True)
    JourneyTextConfig(**settings).files(scratch)  # type: ignore[arg-type]
    return {file.stem: pl.read_csv(file, separator="\t", quote_char=None) for file in scratch.iterdir()}


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_line_is_in_one_split_with_its_text_and_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Slow but for 20,000 lines: writes and reads all of them."""
    if not whole:
        monkeypatch.setattr(receipts, "lines", few)
    parts = split_rows(tmp_path)
    together = pl.concat([parts[part].select("text", "label") for part in parts])
    wanted = texts(receipts.lines(JOURNEY.package)).with_columns(pl.col("label").cast(pl.Int64))
    number = together.height
    assert number == (LINES if whole else 20_000)
    assert together.sort("text", "label").equals(wanted.sort("text", "label"))
    # Four and more standard deviations of the number of lines in a split, whose places are hashes of their content.
    assert parts["test"].height / number == pytest.approx(0.02, rel=0.02 if whole else 0.25)
    assert parts["validation"].height / number == pytest.approx(0.01, rel=0.03 if whole else 0.35)


def test_a_text_describes_the_product_and_nothing_else() -> None:
    lines = few(JOURNEY.package)
    described = texts(lines.filter(pl.col("product_type") == "RAMEN NOODLES/RAMEN CUPS")).get_column("text")
    assert set(described) <= {
        f"grocery, soup, ramen noodles/ramen cups{size}, {brand}"
        for size in ("", *(f", {size.lower()}" for size in lines.get_column("package_size").drop_nulls().unique()))
        for brand in ("national", "private")
    }
    assert described.len() > 20
    one = lines.select("product_id", text=texts(lines).get_column("text")).unique()
    assert one.get_column("product_id").is_unique().all()
    assert not {"household_id", "store_id", "sales_value"} & set(DESCRIPTION)


def test_lines_without_a_described_product_say_so() -> None:
    nothing = pl.DataFrame({name: [None, None] for name in DESCRIPTION}, schema=dict.fromkeys(DESCRIPTION, pl.String))
    rows = texts(nothing.with_columns(label=pl.Series([True, False])))
    assert rows.get_column("text").to_list() == [UNKNOWN, UNKNOWN]


def test_a_lines_split_does_not_depend_on_other_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "lines", few)
    whole = split_rows(tmp_path / "whole", validation=0.1, test=0.2)
    monkeypatch.setattr(receipts, "lines", lambda package: few(package)[1:])
    less = split_rows(tmp_path / "less", validation=0.1, test=0.2)
    assert sum(whole[part].height - less[part].height for part in whole) == 1
    assert sum(not whole[part].equals(less[part]) for part in whole) == 1


def test_the_dataset_is_one_of_texts_with_its_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(receipts, "lines", few)
    model = model_folder(tmp_path / "model")
    settings = ("data=journey_text", f"model.path={model}", "data.validation=0.1", "data.test=0.2")
    data = Dataset.open(preprocess(typed(Composer().compose([*settings, f"paths.data={tmp_path}/data"]))))
    assert sum(data.rows.values()) == 20_000 and data.rows["validation"] == pytest.approx(2_000, rel=0.1)
    split = data.description["vocabulary"]["hash"]["split"]
    assert "test, then validation, then train; content: label, household_id, store_id" in split
    assert PROVENANCE.licence in capsys.readouterr().err


@pytest.mark.parametrize("shares", [{"test": 0.0}, {"test": 0.5, "validation": 0.5}])
def test_a_split_without_test_or_training_rows_is_refused(shares: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"data\.test must be above 0, and data\.validation \+ data\.test below 1"):
        JourneyTextConfig(**shares).check()  # type: ignore[arg-type]
