"""The randomness on which the guarantee rests: one key, from which every noise and every batch is derived.

A :class:`NoiseKey` holds 256 bits.  Each draw names its *purpose* and its *step*, and SHAKE-256 turns
(key, purpose, step, block) into the full state of a fresh generator, so that

* a step needs no generator state from the step before it: a run that was killed and resumed at step ``t``
  draws at ``t`` what it would have drawn;
* two purposes, two steps or two blocks of one draw never share a stream;
* a draw does not depend on how many threads filled it.

Without a fixed seed the key comes from the operating system.  Whoever knows the key can subtract the noise: it is
part of the private state, and epsilon holds only while it stays secret.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 18
"""Normal variates that one generator fills: a draw is cut into such blocks, filled in parallel."""

_MT19937_WORDS = 624
_TORCH_STATE_BYTES = 5056
_TORCH_HEADER_BYTES = 24
"""torch's CPU generator state: seed u64, left i32, seeded i32, next u64, then 624 words of u64 and a tail."""


@dataclass(frozen=True)
class NoiseKey:
    """A 256-bit key and whether it was fixed by the user (and is then reproducible, and no secret).

    Args:
        secret: 32 bytes.
        fixed: True where the key follows from a ``privacy.noise_seed``.
    """

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
    def from_seed(cls, seed: int) -> NoiseKey:
        """The key that a fixed seed stands for; for reproduction on public data only."""
        return cls(hashlib.sha256(f"dpfest noise seed {seed}".encode()).digest(), fixed=True)

    def _digest(self, purpose: str, step: int, block: int, size: int) -> bytes:
        message = self.secret + f"/{purpose}/{step}/{block}".encode()
        return hashlib.shake_256(message).digest(size)

    def generator(self, purpose: str, step: int = 0) -> np.random.Generator:
        """A NumPy generator for everything that is not a long run of normal variates."""
        words = np.frombuffer(self._digest(purpose, step, 0, 32), dtype=np.uint32)
        return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(words.tolist())))

    def _torch_cpu(self, purpose: str, step: int, block: int) -> torch.Generator:
        # manual_seed keeps 32 bits on the CPU, few enough to try them all: the whole Mersenne state is set instead.
        generator = torch.Generator()
        state = generator.get_state()
        if state.numel() != _TORCH_STATE_BYTES:
            raise RuntimeError("torch's CPU generator has another state layout than dpfest knows (tested with 2.13)")
        words = np.frombuffer(self._digest(purpose, step, block, 4 * _MT19937_WORDS), dtype=np.uint32)
        end = _TORCH_HEADER_BYTES + 8 * _MT19937_WORDS
        state[_TORCH_HEADER_BYTES:end] = torch.from_numpy(words.astype(np.uint64).view(np.uint8).copy())
        generator.set_state(state)
        return generator

    def normal(self, purpose: str, step: int, size: int, device: torch.device | str = "cpu") -> Tensor:
        """Standard normal variates, float32, shape ``[size]``, on ``device``.

        Floating-point variates are not the real-valued Gaussians of the proof (Mironov, 2012); that gap is
        outside the guarantee.
        """
        out = torch.empty(size, device=device)
        if out.is_cuda:
            seed = int.from_bytes(self._digest(purpose, step, 0, 8), "little", signed=True)
            return out.normal_(generator=torch.Generator(device=out.device).manual_seed(seed))
        blocks = [out[start : start + BLOCK] for start in range(0, size, BLOCK)]

        def fill(number: int) -> None:
            blocks[number].normal_(generator=self._torch_cpu(purpose, step, number))

        _each(fill, len(blocks))
        return out


def _each(work: Callable[[int], None], count: int) -> None:
    if count == 1:
        work(0)
    elif count:
        with ThreadPoolExecutor(max(1, min(count, torch.get_num_threads()))) as pool:
            list(pool.map(work, range(count)))
