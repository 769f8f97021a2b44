"""What a file is: all of its content, read once while it stays as it is."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpfest.errors import UserError
from pipelines.data.clicks.criteo import CriteoKaggleConfig
from pipelines.data.identity import data_hash
from pipelines.system import checksum
from pipelines.system.checksum import fingerprint, sha256_of
from tests.pipelines.data.criteo_text import some_lines


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read from now on; files that have just been written count as settled."""
    names, original = [], checksum._read

    def counted(place: Path) -> object:
        names.append(place.name)
        time.sleep(0.01)
        return original(place)

    monkeypatch.setattr(checksum, "_read", counted)
    monkeypatch.setattr(checksum, "_SETTLED", -1)
    return names


def _edit_the_middle(path: Path) -> None:
    """Change one byte, and set the time of the content back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(before.st_size // 2)
        file.write(b"0" if byte != b"0" else b"1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_that_is_edited_in_its_middle_makes_other_data(tmp_path: Path, read: list[str]) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"\n".join([*some_lines(15_000), b""]))
    assert path.stat().st_size > 3 << 20  # the first and the last MiB stay as they are
    before, named = fingerprint(path), data_hash(CriteoKaggleConfig(path=str(path)))
    time.sleep(0.02)  # beyond the clock's grain
    _edit_the_middle(path)
    after = fingerprint(path)
    assert after["sha256"] != before["sha256"] and after["bytes"] == before["bytes"]
    assert data_hash(CriteoKaggleConfig(path=str(path))) != named


def test_a_file_is_read_once_while_it_stays_as_it_is(tmp_path: Path, read: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"content")
    assert [sha256_of(path) for _ in range(3)] == [hashlib.sha256(b"content").hexdigest()] * 3
    assert read == ["a.txt"]
    (tmp_path / "link").symlink_to(path)
    assert sha256_of(tmp_path / "link") == sha256_of(path) and read == ["a.txt"]
    path.rename(tmp_path / "b.txt")
    assert fingerprint(tmp_path / "b.txt")["name"] == "b.txt" and read == ["a.txt", "b.txt"]


def test_several_that_ask_at_once_read_it_once(tmp_path: Path, read: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"content")
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(sha256_of, [path] * 32))) == 1
    assert read == ["a.txt"]


def test_a_file_that_has_just_changed_is_not_remembered(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksum, "_SETTLED", 60 * 10**9)
    path = tmp_path / "a.txt"
    path.write_bytes(b"content")
    assert sha256_of(path) == sha256_of(path) and read == ["a.txt", "a.txt"]


@pytest.mark.parametrize("content", ["{", "[]", '{"file": 1}', ""])
def test_a_damaged_cache_entry_is_computed_again(tmp_path: Path, read: list[str], content: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"content")
    expected = sha256_of(path)
    entry = checksum._cache_entry(path)
    assert entry is not None and entry.exists()
    entry.write_text(content)
    assert sha256_of(path) == sha256_of(path) == expected and read == ["a.txt", "a.txt"]


def test_where_nothing_can_be_kept_files_are_read_each_time(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"content")
    monkeypatch.setenv("DPFEST_CACHE", str(path))  # a file, no folder
    assert sha256_of(path) == sha256_of(path) and read == ["a.txt", "a.txt"]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"content")

    def written_to(file: object, name: str, size: int) -> str:
        path.write_bytes(b"more content")
        return ""

    monkeypatch.setattr(checksum, "_SHOWN_BYTES", 0)
    monkeypatch.setattr(checksum, "_digest_with_progress", written_to)
    with pytest.raises(UserError, match=r"a\.txt changed while it was read: wait until it is completely"):
        sha256_of(path)


def test_reading_a_large_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checksum, "_SHOWN_BYTES", 1000)
    for size in (999, 1000):
        (tmp_path / f"of{size}").write_bytes(b"x" * size)
        assert sha256_of(tmp_path / f"of{size}") == hashlib.sha256(b"x" * size).hexdigest()
    assert capsys.readouterr().err.startswith("checksum of of1000 …\n")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"The data file .*/nowhere cannot be read: No such file"):
        sha256_of(tmp_path / "nowhere")
