"""Files that are whole or absent, whatever stops their writing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.system.files import write_atomically, write_blocks


def test_blocks_are_the_file_that_numpy_writes(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=1000)
    write_blocks(tmp_path / "a.npy", 1000, np.float64, [values[:300], values[300:300], values[300:]])
    np.save(tmp_path / "b.npy", values)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    """/dev/full stands for the disk; a memory map would end the process by a signal where the disk is full."""
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a", lambda partial: Path("/dev/full").write_bytes(b"x"))
    assert list(tmp_path.iterdir()) == []
    source = Path(write_blocks.__code__.co_filename).read_text(encoding="utf-8")
    assert "memmap" not in source


def test_where_nothing_can_be_written_the_cause_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system, at the end")

    def write(partial: Path) -> None:
        raise OSError(30, "Read-only file system, at first")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match="at first"):
        write_atomically(tmp_path / "a", write)
