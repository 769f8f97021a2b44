"""Keystreams of AES: random words by position (:mod:`dpfest.noise.key` says which, and under which key)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_ZEROS = bytes(1 << 18)  # their encryption in counter mode is the keystream itself
_EXTENSIONS = 1 << 127  # counter of the cipher block that extends word 0


class Keystream:
    """AES-256 in counter mode, read as 64-bit words, in order or from any position.

    Args:
        key: 32 bytes, used for no other keystream.

    Attributes:
        secret: the key.
        position: position of the next draw's first word: that of a block of the cipher.
        placed: whether the noise of a coordinate has a place of its own (:mod:`dpfest.noise.placed_keystream`).
    """

    placed = False
    _block = 2  # words of a block of the cipher

    def __init__(self, key: bytes) -> None:
        self.secret, self.position = key, 0

    def words(self, count: int) -> Words:
        """Return the next words, uniform in 0 .. 2^64 - 1, ``[count]``."""
        return self.at(self.reserve(count), count)

    def at(self, position: int, count: int) -> Words:
        """Return the words from ``position`` (of a block) on, ``[count]``."""
        out = np.empty(count, dtype=np.uint64)
        self.reader(position)(out)
        return out

    def reserve(self, count: int) -> int:
        """Reserve this many words for a draw that reads them itself; return the position of the first."""
        first = self.position
        self.position += -(-count // self._block) * self._block
        return first

    def reader(self, position: int) -> Callable[[NDArray[np.generic]], None]:
        """Return a function that fills one array of 64-bit items after another, from word ``position`` on.

        Position and length of all arrays but the last must be whole blocks of the cipher. Threads that fill parts of a
        draw use a reader each.
        """
        counter = modes.CTR((position // 2).to_bytes(16, "big"))
        encryptor = Cipher(algorithms.AES256(self.secret), counter).encryptor()
        zeros = memoryview(_ZEROS)

        def fill(out: NDArray[np.generic]) -> None:
            data = out.view(np.uint8).data
            for start in range(0, len(data), len(zeros)):
                part = data[start : start + len(zeros)]
                encryptor.update_into(zeros[: len(part)], part)
            if not np.little_endian:
                out.byteswap(inplace=True)

        return fill

    def extended(self, word: int, position: int) -> int:
        """Extend ``word``, at ``position``, to an integer of 192 bits with 128 lower bits of its own."""
        cipher = Cipher(algorithms.AES256(self.secret), modes.CTR((_EXTENSIONS + position).to_bytes(16, "big")))
        return word << 128 | int.from_bytes(cipher.encryptor().update(bytes(16)), "big")
