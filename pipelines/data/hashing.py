"""The hash of categorical values to table rows, and of line contents to splits.

Both are SplitMix64 (Steele, Lea and Flood, 2014), stated in full here and in every dataset.json, so that a
dataset can be remade, or a new row looked up, by any program in any language:

    splitmix64(x) = z ^ (z >> 31),  z = (y ^ (y >> 27)) * 0x94D049BB133111EB,
                                    y = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9,  w = x + 0x9E3779B97F4A7C15
    (64-bit unsigned arithmetic, wrapping)

A categorical value has a 64-bit *key*: 8 hexadecimal digits read as an unsigned 32-bit number, or 2**32
(which no such number can be) for a blank. Its bucket in feature j = 0..25 with V rows is
``splitmix64(key ^ splitmix64(j)) mod V``.

A line's split is a function of its *content* alone (all fields including the label), not of its number, its file or
other lines, so adding or removing one line moves no other. Equal lines share their split. To tell them apart by rank
would require a table of all lines seen (45.8 million in Criteo Kaggle, 195 million per day of its 1 TB) and would allow
training on a copy of a test line.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pipelines.data import compiled

BLANK_KEY = 2**32
Field = NDArray[np.uint64] | NDArray[np.int64] | NDArray[np.float64]
"""A column of lines as 64 bits a value."""

HASH_SPECIFICATION = {
    "key": "8 hexadecimal digits as an unsigned 32-bit number; blank is 2**32",
    "bucket": "splitmix64(key ^ splitmix64(feature)) mod vocabulary_size, feature counted from 0",
    "content": "the sum over a line's fields x_0 (its label), x_1, … of x_j * (splitmix64(j) | 1), modulo 2**64; a "
    "number is its two's complement (blank: 0), a category its key, a text the first 8 bytes, big-endian, of its "
    "BLAKE2b of 8 bytes (blank: 2**32)",
    "split": "u = (splitmix64(content ^ splitmix64(seed)) >> 11) / 2**53; the first split whose share, added to those "
    "before it, is above u; train, then validation, then test",
    "splitmix64": "w = x + 0x9E3779B97F4A7C15; y = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9; "
    "z = (y ^ (y >> 27)) * 0x94D049BB133111EB; z ^ (z >> 31); 64-bit unsigned, wrapping",
}


def splitmix64(values: NDArray[np.uint64], out: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Mix each 64-bit number; a bijection, element by element, of any shape; into ``out`` if it is given."""
    mixed = np.empty_like(values) if out is None else out
    if compiled.splitmix64(values, mixed):
        return mixed
    np.add(values, np.uint64(0x9E3779B97F4A7C15), out=mixed)
    for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(31)
    return mixed


@functools.cache
def _mixed_number(value: int) -> np.uint64:
    return np.uint64(splitmix64(np.array([value], dtype=np.uint64))[0])


def bucket(keys: NDArray[np.uint64], feature: int, size: int) -> NDArray[np.int32]:
    """Return the row of each key in the table of ``feature`` (0..25) with ``size`` rows.

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


def text_key(text: str) -> int:
    """Return the 64-bit key of a text, for use as a field of :func:`line_content`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def text_keys(texts: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64-bit keys of n texts by SplitMix64.

    ``h = splitmix64(length in bytes)``, then ``h = splitmix64(h ^ w)`` for each 8 bytes w, a little-endian number, the
    last ones filled up with zeros. Two texts share a key with probability 2**-64, unless somebody made them to.

    Args:
        texts: The texts one after the other, in UTF-8.
        offsets: Where each begins, and where the last ends, shape [n + 1].

    Returns:
        Shape [n].
    """
    starts, lengths = offsets[:-1], np.diff(offsets)
    keys = splitmix64(lengths.view(np.uint64))
    padded = np.concatenate([texts, np.zeros(_WORD, np.uint8)])
    words = np.ndarray((len(texts) + 1,), f"V{_WORD}", padded, strides=(1,))  # one at every byte
    for begin in range(0, int(lengths.max(initial=0)), _WORD):
        longer = np.flatnonzero(lengths > begin)
        word = words[starts[longer] + begin].view("<u8") & _FIRST_BYTES.take(lengths[longer] - begin, mode="clip")
        keys[longer] = splitmix64(keys[longer] ^ word)
    return keys


_WORD = 8
_FIRST_BYTES = np.array([2 ** (8 * count) - 1 for count in range(_WORD + 1)], np.uint64)


def line_content(fields: Iterable[Field]) -> NDArray[np.uint64]:
    """Hash the content of n lines to 64 bits each: different lines collide with probability 2**-64.

    Args:
        fields: The columns of the lines in their order, the label first, each of shape [n]; of real numbers the bits
            count, those of 0 for -0 and for what is no number.

    Returns:
        Shape [n].
    """
    content = np.zeros(0, np.uint64)
    for place, field in enumerate(fields):
        content = content if place else np.zeros(len(field), np.uint64)
        weight = _mixed_number(place) | np.uint64(1)
        if not compiled.add_field(field, weight, content):
            content += weight * _bits(field)
    return content


def _bits(field: Field) -> NDArray[np.uint64]:
    """Return the 64 bits of each value, those of 0 for -0 and what is no number."""
    if field.dtype != np.float64:
        return field.view(np.uint64)
    bits = (field + 0.0).view(np.uint64)
    bits[np.isnan(field)] = 0
    return bits


def content_uniforms(content: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) per line, a function of its content and the public seed, shape [n]."""
    # 53 bits, the precision of a float64, so that the result never rounds up to 1.
    return (splitmix64(content ^ _mixed_number(seed)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
