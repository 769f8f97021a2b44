"""Compiled loops (``hashing.c``) that make rows of a table; where there is no compiler, numpy gives the same bits.

Texts are read where polars holds them, through Arrow's C stream interface.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dpfest.compiled import load

_POINTER, _WHOLE, _WORD, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_double
_SIGNATURES = {
    "splitmix64": [_POINTER, _WHOLE, _POINTER],
    "add_field": [_POINTER, _WHOLE, _WORD, _POINTER],
    "add_numbers": [_POINTER, _WHOLE, _WORD, _POINTER],
    "standardised": [_POINTER, _WHOLE, _REAL, _REAL, _REAL, _POINTER],
    "keys_of_texts": [_POINTER, _WORD, _WHOLE, _POINTER],
}
_library: Any = None
if sys.byteorder == "little":
    _library = load(Path(__file__).with_name("_hashing"), _SIGNATURES, 2, counts=("keys_of_texts", "standardised"))

_stream_of = ctypes.pythonapi.PyCapsule_GetPointer
_stream_of.restype, _stream_of.argtypes = _POINTER, [ctypes.py_object, ctypes.c_char_p]


def _serves(values: NDArray[Any]) -> bool:
    """Whether a loop may read this array: 64 bits a value, one after the other."""
    return _library is not None and values.flags.c_contiguous and values.dtype.itemsize == 8


def splitmix64(values: NDArray[np.uint64], mixed: NDArray[np.uint64]) -> bool:
    """Write :func:`pipelines.data.hashing.splitmix64` of values to ``mixed``, both [...]; False if no loop serves."""
    if not (_serves(values) and _serves(mixed)):
        return False
    _library.dpfest_splitmix64(values.ctypes.data, values.size, mixed.ctypes.data)
    return True


def add_field(field: NDArray[Any], weight: np.uint64, content: NDArray[np.uint64]) -> bool:
    """Add ``weight`` times the bits of each value of a field [n] to contiguous ``content`` [n], modulo 2**64.

    Returns:
        False if no loop serves.
    """
    if not _serves(field):
        return False
    add = _library.dpfest_add_numbers if field.dtype == np.float64 else _library.dpfest_add_field
    add(field.ctypes.data, len(field), int(weight), content.ctypes.data)
    return True


def standardised(
    values: NDArray[np.float64], mean: float, deviation: float, largest: float, out: NDArray[np.float32]
) -> bool:
    """Write (x - mean) / deviation, at most ``largest`` in size, of each value to ``out`` [n], 0 for what is no number.

    Returns:
        False if no loop serves, or a number is infinite.
    """
    if not (_serves(values) and out.flags.c_contiguous):
        return False
    arguments = (values.ctypes.data, len(values), mean, deviation, largest, out.ctypes.data)
    return bool(_library.dpfest_standardised(*arguments))


def keys_of_texts(texts: pl.Series, blank: int, keys: NDArray[np.uint64]) -> bool:
    """Write the key of each text, ``blank`` for an empty or missing one, to contiguous ``keys`` [n].

    Returns:
        False if no loop serves.
    """
    if _library is None:
        return False
    stream = texts.__arrow_c_stream__()
    found = _library.dpfest_keys_of_texts(_stream_of(stream, b"arrow_array_stream"), blank, len(keys), keys.ctypes.data)
    return bool(found == len(keys))
