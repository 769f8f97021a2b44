"""Where compiled loops are loaded from: a shared library beside the module that calls it, or none."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any


def load(
    stem: Path, signatures: Mapping[str, Sequence[Any]], version: int, *, counts: Collection[str] = ()
) -> ctypes.CDLL | None:
    """Return a compiled library; None where there is none, or ``DPFEST_COMPILED=0`` says that it is not wanted.

    Args:
        stem: its path without the ending, as ``dpfest/_kernels``, whose functions are named ``dpfest_...``.
        signatures: the types of each function's arguments, by its name without ``dpfest_``.
        version: what ``dpfest_kernels_version()`` says, here of ``_kernels``: a library of older sources says another.
        counts: functions that return a count; the others return nothing.
    """
    if os.environ.get("DPFEST_COMPILED", "1") == "0":
        return None
    for suffix in EXTENSION_SUFFIXES:
        file = stem.with_name(stem.name + suffix)
        if not file.exists():
            continue
        try:
            library = ctypes.CDLL(str(file))
            for name, arguments in signatures.items():
                function = getattr(library, f"dpfest_{name}")
                function.argtypes, function.restype = arguments, ctypes.c_int64 if name in counts else None
            if getattr(library, f"dpfest{stem.name}_version")() == version:
                return library
            fault = "it was compiled from other sources, or without strict floating point"
        except (OSError, AttributeError) as error:
            fault = str(error)
        warnings.warn(f"{file} is not used ({fault}), which is slower: install dpfest again.", stacklevel=3)
    return None
