"""SHA-256 of whole files, cached while a file stays unchanged.

What is known of a file lies in a small JSON file of its own in ``$DPFEST_CACHE`` (``~/.cache/dpfest``), under the
file's place, and is believed while size, inode and both times (of its content and of its status) are what they were.
No program that edits a file can set its status time back. Processes that ask for the same file at once read it once.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.system.files import locked, write_json
from pipelines.system.progress import progress

_TOLD_BYTES = 1 << 28
"""Files from this size on take a second or more: their reading shows its progress."""

_SETTLED = 1_000_000_000
"""Nanoseconds after a file's last change from which on a further change is sure to move its times."""


def fingerprint(path: Path) -> dict[str, Any]:
    """Name, size and SHA-256 of a file. Its folder is left out, so that moving data does not make them other data.

    Raises:
        UserError: It cannot be read, or changes while it is.
    """
    checksum = sha256_of(path)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": checksum}


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, 64 hexadecimal digits: read, or remembered from when it was read last.

    Raises:
        UserError: It cannot be read, or changes while it is.
    """
    try:
        place = path.resolve(strict=True)
        memory = _memory(place)
        if memory is None:
            return _read(place)[0]
        if known := _recalled(memory, place):
            return known
        with locked(memory.with_suffix(".lock")):
            return _recalled(memory, place) or _learnt(memory, place)
    except OSError as error:
        raise UserError(f"The data file {path} cannot be read: {error.strerror}.") from error


def read_sha256(path: Path) -> str:
    """SHA-256 of a file, read now, whatever is remembered; raises OSError."""
    return _read(path)[0]


def _memory(place: Path) -> Path | None:
    """Where what is known of a file lies; None where nothing can be kept."""
    folder = Path(os.environ.get("DPFEST_CACHE") or Path("~/.cache/dpfest").expanduser()) / "checksums"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        return None
    return folder / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.json"


def _signature(place: Path) -> dict[str, Any]:
    """What changes whenever a file does."""
    stat = place.stat()
    names = ("st_size", "st_dev", "st_ino", "st_mtime_ns", "st_ctime_ns")
    return {"path": str(place), **{name.removeprefix("st_"): getattr(stat, name) for name in names}}


def _recalled(memory: Path, place: Path) -> str | None:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        return str(known["sha256"]) if known["file"] == _signature(place) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _learnt(memory: Path, place: Path) -> str:
    started = time.time_ns()
    checksum, signature = _read(place)
    # Of a file that has just changed, another change within the clock's grain would go unseen.
    if started - max(signature["mtime_ns"], signature["ctime_ns"]) > _SETTLED:
        with suppress(OSError):  # a full disk: then it is read again
            write_json(memory, {"file": signature, "sha256": checksum})
    return checksum


def _read(place: Path) -> tuple[str, dict[str, Any]]:
    """SHA-256 and signature of a file that stays as it is while it is read."""
    before = _signature(place)
    with place.open("rb") as file:
        if before["size"] < _TOLD_BYTES:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            checksum = _read_aloud(file, place.name, before["size"])
    if _signature(place) != before:
        raise UserError(f"{place} has changed while it was read: wait until whoever writes it is done.")
    return checksum, before


def _read_aloud(file: Any, name: str, size: int) -> str:
    digest = hashlib.sha256()
    with progress(f"checksum of {name}") as report:
        while piece := file.read(1 << 24):
            digest.update(piece)
            report(file.tell(), size)
    return digest.hexdigest()


SUMS = "SHA256SUMS"
"""The checksums of a folder's files, as ``sha256sum --check`` reads them."""


def write_sums(folder: Path) -> None:
    """Write the checksums of all files of a folder into its :data:`SUMS`."""
    (folder / SUMS).write_text(sums_text(folder), encoding="utf-8")


def sums_text(folder: Path) -> str:
    """What :data:`SUMS` says of a folder's files as they are: a line each, by name."""
    names = sorted(path.name for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{_checksum(folder / name)}  {name}\n" for name in names)


def check_sums(folder: Path, cure: str) -> None:
    """Refuse a folder with a file that is not what was written; one without checksums (of an earlier version) passes.

    Args:
        folder: that :func:`write_sums` was called on.
        cure: what to do about a damaged file, a full sentence.

    Raises:
        UserError: names the first file that is missing, added or changed.
    """
    try:
        written = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    listed = {name: checksum for checksum, _, name in (line.partition("  ") for line in written)}
    there = {path.name for path in folder.iterdir()} - {SUMS}
    for name in sorted(there | listed.keys()):
        if name not in there:
            raise UserError(f"{folder / name} is missing, which {SUMS} lists. {cure}")
        if name not in listed:
            raise UserError(f"{folder / name} is not listed in {SUMS}: it was added, or that file is damaged. {cure}")
        if _checksum(folder / name) != listed[name]:
            raise UserError(f"{folder / name} is damaged: its SHA-256 is not that in {SUMS}. {cure}")


def _checksum(path: Path) -> str:
    """SHA-256 of a file; only of large ones is it remembered."""
    return sha256_of(path) if path.stat().st_size >= 1 << 20 else read_sha256(path)
