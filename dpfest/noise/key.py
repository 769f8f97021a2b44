"""Noise key and keystreams: the source of all random numbers on which the guarantee rests.

A :class:`NoiseKey` holds 256 bits and names a cipher. Each draw names its *purpose* and its *step*; SHA3-256 turns
(key, purpose, step) into the key of that cipher, whose output is the draw's :class:`Keystream`. So

* a step needs no generator state from the step before it: a run that was killed and resumed at step ``t``
  draws at ``t`` what it would have drawn;
* two purposes or two steps never share a stream;
* a word depends on its position alone, so that a draw does not depend on how many threads filled it.

There are two ciphers, each the same on every device. Under ``aes256-ctr``, a CPU's default (AES-256 in counter mode,
NIST SP 800-38A), a draw takes the stream's words in order: row noise one word after another over the list of a step's
surviving rows. So a row's noise depends on which rows survive beside it, and a part of a draw must know its position.

Under ``chacha20/1``, a GPU's default (the block function of ChaCha20, RFC 8439), noise on rows, on dense parameters and
on the map is a function of (key, purpose, step, row, coordinate) alone, by the layouts of :mod:`dpfest.noise.places`.
It does not matter with which other rows, in which order or in how many parts a row is noised, and any thread of a GPU
can compute its own words. Whoever draws therefore says which rows it draws for; AES pays no heed to it. Rows are
numbered within their shard, and a shard keeps its own key, derived from the run's. All ranks hold the run's key and
trust each other with it, as before; one process is one shard, under the run's key itself.
Draws that are for no coordinate (batches, gaps, subsets, exponential variates) read the stream in order, as with AES.

:mod:`dpfest.noise.gaussian`, :mod:`dpfest.noise.bernoulli` and :mod:`dpfest.noise.distributions` turn the words into
Gaussian noise, batches and survivors.

Formal guarantee: the words are independent and uniform to every adversary who cannot distinguish the cipher under an
unknown key from what it stands for. For AES-256 that is a random permutation; the distance of n blocks of one from
random blocks, n^2 / 2^129 (the PRP/PRF switching lemma), is below 2^-61 for a stream of 2^34 blocks, 256 GiB of noise
in one draw. For ChaCha20 it is a random function, and there is no such term. No derived key serves both: one of
``chacha20/1`` is derived under that name.

Without a fixed seed the key comes from the operating system. Whoever knows the key can subtract the noise: it is part
of the private state, and epsilon holds only while it stays secret.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpfest.errors import UserError
from dpfest.noise import chacha
from dpfest.noise.alone import OneProcess
from dpfest.noise.keystream import Keystream, Words
from dpfest.noise.placed_keystream import ChaCha

AES, CHACHA = "aes256-ctr", "chacha20/1"
CIPHERS = (AES, CHACHA)


@dataclass(frozen=True)
class NoiseKey(OneProcess):
    """A 256-bit key.

    Attributes:
        secret: the key.
        fixed: whether it derives from a user's seed (then reproducible, and not secret).
        cipher: of its keystreams, one of :data:`CIPHERS`.

    Raises:
        UserError: there is no such cipher.
    """

    secret: bytes
    fixed: bool = False
    cipher: str = AES

    def __post_init__(self) -> None:
        if len(self.secret) != 32:
            raise ValueError(f"a noise key has 32 bytes, not {len(self.secret)}")
        if self.cipher not in CIPHERS:
            raise UserError(f"cipher={self.cipher!r} must be one of {', '.join(CIPHERS)}.")

    def __repr__(self) -> str:  # the key must not reach a log through a traceback
        return f"NoiseKey(<secret>, fixed={self.fixed}, cipher={self.cipher!r})"

    @classmethod
    def fresh(cls, cipher: str = AES) -> NoiseKey:
        """Return a key drawn from the operating system's entropy."""
        return cls(secrets.token_bytes(32), cipher=cipher)

    @classmethod
    def from_seed(cls, seed: int, purpose: str = "", cipher: str = AES) -> NoiseKey:
        """Return the key derived from a fixed seed; for reproduction on public data only.

        Args:
            seed: any integer.
            purpose: what the key is for (a run's hash). Two releases under one key would share their noise, and their
                difference would reveal the data.
            cipher: of its keystreams.
        """
        return cls(hashlib.sha256(f"dpfest noise seed {seed} {purpose}".encode()).digest(), True, cipher)

    def derive(self, purpose: str, number: int = 0) -> NoiseKey:
        """Return the key of a part (a period of a stream, a fork), whose random numbers are independent of all others.

        Args:
            purpose: kind of part.
            number: index of the part.

        Raises:
            UserError: this is another process than the key's; its random numbers could serve two releases.
        """
        return NoiseKey(self._digest("key", purpose, number), self.fixed, self.cipher)

    def stream(self, purpose: str, step: int = 0) -> Keystream:
        """Return the random words of a draw, from the first: a function of key, purpose and step alone.

        Raises:
            UserError: as :meth:`derive`.
        """
        kind = Keystream if self.cipher == AES else ChaCha
        return kind(self._digest("stream", purpose, step))

    def images(self) -> tuple[int, Callable[[Words, Words], Words]]:
        """Return the cipher's block function under this very key, which must serve nothing else.

        Returns:
            Number of 64-bit words of a block, and the function: from two halves of 128 bits of input, ``[n]`` each, to
            the words ``[n, words]``.
        """
        self.refuse_another_process()
        if self.cipher == CHACHA:
            return 8, lambda first, second: chacha.blocks(self.secret, first, second).reshape(-1, 8)
        encrypt = Cipher(algorithms.AES256(self.secret), modes.ECB()).encryptor()

        def image(first: Words, second: Words) -> Words:
            blocks = np.stack([first, second], axis=1)
            return np.frombuffer(encrypt.update(blocks.tobytes()), dtype=np.uint64).reshape(-1, 2)

        return 2, image

    def _digest(self, kind: str, purpose: str, number: int) -> bytes:
        self.refuse_another_process()
        under = "" if self.cipher == AES else f"{self.cipher} "
        return hashlib.sha3_256(self.secret + f"dpfest {under}{kind}/{number}/{purpose}".encode()).digest()

    @property
    def named(self) -> dict[str, str]:
        """What a state says of the cipher: nothing of AES, which states that name none are under."""
        return {} if self.cipher == AES else {"cipher": self.cipher}

    def state(self) -> dict[str, Any]:
        """Return the key for a state, which it makes private."""
        return {"key": torch.tensor(list(self.secret), dtype=torch.uint8), **self.named}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], fixed: bool) -> NoiseKey:
        """Return the key that :meth:`state` put into a state."""
        return cls(bytes(state["key"].tolist()), fixed, state.get("cipher", AES))


def default_cipher(device: torch.device) -> str:
    """Return the cipher of a key for a model on this device, unless one is named."""
    return CHACHA if device.type == "cuda" else AES
