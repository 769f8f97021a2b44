"""ChaCha20's block function on a GPU, a lane a block; :mod:`dpfest.noise.chacha` is its reference."""

import triton
import triton.language as tl


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _word(low, high):
    return ((high.to(tl.uint64) << 32) | low.to(tl.uint64)).to(tl.int64, bitcast=True)


@triton.jit
def words(key, counter, layout):
    """Return the eight words of blocks, radius and angle of four pairs in turn, as signed numbers.

    Args:
        key: pointer to 8 uint32.
        counter: words 12 and 13 of each block's input as one number, int64.
        layout: word 14; word 15 is 0.
    """
    d0 = counter.to(tl.uint32)
    d1 = (counter >> 32).to(tl.uint32)
    zero = d0 * 0
    d2 = zero + layout
    d3 = zero
    a0, a1, a2, a3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    b0, b1, b2, b3 = zero + tl.load(key), zero + tl.load(key + 1), zero + tl.load(key + 2), zero + tl.load(key + 3)
    c0, c1, c2, c3 = zero + tl.load(key + 4), zero + tl.load(key + 5), zero + tl.load(key + 6), zero + tl.load(key + 7)
    e0, e1, e2, e3, f0, f1, f2, f3 = a0, a1, a2, a3, b0, b1, b2, b3
    g0, g1, g2, g3, h0, h1, h2, h3 = c0, c1, c2, c3, d0, d1, d2, d3
    for _ in range(10):  # a loop: unrolled, a kernel takes 24 seconds to compile in place of 2
        a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    return (
        _word(a0 + e0, a1 + e1), _word(a2 + e2, a3 + e3), _word(b0 + f0, b1 + f1), _word(b2 + f2, b3 + f3),
        _word(c0 + g0, c1 + g1), _word(c2 + g2, c3 + g3), _word(d0 + h0, d1 + h1), _word(d2 + h2, d3 + h3),
    )  # fmt: skip
