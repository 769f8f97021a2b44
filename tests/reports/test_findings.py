"""The artifacts that need no comparison: the look-up, vocabularies, what was measured once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reports.artifacts import fig1a, finding, tab_vocab
from reports.comparison import populations
from reports.entry import Inputs
from reports.reading import load_runs
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


@pytest.mark.parametrize("name", ["corrections", "bias_variance", "contribution"])
def test_what_was_measured_once_is_shown_without_a_measurement(name: str) -> None:
    content = finding.of(name)(Inputs())
    assert content.table is not None and len(content.table.rows) >= 5 and not content.missing
    assert "Measured once" in content.caption and content.table.markdown().count("|\n") == len(content.table.rows) + 2


def test_maps_that_are_clipped_stand_beside_the_papers_grid() -> None:
    table = finding.of("contribution")(Inputs()).table
    assert table is not None
    grid = [row for row in table.rows if row[0]]
    assert {row[1] for row in grid} == {50, 100, 500}  # the paper's, whatever survives
    by_norm = {row[1]: row[4] for row in table.rows if not row[0] and round(row[3]) == 10}
    assert by_norm[4] > by_norm[50] > by_norm[500]  # a larger one only multiplies the noise
