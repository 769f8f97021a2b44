"""The artifacts that the paper lacks, or that need no comparison: the look-up, vocabularies, corrections, the
inequality of bias and variance, the clipping of contribution maps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from reports.artifacts import bias_variance, contribution, corrections, fig1a, tab_vocab
from reports.artifacts.bias_variance import Inequality
from reports.comparison import populations
from reports.entry import Inputs
from reports.runs import load_runs
from reports.style import dress, style
from tests.reports.synthetic import BUCKETS, bias, kept, write_benches, write_findings, write_run


def test_a_look_up_has_the_gradient_that_autograd_gives_it() -> None:
    import torch

    found = fig1a.lookup()
    table = torch.tensor(found["table"], requires_grad=True)
    output = torch.nn.functional.embedding(torch.tensor(fig1a.IDS), table)
    np.testing.assert_allclose(output.detach(), found["output"])
    arriving = np.linalg.lstsq(found["inputs"].T, found["gradient"], rcond=None)[0]
    output.backward(torch.tensor(arriving))
    assert table.grad is not None
    np.testing.assert_allclose(table.grad, found["gradient"], atol=1e-12)
    assert (found["gradient"] != 0).any(axis=1).sum() == 2 and (found["noised"] != 0).all()


def test_the_look_up_is_drawn_without_runs() -> None:
    with style():
        content = fig1a.content(Inputs())
        assert content.figure is not None and content.table is not None
        dress(content.figure, "", [])
    assert [row[:3] for row in content.table.rows if row[1]] == [(3, 2, True), (8, 1, True)]


def test_vocabularies_stand_beside_the_papers_by_their_place(tmp_path: Path) -> None:
    write_run(tmp_path, "nonprivate", test=0.78, epsilon=None)
    content = tab_vocab.content(Inputs(drawn=populations(load_runs(tmp_path)[0])[0]))
    assert content.table is not None and "paired by position only" in content.caption
    rows = content.table.rows
    assert rows[2][:5] == ("categorical-feature-16", 82_741, "feature_2", BUCKETS[2], BUCKETS[2] - 82_741)
    assert rows[20][:5] == ("categorical-feature-34", 56_473, None, None, None)  # these runs have 13 tables
    assert rows[-1][:5] == ("all", 338_782, "all 13", sum(BUCKETS), sum(BUCKETS) - 338_782)


def test_runs_that_do_not_tell_their_tables_leave_vocabularies_incomplete(tmp_path: Path) -> None:
    gradient = {"parameters": 10, "coordinates_mean": 1.0}
    write_run(tmp_path, "nonprivate", test=0.78, epsilon=None, embedding_gradient=gradient)
    content = tab_vocab.content(Inputs(drawn=populations(load_runs(tmp_path)[0])[0]))
    assert content.missing == ["The runs do not record their tables."]


def test_corrections_say_how_much_more_noise_they_take(tmp_path: Path) -> None:
    write_benches(tmp_path)
    content = corrections.content(Inputs(report=tmp_path))
    assert content.table is not None
    (row,) = content.table.rows
    assert row[3:7] == (0.5, 1.0, 2.0, 0.6) and row[7] == pytest.approx(0.2)


@pytest.mark.parametrize("artifact", [corrections, bias_variance, contribution])
def test_what_was_not_measured_names_the_command_that_measures_it(artifact: object, tmp_path: Path) -> None:
    write_benches(tmp_path)
    for section in ("bias", "corrections", "contribution"):
        write_findings(tmp_path, section, [{"setting": "of an earlier version"}])
    content = artifact.content(Inputs(report=tmp_path))  # type: ignore[attr-defined]
    assert content.table is None and content.missing[0].endswith(artifact.COMMAND)  # type: ignore[attr-defined]


def test_the_inequality_is_the_papers() -> None:
    sides = Inequality(bound=2.0, coordinates=9.0, parameters=25.0, noise=1.0, dense_noise=1.0, steps=4)
    assert sides.left(0.5) == pytest.approx(math.sqrt(4 * 1.5**2 + 9) + 0.5 * 2 * 2)
    assert sides.right == pytest.approx(math.sqrt(4 + 25))
    most = sides.most_truncated
    assert most is not None and sides.left(most) == pytest.approx(sides.right)
    assert Inequality(2.0, 25.0, 25.0, 1.0, 1.0, 4).most_truncated is None  # nothing is gained by noising as many
    assert Inequality(0.001, 1.0, 25.0, 1.0, 1.0, 4).most_truncated == 1.0


def test_bias_and_variance_are_weighed_in_units_of_the_clipping_norm(tmp_path: Path) -> None:
    write_findings(tmp_path, "bias", [bias(20.0), bias(80.0, truncated=0.9)])
    content = bias_variance.content(Inputs(report=tmp_path))
    assert content.table is not None and content.missing == []
    names = [column.name for column in content.table.columns]
    kept, cut = (dict(zip(names, row, strict=True)) for row in content.table.rows)
    # Noise of 2.048 / 2,048 a coordinate: a million have a norm of 1, four million one of 2.
    assert kept["clipped_right"] == pytest.approx(math.sqrt(5))
    assert kept["clipped_left"] == pytest.approx(math.hypot(1.01, 1.0) + 0.1)
    assert kept["measured_bound"] == pytest.approx(0.05)
    assert (kept["clipped_holds"], kept["measured_holds"]) == (True, True)
    assert (cut["clipped_holds"], cut["measured_holds"]) == (False, True)


def test_maps_that_are_clipped_stand_beside_the_papers_grid(tmp_path: Path) -> None:
    write_findings(tmp_path, "contribution", [kept(4.0, 10.0, 0.4), kept(4.0, 20.0, 0.3), kept(50.0, 10.0, 0.2)])
    with style():
        content = contribution.content(Inputs(report=tmp_path))
        assert content.figure is not None and content.table is not None
        dress(content.figure, "", [])
    assert "norms of 2.0 to 6.9 (median 3.3)" in content.caption
    assert [row[:2] + row[3:5] for row in content.table.rows] == [(False, 4.0, 10.0, 0.4), (False, 50.0, 10.0, 0.2)]
    # Of the paper's grid every setting is in the table, also where nothing survives and the axis has ended.
    write_findings(tmp_path, "contribution", [kept(50.0, 10.0, 0.2), kept(50.0, None, 0.0, grid=True)])
    content = contribution.content(Inputs(report=tmp_path))
    assert content.table is not None and len(content.table.rows) == 2
