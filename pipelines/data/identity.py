"""Hashes of what the rows of a dataset are made from: equal hashes, equal rows, wherever the files lie."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from pipelines.data.dataset import SCHEMA
from pipelines.data.hashing import HASH_SPECIFICATION
from pipelines.data.source import DataConfig


def data_hash(data: DataConfig) -> str:
    """8 hexadecimal digits that change with whatever changes the rows of a dataset or stream.

    They cover the configuration, the formats and feature recipes of this version, and the source files by
    name, size and all of their content (see :mod:`pipelines.system.checksum`). Where the files lie is left out: data
    may be moved.

    Raises:
        UserError: A source file is missing.
    """
    hashes = day_hashes(data)
    return (content_hash(data, {"days": hashes}) if data.is_stream else hashes[0])[:8]


def day_hashes(data: DataConfig) -> dict[int, str]:
    """What each day is made from, as a hash."""
    return {day: content_hash(data, data.identity(day)) for day in data.day_numbers()}


def content_hash(data: DataConfig, source: dict[str, Any]) -> str:
    """64 hexadecimal digits that change with whatever changes the rows.

    Args:
        data: The data configuration. Where the files lie is left out: data and tokenizers may be moved. So are the
            days that a stream has: what each is made from says more.
        source: What the rows are made from.
    """
    settings = dataclasses.asdict(data)  # type: ignore[call-overload]
    for place in ("path", "tokenizer", *(["days"] if data.is_stream else [])):
        settings.pop(place, None)
    made_of = {"schema": SCHEMA, "hash": HASH_SPECIFICATION, "data": settings, "source": source}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
