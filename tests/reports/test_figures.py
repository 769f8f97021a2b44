"""Figures for notebooks, and the private page of a run."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from dpfest.errors import UserError
from reports import curves, figures


def test_they_are_what_the_report_draws(comparison: Path, tmp_path: Path) -> None:
    drawn = figures.frontier(comparison)
    assert isinstance(drawn, Figure) and len(drawn.axes) >= 2
    drawn.savefig(tmp_path / "frontier.png")
    assert isinstance(figures.artifact("fig8", comparison), Figure)
    assert not plt.get_fignums()  # nothing is kept that a notebook would show twice


def test_what_cannot_be_drawn_is_named(comparison: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        figures.frontier(tmp_path / "nowhere")
    with pytest.raises(UserError, match="there are runs on:"):
        figures.frontier(comparison, dataset="clicks")
    with pytest.raises(UserError, match="frontier has no figure: a table"):
        figures.artifact("frontier", comparison)
    with pytest.raises(UserError, match="has no runs for fig5: dpfest sweep experiment=streaming"):
        figures.artifact("fig5", tmp_path)
    with pytest.raises(UserError, match="fig88"):
        figures.artifact("fig88", comparison)


def _run(folder: Path, *more: str) -> Path:
    run = folder / "clicks" / "fest" / "0a1b2c3d4e5f"
    (run / "private").mkdir(parents=True)
    lines = [
        {"step": step, "split": "train", "loss": 1 / step, "examples": 100, "coordinates": 50.0} for step in (1, 2)
    ]
    lines.append({"step": 2, "split": "validation", "loss": 0.6, "auc": 0.7})
    text = "".join(json.dumps(line) + "\n" for line in lines) + "".join(more)
    (run / "private" / "metrics.jsonl").write_text(text)
    return run


def test_the_private_page_stays_private_and_says_so(tmp_path: Path) -> None:
    run = _run(tmp_path, '{"step": 3, "spl')  # of a run that is writing its last line
    page = curves.write_page(run)
    assert page == run / "private" / "curves.html"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    text = page.read_text()
    assert curves.NOTE in text and "<svg" in text and "clicks/fest/0a1b2c3d4e5f" in text
    assert "<td>validation</td><td>2</td><td>0.6000</td><td>0.7000</td>" in text
    assert "http://" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert len(figures.training(run).axes) == 4


def test_a_run_without_metrics_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the folder of a run that has begun"):
        curves.write_page(tmp_path)
    run = _run(tmp_path)
    (run / "private" / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has logged no step yet"):
        curves.write_page(run)
    (run / "private" / "metrics.jsonl").write_text('{"step"\n{"step": 1, "split": "train"}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1, is damaged"):
        curves.write_page(run)
