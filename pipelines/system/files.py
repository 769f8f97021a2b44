"""Atomic files and folders, which are written under a temporary name and then renamed; locks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock
from numpy.typing import DTypeLike, NDArray

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,99}")
"""What may name data, a model or an algorithm: folders have these names."""


def partial_of(path: Path, process: object) -> Path:
    """Return the temporary path at which ``process`` writes ``path``: a hidden name in the same folder."""
    return path.with_name(f".{path.name}.{process}.partial")


def _this_process() -> str:
    """Return a name that no other process has, on whichever machine shares the folder: containers count from 1."""
    return f"{socket.gethostname()}.{os.getpid()}"


OWNER_ONLY = 0o600
"""The mode of a file that its owner alone may read."""


def write_atomically(path: Path, write: Callable[[Path], object], mode: int = 0o666) -> None:
    """Write a file atomically: ``write`` fills a temporary file in the same folder, which is then renamed to ``path``.

    Args:
        path: the file to create or replace.
        write: fills the empty file whose path it is called with.
        mode: permissions, subject to the umask, set before the first byte is written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_of(path, _this_process())
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode))
        write(partial)
        os.replace(partial, path)
    finally:
        with suppress(OSError):  # where nothing can be written, that is the error to be told
            partial.unlink(missing_ok=True)


def json_text(value: Any) -> str:
    """Return indented JSON; refuses values that JSON cannot represent (nan, infinity)."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any, mode: int = 0o666) -> None:
    """Write a value as JSON, atomically, with these permissions."""
    text = json_text(value)
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"), mode)


def private_folder(path: Path) -> Path:
    """Create a folder that only its owner may enter, or restrict an existing one to its owner; returns it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write a ``.npy`` file atomically; nothing is pickled."""
    write_atomically(path, lambda partial: save_array(partial, array))


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Fill a file of any name as a ``.npy``; nothing is pickled."""
    with path.open("wb") as file:  # given a path, numpy would append .npy
        np.save(file, array, allow_pickle=False)


def write_blocks(path: Path, count: int, dtype: DTypeLike, blocks: Iterable[NDArray[Any]]) -> None:
    """Write a ``.npy`` file of ``count`` values atomically, from consecutive blocks that need not fit the memory."""

    def write(partial: Path) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (count,)}
        with partial.open("wb") as file:  # not a memory map, which ends the process where the disk is full
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype).data)

    write_atomically(path, write)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, renamed to ``path`` when the block succeeds and removed when it fails.

    If another process has created ``path`` in the meantime, that folder stays and this one is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_of(path, _this_process())
    shutil.rmtree(partial, ignore_errors=True)  # left by a dead process with the same number
    partial.mkdir()
    try:
        yield partial
        try:
            partial.rename(path)
        except OSError:
            if not path.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock ``path`` and remove it in the end; yields False where the file system has no locks."""
    lock = FileLock(path, poll_interval=0.01)
    try:
        lock.acquire()
    except OSError:
        yield False  # two processes may then write at once: the rename of the folder decides
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)  # while it is held: waiting processes notice that it is gone
        lock.release()


@contextmanager
def made_once(final: Path) -> Iterator[Path | None]:
    """Yield a temporary folder, renamed to ``final`` when the block succeeds and removed when it fails.

    A lock, which the system releases with its process, makes a second process wait for the first; leftovers of killed
    processes are removed under it. Yields None if another process has created ``final`` in the meantime.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with locked(final.with_name(f".{final.name}.lock")) as alone:
        if final.exists():
            yield None
            return
        if alone:
            for left_over in final.parent.glob(partial_of(final, "*").name):
                shutil.rmtree(left_over, ignore_errors=True)
        with whole_folder(final) as partial:
            yield partial


class HashedFile:
    """A file whose content is hashed as it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self.sha256.update(content)
