"""Make the next item while this one is used."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")


def ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield items, none of them None, in their order; a thread makes the next one meanwhile: two are in memory."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = maker.submit(next, items, None)
            yield item
