"""The one hash of the project: from a categorical value to a table row, and from a row number to a split.

Both are SplitMix64 (Steele, Lea and Flood, 2014), stated in full here and in every dataset.json, so that a
dataset can be remade, or a new row looked up, by any program in any language:

    splitmix64(x) = z ^ (z >> 31),  z = (y ^ (y >> 27)) * 0x94D049BB133111EB,
                                    y = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9,  w = x + 0x9E3779B97F4A7C15
    (64-bit unsigned arithmetic, wrapping)

A categorical value has a 64-bit *key*: 8 hexadecimal digits read as an unsigned 32-bit number, or 2**32
(which no such number can be) for a blank. Its bucket in feature j = 0..25 with V rows is
``splitmix64(key ^ splitmix64(j)) mod V``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLANK_KEY = 2**32

HASH_SPECIFICATION = {
    "key": "8 hexadecimal digits as an unsigned 32-bit number; blank is 2**32",
    "bucket": "splitmix64(key ^ splitmix64(feature)) mod vocabulary_size, feature counted from 0",
    "split": "u = (splitmix64(row ^ splitmix64(file ^ splitmix64(seed))) >> 11) / 2**53, both from 0; "
    "train if u < train, validation if u < train + validation, else test",
    "splitmix64": "w = x + 0x9E3779B97F4A7C15; y = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9; "
    "z = (y ^ (y >> 27)) * 0x94D049BB133111EB; z ^ (z >> 31); 64-bit unsigned, wrapping",
}


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix each 64-bit number; a bijection, element by element, of any shape."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _mixed_number(value: int) -> np.uint64:
    return np.uint64(splitmix64(np.array([value], dtype=np.uint64))[0])


def bucket(keys: NDArray[np.uint64], feature: int, size: int) -> NDArray[np.int32]:
    """Row of each key in the table of ``feature`` (0..25) with ``size`` rows.

    Args:
        keys: Keys of one feature, shape [n].
        feature: Position of the feature, from 0.
        size: Number of rows of its table, 1..2**31 - 1.

    Returns:
        Rows 0..size-1, shape [n].
    """
    mixed = splitmix64(keys ^ _mixed_number(feature))
    mixed %= np.uint64(size)
    return mixed.astype(np.int32)


def row_uniforms(rows: NDArray[np.uint64], file: int, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each row of a file, fixed by the row's number, the file's and the seed."""
    stream = int(_mixed_number(file ^ int(_mixed_number(seed))))
    # 53 bits: the most that a float64 below 1 can carry, so that the result never rounds up to 1.
    return (splitmix64(rows ^ np.uint64(stream)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
