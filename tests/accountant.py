"""Epsilons that a session's tests have computed: in each of its processes that imports this, none is computed twice.

The values are the accountant's own, of this session. Tests of the accountant itself ask for values that no other test
asks for, so they are computed where they are tested.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpfest.accounting import accountant

FOLDER = "DPFEST_TESTS_EPSILONS"
"""The environment variable that names the folder of the session."""


def remembered(compute: Callable[..., float], folder: Path) -> Callable[..., float]:
    """``compute``, a function of its arguments' texts, with its values in ``folder``."""

    def value(*arguments: Any) -> float:
        entry = folder / hashlib.sha256(repr(arguments).encode()).hexdigest()
        if entry.exists():
            return float.fromhex(entry.read_text())
        found = compute(*arguments)
        partial = entry.with_suffix(f".{os.getpid()}")
        partial.write_text(found.hex())
        partial.rename(entry)
        return found

    return lru_cache(maxsize=1024)(value)


computed = accountant._epsilon
"""The accountant's own, which computes."""

accountant._epsilon = remembered(accountant._epsilon, Path(os.environ[FOLDER]))


def forgetful(config: Any) -> Callable[[int], float]:
    """A turn of :func:`pipelines.bench.accounting.calibration` that computes what no cache of its own holds."""
    from pipelines.bench.accounting import calibration

    accountant._epsilon = computed
    return calibration(config)
