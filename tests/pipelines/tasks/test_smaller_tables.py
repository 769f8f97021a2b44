"""DP-SGD on smaller tables: which values share a row, what a step noises, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.tasks.pctr import PctrConfig, PctrModel, embedding_dim
from pipelines.tasks.smaller_tables import SmallerTables
from pipelines.train import make_run
from tests.pipelines.by_hand import noise_by_hand

SIZES = (7, 100, 1000)


def config(folder: Path, *more: str) -> Config:
    line = ["profile=smoke", "algorithm=smaller_tables", "privacy.noise_seed=1", "train.steps=2"]
    return typed(Composer().compose([*line, f"paths.data={folder}/data", f"paths.runs={folder}/runs", *more]))


def test_values_share_the_row_of_their_remainder_and_small_tables_stay_whole() -> None:
    model = PctrModel(SIZES, 2, PctrConfig(hidden=[4]), 0, smaller=SmallerTables(max_rows=30, max_dimension=4))
    assert [tuple(table.weight.shape) for table in model.tables] == [(7, 3), (30, 4), (30, 4)]
    numeric, values = torch.randn(50, 2), torch.stack([torch.randint(size, (50,)) for size in SIZES], dim=1)
    rows = values % torch.tensor([7, 30, 30])
    looked_up = [table.weight[rows[:, feature]] for feature, table in enumerate(model.tables)]
    expected = model.network(torch.cat([numeric, *looked_up], dim=1)).squeeze(1)
    assert torch.equal(model(numeric, values), expected)


def test_its_reduction_is_that_of_whole_tables_to_what_a_step_noises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise_by_hand(monkeypatch, 5.0)
    sizes = [*SIZES, *[5] * 23]
    outcome = make_run(config(tmp_path, f"data.vocabulary.sizes={sizes}", "model.hidden=[8]", "algorithm.max_rows=30"))
    gradient = json.loads((outcome.path / "release" / "summary.json").read_text())["embedding_gradient"]
    assert gradient["parameters"] == sum(size * embedding_dim(size) for size in sizes)
    noised = sum(min(size, 30) * embedding_dim(size) for size in sizes)
    assert gradient["coordinates_mean"] == noised
    assert gradient["reduction"] == pytest.approx(gradient["parameters"] / noised)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["algorithm.max_rows=null"], "max_rows or max_dimension must be set"),
        (["algorithm.max_dimension=0"], r"max_dimension=0 must be a whole number greater than 0"),
        (["data=text_synthetic"], "choose algorithm=lora_embedding, or click data"),
    ],
)
def test_what_cannot_be_made_smaller_is_refused(more: list[str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        config(tmp_path, *more)
