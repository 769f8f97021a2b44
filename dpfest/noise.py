"""The randomness on which the guarantee rests: one key, from which every noise and every batch is derived.

A :class:`NoiseKey` holds 256 bits.  Each draw names its *purpose* and its *step*, and SHAKE-256 turns
(key, purpose, step, block) into key and counter of a fresh Philox generator, so that

* a step needs no generator state from the step before it: a run that was killed and resumed at step ``t``
  draws at ``t`` what it would have drawn;
* two purposes, two steps or two blocks of one draw never share a stream;
* a draw does not depend on how many threads filled it.

Without a fixed seed the key comes from the operating system.  Whoever knows the key can subtract the noise: it is
part of the private state, and epsilon holds only while it stays secret.

torch's own CPU generator will not do: its seed keeps 32 bits, few enough to try them all, and its float32 normals
end at 5.77 standard deviations, so that an output beyond would betray an example with a probability far above delta.
Here radii come from 32 bits, large ones (one in 65,536) from 63, and reach 9.3 standard deviations.
Philox is a good generator and not a proven cipher; that, like the rounding of floats (Mironov, 2012), is outside
the guarantee.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 17  # normal variates that one generator fills: a draw is cut into such blocks, filled in parallel
_AT_ONCE = 1 << 15  # of them, in arrays that stay in the cache
_COARSE = 1 << 16  # a radius whose 32 bits are below takes 31 more: one in 65,536


@dataclass(frozen=True)
class NoiseKey:
    """A 256-bit key, ``secret``, and whether it follows from a user's seed (reproducible then, and no secret)."""

    secret: bytes
    fixed: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != 32:
            raise ValueError(f"a noise key has 32 bytes, not {len(self.secret)}")

    def __repr__(self) -> str:  # the key must not reach a log through a traceback
        return f"NoiseKey(<secret>, fixed={self.fixed})"

    @classmethod
    def fresh(cls) -> NoiseKey:
        """A key drawn from the operating system's entropy."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: int, purpose: str = "") -> NoiseKey:
        """The key that a fixed seed stands for; for reproduction on public data only.

        Args:
            seed: any integer.
            purpose: names what the key is for (a run's hash).  Two releases under one key would share their noise,
                and their difference would show the data.
        """
        return cls(hashlib.sha256(f"dpfest noise seed {seed} {purpose}".encode()).digest(), fixed=True)

    def _digest(self, purpose: str, step: int, block: int, size: int) -> bytes:
        message = self.secret + f"/{purpose}/{step}/{block}".encode()
        return hashlib.shake_256(message).digest(size)

    def generator(self, purpose: str, step: int = 0, block: int = 0) -> np.random.Generator:
        """A generator of 384 bits of state that are a function of the key and these three alone."""
        words = np.frombuffer(self._digest(purpose, step, block, 48), dtype=np.uint64)
        return np.random.Generator(np.random.Philox(counter=words[:4], key=words[4:]))

    def normal(
        self, purpose: str, step: int, size: int, device: torch.device | str = "cpu", deviation: float = 1.0
    ) -> Tensor:
        """Normal variates of mean 0 and this standard deviation, float32, shape ``[size]``, on ``device``.

        On the CPU by the method of Box and Muller (1958), large radii from 63 bits; on a GPU by torch's Philox under a
        64-bit seed, in float64, whose tails reach 8.5 standard deviations, and then rounded.
        """
        if torch.device(device).type != "cpu":
            seed = int.from_bytes(self._digest(purpose, step, 0, 8), "little", signed=True)
            wide = torch.empty(size, device=device, dtype=torch.float64)
            return wide.normal_(0, deviation, generator=torch.Generator(device=device).manual_seed(seed)).float()
        out = np.empty(size, dtype=np.float32)
        blocks = [out[start : start + BLOCK] for start in range(0, size, BLOCK)]

        def fill(number: int) -> None:
            generator = self.generator(purpose, step, number)
            for start in range(0, len(blocks[number]), _AT_ONCE):
                _box_muller(generator.bit_generator.random_raw, deviation, blocks[number][start : start + _AT_ONCE])

        if len(blocks) == 1:
            fill(0)
        elif blocks:
            with ThreadPoolExecutor(max(1, min(len(blocks), torch.get_num_threads()))) as pool:
                list(pool.map(fill, range(len(blocks))))
        return torch.from_numpy(out)


def _box_muller(words: Callable[[int], np.ndarray], deviation: float, out: np.ndarray) -> None:
    """Fill float32 ``out`` with normal variates: whole arrays at a time, four times as fast as one by one.

    Each pair takes one 64-bit word: 32 bits for the radius, 32 for the angle.  Where the radius is so large that its
    steps would show, 31 more bits go below the 32.
    """
    pairs = (len(out) + 1) // 2
    halves = words(pairs).view(np.uint32)
    radius = halves[:pairs].astype(np.float32)
    if halves[:pairs].min() < _COARSE:
        rare = np.flatnonzero(halves[:pairs] < _COARSE)
        below = (words(len(rare)) >> np.uint64(33)) | np.uint64(1)  # odd, so that the whole is not zero
        radius[rare] = halves[rare] + below * 2.0**-31
    radius *= np.float32(2.0**-32)
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    radius *= np.float32(deviation)
    angle = halves[pairs:].view(np.int32).astype(np.float32)
    angle *= np.float32(math.pi * 2.0**-31)
    np.multiply(radius, np.cos(angle), out=out[:pairs])
    rest = len(out) - pairs
    np.multiply(radius[:rest], np.sin(angle[:rest]), out=out[pairs:])
