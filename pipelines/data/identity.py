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
