"""Compiled loops (``kernels.c``) for what numpy and torch can do only in many passes over memory.

Each has a reference in Python, which runs where no compiler was at hand when dpfest was installed, on GPUs, and under
``DPFEST_COMPILED=0``. Tests hold the loops to their references: bit for bit where noise is drawn.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_VERSION = 1  # of kernels.c, as its dpfest_kernels_version() says
_POINTER, _WHOLE, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_ARGUMENTS = {
    "nearest_normals": [_POINTER, _WHOLE, _REAL, _POINTER, *[_REAL] * 3, *[_POINTER] * 4],
    "add_units_float": [_POINTER, _POINTER, _WHOLE, _REAL, _POINTER],
    "add_units_double": [_POINTER, _POINTER, _WHOLE, _REAL, _POINTER],
}


def _load() -> Any:
    """Return the compiled library; None where there is none, or it is not wanted."""
    if os.environ.get("DPFEST_COMPILED", "1") == "0":
        return None
    for suffix in EXTENSION_SUFFIXES:
        file = Path(__file__).with_name(f"_kernels{suffix}")
        if not file.exists():
            continue
        try:
            library = ctypes.CDLL(str(file))
            if library.dpfest_kernels_version() == _VERSION:
                break
            fault = "it was compiled from other sources"
        except (OSError, AttributeError) as error:
            fault = str(error)
        warnings.warn(f"{file} is not used ({fault}), so steps are slower: install dpfest again.", stacklevel=2)
    else:
        return None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, f"dpfest_{name}")
        function.argtypes, function.restype = arguments, _WHOLE if name == "nearest_normals" else None
    return library


library: Any = _load()
"""The compiled library, or None."""


def nearest_normals(
    words: NDArray[np.int64],
    count: int,
    deviation: float | Floats,
    *,
    most: float,
    least: float,
    highest: float,
    units: Floats,
    unsure: tuple[NDArray[np.int64], Floats, Floats],
) -> int:
    """Write the nearest whole numbers to normal variates to ``units``; return how many are unsure.

    Args:
        words: signed words of the p radii, then of the p angles, contiguous ``[2 p]``.
        count: number of variates, 2 p or 2 p - 1.
        deviation: standard deviation of all, or of each, ``[count]``.
        most: distance from its unit beyond which a variate is unsure.
        least, highest: bounds of ln u beyond which a pair is unsure.
        units: room for the p cosines, then the p sines, ``[2 p]``.
        unsure: room for the place of each unsure variate, its distance and its ln u, each ``[2 p]``.
    """
    of_each = None if isinstance(deviation, float) else np.ascontiguousarray(deviation)
    return int(
        library.dpfest_nearest_normals(
            words.ctypes.data,
            count,
            deviation if of_each is None else 1.0,
            None if of_each is None else of_each.ctypes.data,
            most,
            least,
            highest,
            units.ctypes.data,
            *(array.ctypes.data for array in unsure),
        )
    )


def add_units(values: NDArray[np.float32 | np.float64], units: Floats, size: float | Floats) -> None:
    """Round contiguous ``values [n]`` to multiples of ``size``, one or one of each, and add ``units [n]`` of it."""
    function = library.dpfest_add_units_float if values.dtype == np.float32 else library.dpfest_add_units_double
    of_each = None if isinstance(size, float) else np.ascontiguousarray(size)
    function(
        values.ctypes.data,
        units.ctypes.data,
        len(values),
        size if of_each is None else 1.0,
        None if of_each is None else of_each.ctypes.data,
    )
