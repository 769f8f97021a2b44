"""A run's rows are those that were written: one flipped byte of any split stops it, and names the file and the cure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.preprocess import preprocess
from pipelines.train import make_run


def config(folder: Path, data: str) -> Config:
    line = ["profile=smoke", f"data={data}", f"paths.data={folder}/data", f"paths.runs={folder}/runs", "train.steps=2"]
    return typed(Composer().compose([*line, "algorithm=nonprivate"]))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    for data in ("criteo_synthetic", "criteo_synthetic_stream"):
        preprocess(config(folder, data))
    return folder


@pytest.mark.parametrize(
    ("data", "name"),
    [
        *(("criteo_synthetic", name) for name in ("train.rows", "validation.rows", "test.rows")),
        ("criteo_synthetic_stream", "train.rows"),  # of its last day, which is only evaluated
    ],
)
def test_a_flipped_byte_of_any_split_stops_a_run(written: Path, tmp_path: Path, data: str, name: str) -> None:
    shutil.copytree(written / "data", tmp_path / "data")
    rows = sorted((tmp_path / "data").glob(f"{data}-*/**/{name}"))[-1]
    flipped = bytearray(rows.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    rows.write_bytes(flipped)
    with pytest.raises(UserError, match=rf"{rows} is damaged: .* Delete {rows.parent} and preprocess again"):
        make_run(config(tmp_path, data))
    assert not list(tmp_path.glob("runs/*/*/*/release")), "nothing was trained"
