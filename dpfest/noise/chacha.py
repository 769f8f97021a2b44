"""ChaCha20's block function (RFC 8439, section 2.3): 256 bits of key and 128 of input to 512 bits.

It has no tables, so its time does not depend on the key, and a GPU computes it as quickly as it stores the result.
:mod:`dpfest.noise.key` says which inputs a draw uses. Compiled (``kernels.c``), or in numpy: the reference, and where
there is no compiler.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfest import kernels

Words = NDArray[np.uint64]
_SIGMA = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
_LOW = np.uint64(2**32 - 1)
_AT_ONCE = 1 << 11  # blocks of the reference: their states stay in the cache


def blocks(
    key: bytes, counters: Words, nonce: int | Words, *, by_pair: bool = False, out: Words | None = None
) -> Words:
    """Return the eight 64-bit words of each block, ``[8 n]``, block by block.

    Args:
        key: 32 bytes.
        counters: words 12 and 13 of each input as one number, the lower half first, ``[n]``.
        nonce: words 14 and 15, of all or of each ``[n]``.
        by_pair: whether the even words of all blocks come first, then the odd ones; in both, pair by pair, and block
            by block.
        out: room for the words; None for a new array.
    """
    n = len(counters)
    counters = np.ascontiguousarray(counters, dtype=np.uint64)
    out = np.empty(8 * n, dtype=np.uint64) if out is None else out
    if not kernels.library:
        words = _reference(key, counters, nonce)
        out[:] = words.transpose(2, 1, 0).reshape(-1) if by_pair else words.reshape(-1)
        return out
    parity, pair, block = (4 * n, n, 1) if by_pair else (1, 2, 8)
    kernels.chacha20(key, counters, nonce, out, parity=parity, pair=pair, block=block)
    return out


def _reference(key: bytes, counters: Words, nonce: int | Words) -> Words:
    nonces = np.broadcast_to(np.asarray(nonce, dtype=np.uint64), counters.shape)
    out = np.empty((len(counters), 4, 2), dtype=np.uint64)
    for start in range(0, len(counters), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        halves = [half for both in (counters[part], nonces[part]) for half in (both & _LOW, both >> np.uint64(32))]
        state = np.empty((4, 4, len(halves[0])), dtype=np.uint32)
        state[0] = _SIGMA[:, None]
        state[1:3] = np.frombuffer(key, dtype="<u4").reshape(2, 4, 1)
        state[3] = halves
        rows = list(state.copy())
        for _ in range(10):
            _quarters(rows)  # the columns, then the diagonals, turned into columns and back
            rows[1:] = [np.roll(row, -by, axis=0) for by, row in enumerate(rows[1:], start=1)]
            _quarters(rows)
            rows[1:] = [np.roll(row, by, axis=0) for by, row in enumerate(rows[1:], start=1)]
        words = (np.stack(rows) + state).reshape(8, 2, -1).astype(np.uint64)
        out[part] = (words[:, 0] | words[:, 1] << np.uint64(32)).T.reshape(-1, 4, 2)
    return out


def _quarters(rows: list[NDArray[np.uint32]]) -> None:
    a, b, c, d = range(4)
    for left, right, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        rows[left] += rows[right]
        mixed = rows[turned] ^ rows[left]
        rows[turned] = mixed << np.uint32(by) | mixed >> np.uint32(32 - by)
