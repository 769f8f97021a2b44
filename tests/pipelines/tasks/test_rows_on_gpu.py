"""Batches of rows that lie on a GPU (here pretended): those that are gathered from the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.data.rows import JoinedRows, RowFile, click_record
from pipelines.tasks import rows_on_gpu
from pipelines.tasks.clicks import ClickTask
from pipelines.tasks.pctr import PctrConfig

CPU = torch.device("cpu")


class Data:
    vocabulary_sizes, categorical_names, numeric_names = (9, 40), ("one", "two"), ("a", "b", "c")
    bag_combiners: tuple[str, ...] = ()


def rows(folder: Path, bags: tuple[int, ...] = ()) -> JoinedRows:
    """Fifty rows in two files."""
    record, drawn = click_record(3, 2, bags), np.random.default_rng(0)
    found = np.zeros(50, record)
    found["label"], found["numeric"] = drawn.integers(0, 2, 50), drawn.standard_normal((50, 3))
    found["categorical"] = drawn.integers(0, (9, 40), (50, 2))
    for number, part in enumerate((found[:20], found[20:])):
        part.tofile(folder / f"{number}.bin")
    return JoinedRows([RowFile(folder / f"{number}.bin", size, record) for number, size in ((0, 20), (1, 30))])


@pytest.mark.parametrize("room", [0, 50 * 24 * 2 - 1, 50 * 24 * 2])
def test_batches_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """To the last bit and type; a row takes 24 bytes, and rows no more than half of the room; in several copies."""
    made: list[int] = []
    start = rows_on_gpu.RowsOnGpu.__init__

    def counted(self: rows_on_gpu.RowsOnGpu, *args: object) -> None:
        made.append(1)
        start(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(rows_on_gpu, "_AT_ONCE", 16)
    monkeypatch.setattr(rows_on_gpu.RowsOnGpu, "__init__", counted)
    task, own, at = ClickTask(Data(), PctrConfig(), 0, CPU), rows(tmp_path), np.array([3, 19, 20, 49])
    theirs = task.batches(own, at, 3)
    monkeypatch.setattr(rows_on_gpu, "room", lambda device: room)
    task._held = None
    for _ in range(2):
        ours = task.batches(own, at, 3)
        assert [part.examples.tolist() for part in ours] == [[3, 19, 20], [49]]
        for mine, its in zip(ours, theirs, strict=True):
            assert all(
                torch.equal(*both) and both[0].dtype == both[1].dtype for both in zip(mine.data, its.data, strict=True)
            )
    assert len(made) == (room == 50 * 24 * 2)
    other = rows(tmp_path)  # of another period
    assert torch.equal(task.batches(other, at[:1], None)[0].data[1], theirs[0].data[1][:1])
    assert len(made) == 2 * (room == 50 * 24 * 2)


def test_bags_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_on_gpu, "room", lambda device: 1 << 30)
    assert rows_on_gpu.RowsOnGpu.of(rows(tmp_path, (4,)), CPU) is None and rows_on_gpu.RowsOnGpu.of(rows(tmp_path), CPU)
