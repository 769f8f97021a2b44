"""The artifacts that the paper lacks, or that need no comparison: the look-up, vocabularies, corrections, the
inequality of bias and variance, the clipping of contribution maps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports import bench
from reports.artifacts import bias_variance, contribution, corrections, fig1a, tab_vocab
from reports.artifacts.bias_variance import Inequality
from reports.comparison import populations
from reports.entry import Inputs
from reports.runs import load_runs
from reports.style import dress, style
from tests.reports.synthetic import BUCKETS, write_run


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


@pytest.mark.parametrize("artifact", [corrections, bias_variance, contribution])
def test_what_was_measured_once_is_shown_without_a_measurement(artifact: Any) -> None:
    with style():
        content = artifact.content(Inputs())
        if content.figure is not None:
            dress(content.figure, "", [])
    assert content.table is not None and len(content.table.rows) >= 5 and not content.missing
    assert "Measured once" in content.caption


def test_corrections_say_how_much_more_noise_they_take() -> None:
    table = corrections.content(Inputs()).table
    assert table is not None
    place = {column.name: index for index, column in enumerate(table.columns)}
    known = [row for row in table.rows if row[place["more"]] is not None]
    assert known
    for row in known:
        more = row[place["noise"]] / row[place["paper_noise"]] - 1
        assert row[place["more"]] == pytest.approx(more)


def test_the_inequality_is_the_papers() -> None:
    sides = Inequality(bound=2.0, coordinates=9.0, parameters=25.0, noise=1.0, dense_noise=1.0, steps=4)
    assert sides.left(0.5) == pytest.approx(math.sqrt(4 * 1.5**2 + 9) + 0.5 * 2 * 2)
    assert sides.right == pytest.approx(math.sqrt(4 + 25))
    most = sides.most_truncated
    assert most is not None and sides.left(most) == pytest.approx(sides.right)
    assert Inequality(2.0, 25.0, 25.0, 1.0, 1.0, 4).most_truncated is None  # nothing is gained by noising as many
    assert Inequality(0.001, 1.0, 25.0, 1.0, 1.0, 4).most_truncated == 1.0


def test_bias_and_variance_are_weighed_in_units_of_the_clipping_norm() -> None:
    """By hand from what was measured: the clipped side of the first row."""
    values = bench.frozen("bias").records[0]
    at, table = values["values"], bias_variance.content(Inputs()).table
    assert table is not None
    row = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    noise = at["noise_multiplier"] / values["batch_size"]
    left = math.hypot(1 + at["truncated"], math.sqrt(at["coordinates"]) * noise) + at["truncated"] * math.sqrt(
        at["steps"]
    )
    assert row["clipped_left"] == pytest.approx(left)
    assert row["measured_bound"] == pytest.approx(at["gradient_norm"] / at["clipping_norm"])
    assert row["clipped_holds"] == (left < row["clipped_right"])


def test_maps_that_are_clipped_stand_beside_the_papers_grid() -> None:
    table = contribution.content(Inputs()).table
    assert table is not None
    grid = [row for row in table.rows if row[0]]
    assert {row[1] for row in grid} == {50, 100, 500}  # the paper's, whatever survives
    by_norm = {row[1]: row[4] for row in table.rows if not row[0] and round(row[3]) == 10}
    assert by_norm[4] > by_norm[50] > by_norm[500]  # a larger one only multiplies the noise
