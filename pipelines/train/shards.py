"""The tables of a checkpoint over ranks: a file for each shard in a new folder, whose checksums the state names."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from dpfest.errors import UserError
from pipelines.runs.directory import SHARDS
from pipelines.system.files import OWNER_ONLY, private_folder, write_atomically

DIGEST = 32
"""Bytes of a shard's checksum."""


def write_shards(folder: Path, shards: Iterable[tuple[int, dict[str, Tensor]]]) -> bytes:
    """Write a rank's shards, given by number, through to the disk; returns their checksums in order."""
    private_folder(folder)
    own = b""
    for shard, state in shards:
        write_atomically(_file(folder, shard), partial(_write_through, state), OWNER_ONLY)
        own += _sha256(_file(folder, shard))
    _sync(folder)
    return own


def missing_shard(folder: Path, shards: int) -> Path | None:
    """Return the first file of so many shards that is not there."""
    return next((path for path in (_file(folder, shard) for shard in range(shards)) if not path.exists()), None)


def read_shard(folder: Path, shard: int, checksums: Tensor) -> dict[str, Tensor]:
    """Return a shard, given the checksums of all of them, one after another.

    Raises:
        UserError: it is not the one that was written.
    """
    path = _file(folder, shard)
    if not path.exists() or _sha256(path) != bytes(checksums[DIGEST * shard : DIGEST * (shard + 1)].tolist()):
        raise UserError(f"{path} is not the shard that was saved with the checkpoint: its checksum differs.")
    return load_file(path)


def remove_others(folder: Path) -> None:
    """Remove the shards of earlier checkpoints of the run."""
    for other in folder.parent.glob(f"{SHARDS}*"):
        if other != folder:
            shutil.rmtree(other)


def _write_through(state: dict[str, Tensor], path: Path) -> None:
    """Write a shard to the disk itself: the state that names it is written after it, and must not outlive it."""
    save_file(state, path)
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _file(folder: Path, shard: int) -> Path:
    return folder / f"{shard:05d}.safetensors"
