"""SHA-256 of whole files, cached while a file stays unchanged.

The cache, ``$DPFEST_CACHE`` (``~/.cache/dpfest``), holds one small JSON file per file, keyed by its path. An entry is
valid while the file's size, inode, modification time and status-change time are unchanged; no program that edits a file
can set its status-change time back. Concurrent processes hash the same file once.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.system.files import locked, write_json
from pipelines.system.progress import progress

_SHOWN_BYTES = 1 << 28
"""Size from which reading a file shows its progress: it takes a second or more."""

_SETTLED = 1_000_000_000
"""Nanoseconds after a file's last change after which a further change certainly changes its times."""


def fingerprint(path: Path) -> dict[str, Any]:
    """Return name, size and SHA-256 of a file, without its folder, so that moving data does not change their identity.

    Raises:
        UserError: It cannot be read, or changes while it is.
    """
    checksum = sha256_of(path)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": checksum}


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hexadecimal digits, from the cache where its entry is valid.

    Raises:
        UserError: It cannot be read, or changes while it is.
    """
    try:
        place = path.resolve(strict=True)
        entry = _cache_entry(place)
        if entry is None:
            return _read(place)[0]
        if known := _cached(entry, place):
            return known
        with locked(entry.with_suffix(".lock")):
            return _cached(entry, place) or _computed(entry, place)
    except OSError as error:
        raise UserError(f"The data file {path} cannot be read: {error.strerror}.") from error


def read_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, always read anew; raises OSError."""
    return _read(path)[0]


def _cache_entry(place: Path) -> Path | None:
    """Return the path of a file's cache entry, or None where there is no cache folder."""
    folder = Path(os.environ.get("DPFEST_CACHE") or Path("~/.cache/dpfest").expanduser()) / "checksums"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        return None
    return folder / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.json"


def _signature(place: Path) -> dict[str, Any]:
    """Return values that change whenever the file does."""
    stat = place.stat()
    names = ("st_size", "st_dev", "st_ino", "st_mtime_ns", "st_ctime_ns")
    return {"path": str(place), **{name.removeprefix("st_"): getattr(stat, name) for name in names}}


def _cached(entry: Path, place: Path) -> str | None:
    try:
        known = json.loads(entry.read_text(encoding="utf-8"))
        return str(known["sha256"]) if known["file"] == _signature(place) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _computed(entry: Path, place: Path) -> str:
    """Compute a checksum and cache it, unless the file has just changed."""
    started = time.time_ns()
    checksum, signature = _read(place)
    # Another change within the clock's resolution would go unnoticed.
    if started - max(signature["mtime_ns"], signature["ctime_ns"]) > _SETTLED:
        with suppress(OSError):  # on a full disk the file is read again next time
            write_json(entry, {"file": signature, "sha256": checksum})
    return checksum


def _read(place: Path) -> tuple[str, dict[str, Any]]:
    """Return SHA-256 and signature of a file that does not change while it is read."""
    before = _signature(place)
    with place.open("rb") as file:
        if before["size"] < _SHOWN_BYTES:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            checksum = _digest_with_progress(file, place.name, before["size"])
    if _signature(place) != before:
        raise UserError(f"{place} changed while it was read: wait until it is completely written.")
    return checksum, before


def _digest_with_progress(file: Any, name: str, size: int) -> str:
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
    """Return the content of :data:`SUMS` for a folder: one line per file, sorted by name."""
    names = sorted(path.name for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{_checksum(folder / name)}  {name}\n" for name in names)


def check_sums(folder: Path, cure: str, *, leave_out: Sequence[str] = ()) -> None:
    """Verify a folder against its checksums; one without checksums (written by an earlier version) passes.

    Args:
        folder: that :func:`write_sums` was called on.
        cure: what to do about a damaged file, as a full sentence.
        leave_out: names of files that are not compared.

    Raises:
        UserError: a file is missing, added or changed; the message names the first.
    """
    try:
        written = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    listed = {name: checksum for checksum, _, name in (line.partition("  ") for line in written)}
    there = {path.name for path in folder.iterdir()} - {SUMS}
    for name in sorted((there | listed.keys()) - set(leave_out)):
        if name not in there:
            raise UserError(f"{folder / name} is missing, which {SUMS} lists. {cure}")
        if name not in listed:
            raise UserError(f"{folder / name} is not listed in {SUMS}: it was added, or that file is damaged. {cure}")
        if _checksum(folder / name) != listed[name]:
            raise UserError(f"{folder / name} is damaged: its SHA-256 is not that in {SUMS}. {cure}")


def _checksum(path: Path) -> str:
    """Return the SHA-256 of a file; only those of large files are cached."""
    return sha256_of(path) if path.stat().st_size >= 1 << 20 else read_sha256(path)
