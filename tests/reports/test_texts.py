"""Artifacts of texts: which runs they are drawn from, what stands beside the paper's numbers, what is untestable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reports.artifacts import tab_frozen, tab_large_vocab, tab_lora
from reports.artifacts.best_reduction import fig3
from reports.build import build
from reports.comparison import Population, populations
from reports.entry import Content, Inputs
from reports.published import TAB_FROZEN
from reports.reading import load_runs
from reports.style import style
from tests.reports.synthetic import write_run
from tests.reports.synthetic_texts import write_text_run, write_texts


def population(runs: Path, dataset: str = "sst2") -> Population:
    (found,) = [p for p in populations(load_runs(runs)[0]) if p.dataset == dataset]
    return found


def cells(content: Content) -> list[dict[str, Any]]:
    assert content.table is not None
    names = [column.name for column in content.table.columns]
    return [dict(zip(names, row, strict=True)) for row in content.table.rows]


def test_lora_stands_beside_adafest_and_the_paper(tmp_path: Path) -> None:
    write_texts(tmp_path)
    content = tab_lora.content(Inputs(drawn=population(tmp_path)))
    rows = cells(content)
    assert [row["loss"] for row in rows] == [0.001, 0.005, 0.01]
    assert [row["adafest_paper"] for row in rows] == [14.59, 53.90, 53.90]
    assert rows[0]["adafest_difference"] == pytest.approx(rows[0]["adafest"] - 14.59)
    assert [row["lora_embedding"] for row in rows] == pytest.approx([11.82, 47.28, 189.1], rel=1e-3)
    assert "rank=16" in rows[1]["lora_embedding_settings"]
    assert rows[0]["adafest"] == pytest.approx(14 * 50_265 / 5e4)
    assert not content.missing


def test_frozen_embeddings_stand_beside_trained_ones_and_the_papers(tmp_path: Path) -> None:
    write_texts(tmp_path)
    content = tab_frozen.content(Inputs(drawn=population(tmp_path)))
    rows = {(row["algorithm"], row["epsilon"]): row for row in cells(content)}
    assert rows.keys() == TAB_FROZEN.rows.keys()
    assert rows["dpsgd", 3.0]["test"] == pytest.approx(0.928) and rows["dpsgd", 3.0]["sst2_paper"] == 0.9243
    assert "qnli_paper" not in rows["dpsgd", 3.0]
    assert rows["frozen", 1.0]["sst2_difference"] == pytest.approx(0.880 - 0.9143)


def test_a_large_vocabulary_stands_beside_a_smaller_one(tmp_path: Path) -> None:
    write_texts(tmp_path, "xnli", 250_002)
    alone = tab_large_vocab.content(Inputs([large := population(tmp_path, "xnli")], drawn=large))
    assert alone.missing == ["No runs on a smaller vocabulary yet: dpfest sweep experiment=text"]
    write_texts(tmp_path)
    content = tab_large_vocab.content(Inputs([large, population(tmp_path)], drawn=large))
    assert not content.missing and content.table is not None
    headings = [column.heading for column in content.table.columns]
    assert [headings[2], headings[5]] == ["ours, sst2, 50,265 rows", "ours, xnli, 250,002 rows"]
    row = cells(content)[1]
    assert (row["roberta_0_paper"], row["xlm_r_1_paper"]) == (53.90, 64.75)
    assert row["xlm_r_1"] / row["roberta_0"] == pytest.approx(250_002 / 50_265)
    assert row["xlm_r_1_difference"] == pytest.approx(row["xlm_r_1"] - 64.75)
    assert cells(alone)[1]["roberta_0_paper"] == 53.90 and cells(alone)[1]["roberta_0"] is None


def test_generated_texts_test_no_claim(tmp_path: Path) -> None:
    write_texts(tmp_path, "text_synthetic")
    generated = population(tmp_path, "text_synthetic")
    with style():
        contents = [draw(Inputs(drawn=generated)) for draw in (fig3, tab_lora.content, tab_frozen.content)]
    assert all("cannot test the paper's claim" in content.caption for content in contents)


def test_each_kind_of_data_has_its_artifacts_and_its_experiment(tmp_path: Path, undrawn: None) -> None:
    runs = tmp_path / "runs"
    write_texts(runs)
    write_texts(runs, "xnli", 250_002)
    write_text_run(runs, "dpsgd", test=0.9, reduction=1, dataset="qnli")
    write_run(runs, "dpsgd", test=0.72)
    write_run(runs, "nonprivate", test=0.72, epsilon=None)
    build(runs, tmp_path / "report", only=["fig3", "fig4", "tab_lora", "tab_large_vocab"])
    built = {e["id"]: e for e in json.loads((tmp_path / "report" / "report.json").read_text())["artifacts"]}
    drawn = {name: {variant["dataset"] for variant in entry["variants"]} for name, entry in built.items()}
    assert drawn == {
        "fig3": {"sst2", "qnli", "nycflights"},
        "fig4": {"nycflights"},
        "tab_lora": {"sst2", "qnli"},
        "tab_large_vocab": {"xnli"},
    }
    commands = {variant["dataset"]: variant["command"] for variant in built["fig3"]["variants"]}
    assert "experiment=text " in commands["sst2"] and "data=sst2" in commands["sst2"]
    assert "experiment=comparison" in commands["nycflights"]
    assert "experiment=text_large_vocabulary" in built["tab_large_vocab"]["variants"][0]["command"]


def test_runs_on_texts_are_held_against_the_grid_of_texts(tmp_path: Path, undrawn: None) -> None:
    runs = tmp_path / "runs"
    write_texts(runs)
    planned = {"text": {"dpsgd": 3, "adafest": 13, "frozen": 3}, "comparison": {"dpsgd": 99}}
    report = build(runs, tmp_path / "report", only=["fig7"], dataset="sst2", planned=planned)
    (entry,) = report.artifacts
    assert (entry["runs_done"], entry["runs_needed"], entry["status"]) == (18, 19, "incomplete")
    assert "12 of 13 adafest" in entry["variants"][0]["missing"][0]
    assert len(report.sweeps) == 1 and "experiment=text " in report.sweeps[0]
    # Unless it is asked for, a plain name is never of texts where the paper's figure is of clicks.
    (entry,) = build(runs, tmp_path / "report", only=["fig7"], planned=planned).artifacts
    assert (entry["runs_done"], entry["runs_needed"], entry["status"]) == (0, 99, "missing")
    assert [(v["name"], v["status"]) for v in entry["variants"]] == [("fig7", "missing"), ("fig7--sst2", "incomplete")]
