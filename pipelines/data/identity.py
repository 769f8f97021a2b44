"""What the rows of a dataset are made from, as a hash: equal hashes, equal rows, wherever the files lie."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from pipelines.data.dataset import SCHEMA
from pipelines.data.hashing import HASH_SPECIFICATION

SOURCE_CHANGED = (
    "The source of {name} has changed while it was read: wait until whoever writes it is done, then preprocess again."
)


def content_hash(data: Any, source: dict[str, Any]) -> str:
    """64 hexadecimal digits that change with whatever changes the rows.

    Args:
        data: The data configuration. Where the files lie is left out: data and tokenizers may be moved. So are the
            days that a stream has: what each is made from says more.
        source: What the rows are made from.
    """
    settings = dataclasses.asdict(data)
    for place in ("path", "tokenizer"):
        settings.pop(place, None)
    if data.is_stream:
        settings.pop("days")
    made_of = {"schema": SCHEMA, "hash": HASH_SPECIFICATION, "data": settings, "source": source}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def day_hashes(data: Any) -> dict[int, str]:
    """What each day of a stream is made from, as a hash."""
    return {day: content_hash(data, data.day_identity(day)) for day in data.day_numbers()}


def data_hash(data: Any) -> str:
    """8 hexadecimal digits that change with whatever changes the rows of a dataset or stream.

    They cover the configuration, the formats and feature recipes of this version, and the source files by
    name, size and all of their content (see :mod:`pipelines.system.checksum`). Where the files lie is left out: data
    may be moved.

    Raises:
        UserError: A source file is missing.
    """
    source = {"days": day_hashes(data)} if data.is_stream else data.identity()
    return content_hash(data, source)[:8]
