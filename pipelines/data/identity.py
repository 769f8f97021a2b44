"""Content hashes of datasets: equal hashes imply equal rows, wherever the files are."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from pipelines.data.clicks.vocabulary import OF_NOISED_COUNTS
from pipelines.data.dataset import ROWS_SCHEMA
from pipelines.data.hashing import HASH_SPECIFICATION
from pipelines.data.source import DataConfig

LATER = ("split_by", "numeric_share")
"""Settings that earlier versions lacked: null is as if there were none."""


def data_hash(data: DataConfig) -> str:
    """Return 8 hexadecimal digits over everything that determines the rows of a dataset or stream, but a secret key of
    its vocabulary.

    They cover the configuration, the formats and feature recipes of this version, and name, size and entire content of
    the source files (see :mod:`pipelines.system.checksum`), but not their folder: data may be moved.

    Raises:
        UserError: A source file is missing.
    """
    return hash_of_days(data, day_hashes(data))


def hash_of_days(data: DataConfig, hashes: dict[int, str]) -> str:
    """Return :func:`data_hash`, given the content hash of each day."""
    return (content_hash(data, {"days": hashes}) if data.is_stream else hashes[0])[:8]


def day_hashes(data: DataConfig) -> dict[int, str]:
    """Return the content hash of each day."""
    return {day: content_hash(data, data.identity(day)) for day in data.day_numbers()}


def content_hash(data: DataConfig, source: dict[str, Any]) -> str:
    """Return 64 hexadecimal digits over everything that determines the rows.

    Args:
        data: The data configuration. Excluded are paths, since data, tokenizers and code may be moved, and the days of
            a stream, which ``source`` identifies.
        source: Identity of the source, from :meth:`DataConfig.identity`.
    """
    settings = dataclasses.asdict(data)  # type: ignore[call-overload]
    for place in ("path", "tokenizer", "target", *(["days"] if data.is_stream else [])):
        settings.pop(place, None)
    for name in LATER:
        if settings.get(name) is None:
            settings.pop(name, None)  # as before there was one
    vocabulary = settings.get("vocabulary") or {}
    for name in OF_NOISED_COUNTS if vocabulary.get("policy") != "private" else ():
        vocabulary.pop(name, None)
    made_of = {"schema": ROWS_SCHEMA, "hash": HASH_SPECIFICATION, "data": settings, "source": source}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
