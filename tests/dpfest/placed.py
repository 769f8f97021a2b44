"""Noise of `chacha20/1` by place, written the slow and obvious way: one variate at a time, in 320 bits.

Shares with the library only the 320-bit variate of given words; the cipher is `cryptography`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dpfest.noise.box_muller import _precisely
from dpfest.noise.gaussian import gaussian_grid
from dpfest.noise.key import NoiseKey

DENSE, ROWS, MAP = 1, 2, 3


def block(key: bytes, *words: int) -> np.ndarray:
    """The eight words of the block whose input ends with four words of 32 bits."""
    cipher = Cipher(algorithms.ChaCha20(key, b"".join(word.to_bytes(4, "little") for word in words)), None)
    return np.frombuffer(cipher.encryptor().update(bytes(64)), dtype="<u8")


def variate(key: bytes, layout: int, counter: int, place: int, deviation: float) -> float:
    """Variate number `place` of a block, on its grid."""
    low, high = counter & (2**32 - 1), counter >> 32
    words, signed = block(key, low, high, layout, 0), block(key, low, high, layout, 0).view(np.int64)
    assert len(words) == 8
    numbers = []
    for word in (place // 2 * 2, place // 2 * 2 + 1):
        more = block(key, low, high, layout, 1 + word).tolist()
        numbers.append(int(signed[word]) << 128 | more[0] << 64 | more[1])
    grid = gaussian_grid(deviation)
    return _precisely(*numbers, place % 2 == 1, deviation / grid) * grid


def stream_key(key: NoiseKey, purpose: str, step: int) -> bytes:
    return hashlib.sha3_256(key.secret + f"dpfest chacha20/1 stream/{step}/{purpose}".encode()).digest()


def on_rows(
    key: NoiseKey, step: int, rows: Sequence[tuple[int, int]], deviation: float, purpose: str = "row noise"
) -> np.ndarray:
    """Noise of rows (number, dimension), end to end."""
    secret = stream_key(key, purpose, step)
    return np.array(
        [
            variate(secret, ROWS, row | (e // 8) << 48, e % 8, deviation)
            for row, dim in rows
            for e in range(dim)
        ]
    )  # fmt: skip


def on_dense(key: NoiseKey, step: int, coordinates: Sequence[int], deviation: float) -> np.ndarray:
    secret = stream_key(key, "dense noise", step)
    return np.array([variate(secret, DENSE, 128 * (e // 1024) + e % 128, e // 128 % 8, deviation) for e in coordinates])


def on_map(key: NoiseKey, step: int, rows: Sequence[int], deviation: float) -> np.ndarray:
    secret = stream_key(key, "map", step)
    return np.array([variate(secret, MAP, row // 8, row % 8, deviation) for row in rows])
