"""Noise key and keystreams: the source of all random numbers on which the guarantee rests.

A :class:`NoiseKey` holds 256 bits. Each draw names its *purpose* and its *step*; SHA3-256 turns (key, purpose, step)
into the key of an AES-256 cipher, whose counter mode (NIST SP 800-38A) is the draw's :class:`Keystream`. So

* a step needs no generator state from the step before it: a run that was killed and resumed at step ``t``
  draws at ``t`` what it would have drawn;
* two purposes or two steps never share a stream;
* a word depends on its position alone, so that a draw does not depend on how many threads filled it.

:mod:`dpfest.gaussian` and :mod:`dpfest.distributions` turn the words into Gaussian noise, batches and survivors.

Formal guarantee: the words are independent and uniform to every adversary who cannot distinguish AES-256 under an
unknown key from a random permutation; the distance of n blocks of a random permutation from random ones, n^2 / 2^129
(the PRP/PRF switching lemma), is below 2^-61 for a stream of 2^34 blocks, 256 GiB of noise in one draw.

Without a fixed seed the key comes from the operating system. Whoever knows the key can subtract the noise: it is part
of the private state, and epsilon holds only while it stays secret.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dpfest.alone import OneProcess

_ZEROS = bytes(1 << 18)  # their encryption in counter mode is the keystream itself
_EXTENSIONS = 1 << 127  # counter of the cipher block that extends word 0


@dataclass(frozen=True)
class NoiseKey(OneProcess):
    """A 256-bit key, ``secret``, and whether it derives from a user's seed (then reproducible, and not secret)."""

    secret: bytes
    fixed: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != 32:
            raise ValueError(f"a noise key has 32 bytes, not {len(self.secret)}")

    def __repr__(self) -> str:  # the key must not reach a log through a traceback
        return f"NoiseKey(<secret>, fixed={self.fixed})"

    @classmethod
    def fresh(cls) -> NoiseKey:
        """Return a key drawn from the operating system's entropy."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: int, purpose: str = "") -> NoiseKey:
        """Return the key derived from a fixed seed; for reproduction on public data only.

        Args:
            seed: any integer.
            purpose: what the key is for (a run's hash). Two releases under one key would share their noise, and their
                difference would reveal the data.
        """
        return cls(hashlib.sha256(f"dpfest noise seed {seed} {purpose}".encode()).digest(), fixed=True)

    def derive(self, purpose: str, number: int = 0) -> NoiseKey:
        """Return the key of a part (a period of a stream, a fork), whose random numbers are independent of all others.

        Args:
            purpose: kind of part.
            number: index of the part.

        Raises:
            UserError: this is another process than the key's; its random numbers could serve two releases.
        """
        return NoiseKey(self._digest("key", purpose, number), self.fixed)

    def stream(self, purpose: str, step: int = 0) -> Keystream:
        """Return the random words of a draw, from the first: a function of key, purpose and step alone.

        Raises:
            UserError: as :meth:`derive`.
        """
        return Keystream(self._digest("stream", purpose, step))

    def _digest(self, kind: str, purpose: str, number: int) -> bytes:
        self.refuse_another_process()
        return hashlib.sha3_256(self.secret + f"dpfest {kind}/{number}/{purpose}".encode()).digest()


class Keystream:
    """AES-256 in counter mode, read as 64-bit words, in order or from any position.

    Args:
        key: 32 bytes, used for no other keystream.

    Attributes:
        position: position of the next draw's first word; even.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher, self.position = algorithms.AES256(key), 0

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next words, uniform in 0 .. 2^64 - 1, ``[count]``."""
        return self.at(self.reserve(count), count)

    def at(self, position: int, count: int) -> NDArray[np.uint64]:
        """Return the words from ``position`` (even) on, ``[count]``."""
        out = np.empty(count, dtype=np.uint64)
        self.reader(position)(out)
        return out

    def reserve(self, count: int) -> int:
        """Reserve this many words for a draw that reads them itself; return the position of the first."""
        first = self.position
        self.position += count + count % 2  # a block of the cipher is two words
        return first

    def reader(self, position: int) -> Callable[[NDArray[np.generic]], None]:
        """Return a function that fills one array of 64-bit items after another, from word ``position`` (even) on.

        All arrays but the last must have even length. Threads that fill parts of a draw use a reader each.
        """
        encryptor = Cipher(self._cipher, modes.CTR((position // 2).to_bytes(16, "big"))).encryptor()
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
        counter = modes.CTR((_EXTENSIONS + position).to_bytes(16, "big"))
        return word << 128 | int.from_bytes(Cipher(self._cipher, counter).encryptor().update(bytes(16)), "big")
