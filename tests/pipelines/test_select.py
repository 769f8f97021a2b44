"""What `dpfest select` says of its price."""

from __future__ import annotations

import re
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.dataset import Dataset
from pipelines.preprocess import prepared, preprocess
from pipelines.select import Selection, select
from pipelines.system.files import partial_of


def _said(tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[str, Dataset]:
    settings = _config(tmp_path, *more)
    select(settings)
    return capsys.readouterr().err.splitlines()[-1], Dataset.open(preprocess(settings))


def _config(tmp_path: Path, *more: str) -> Config:
    return typed(
        Composer().compose(
            [
                "profile=smoke",
                "data.rows=1000",
                f"data.vocabulary.sizes={[20] * 26}",
                f"paths.data={tmp_path}/data",
                f"paths.runs={tmp_path}/runs",
                "algorithm=fest",
                "algorithm.selection.rows=52",
                *more,
            ]
        )
    )


@pytest.mark.parametrize(
    ("settings", "event", "said"),
    [
        ("mechanism=gaussian", dpa.GaussianDpEvent(20.0), "Gaussian noise of standard deviation 102 (multiplier 20)"),
        (
            "mechanism=laplace algorithm.selection.epsilon=0.26",
            dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(100.0), 26),
            "Laplace noise of scale 100",
        ),
    ],
)
def test_the_cost_alone_is_what_dp_accounting_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, event: dpa.DpEvent, said: str
) -> None:
    words, dataset = _said(tmp_path, capsys, *f"algorithm.selection.{settings}".split())
    wanted = PLDAccountant().compose(event).get_epsilon(1 / dataset.examples)
    found = re.search(r"epsilon ([\d.]+) at delta ([\d.]+) \(1/N\)", words)
    assert found is not None and said in words and "composes that with its steps" in words
    assert float(found[1]) == pytest.approx(wanted, rel=1e-3)
    assert float(found[2]) == pytest.approx(1 / dataset.examples, rel=1e-2)


@pytest.mark.parametrize(("rows", "said"), [(519, False), (600, True)])
def test_a_selection_of_all_rows_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: int, said: bool
) -> None:
    config = _config(tmp_path, f"algorithm.selection.rows={rows}")
    assert len(Selection(config, prepared(config)).rows(range(1))) == min(rows, 520)
    warned = f"algorithm.selection.rows={rows} selects all 520 rows of the tables" in capsys.readouterr().err
    assert warned == said


def test_gumbel_names_the_papers_claim_and_privacy_delta(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, _ = _said(tmp_path, capsys, "algorithm.selection.mechanism=gumbel", "privacy.delta=1e-6")
    assert "Gumbel noise of scale 2,600" in words and "at delta 1e-06 (privacy.delta)" in words
    assert "as 52 draws (the paper claims one, 0.01)" in words


def test_public_counts_cost_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "prior.npy", np.arange(26 * 20))
    public = ("algorithm.selection.mechanism=public", f"algorithm.selection.prior={tmp_path}/prior.npy")
    words, _ = _said(tmp_path, capsys, *public)
    assert "costs no privacy" in words


def test_a_selection_of_an_earlier_version_is_named_and_not_paid_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _said(tmp_path, capsys)
    (release,) = tmp_path.glob("runs/.selections/*/*/release")
    for file in release.iterdir():
        file.rename(release.parent / file.name)
    release.rmdir()
    with pytest.raises(UserError, match="was made by an earlier version of dpfest"):
        _said(tmp_path, capsys)


def test_a_damaged_selection_is_named_and_not_made_again_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _said(tmp_path, capsys)
    (rows,) = tmp_path.glob("runs/.selections/*/*/release/rows.npy")
    rows.write_bytes(b"")
    with pytest.raises(UserError, match=r"rows\.npy is damaged.*second release"):
        _said(tmp_path, capsys)


def test_the_draw_of_a_killed_selection_does_not_stay_beside_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a second noised selection of the same counts, which no ledger counts."""
    _said(tmp_path, capsys)
    (made,) = (tmp_path / "runs" / ".selections" / "criteo_synthetic").glob("*")
    killed = partial_of(made, "elsewhere.99999")
    made.rename(killed)
    _said(tmp_path, capsys)
    assert [path.name for path in made.parent.iterdir()] == [made.name]
