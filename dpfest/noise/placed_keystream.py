"""Keystreams of ChaCha20: those of AES, with a place of its own for the noise of every coordinate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpfest.noise import chacha
from dpfest.noise.keystream import Keystream, Words


class ChaCha(Keystream):
    """The same of ChaCha20, whose blocks of eight words are also found by layout and counter.

    Words 12 and 13 of a block's input are the counter, 64 bits; word 14 is the number of the layout, 0 for words in
    order, of which block n has those from position ``8 n`` on; word 15 is 0, or 1 + w in the block that extends word w.
    """

    placed = True
    _block = 8

    def blocks(self, layout: int, counters: Words, out: Words) -> None:
        """Write the words of blocks, by pair, to ``out [8 n]``: see :func:`dpfest.noise.chacha.blocks`."""
        chacha.blocks(self.secret, counters, layout, by_pair=True, out=out)

    def reader(self, position: int) -> Callable[[NDArray[np.generic]], None]:
        """See :meth:`Keystream.reader`."""
        block = position // 8

        def fill(out: NDArray[np.generic]) -> None:
            nonlocal block
            words = out.view(np.uint64)
            whole = len(words) // 8 * 8
            for part in (words[:whole], words[whole:]):
                counters = np.arange(block, block + -(-len(part) // 8), dtype=np.uint64)
                if len(part) % 8:
                    part[:] = chacha.blocks(self.secret, counters, 0)[: len(part)]
                else:
                    chacha.blocks(self.secret, counters, 0, out=part)
                block += len(counters)

        return fill

    def extended(self, word: int, position: int) -> int:
        """See :meth:`Keystream.extended`."""
        return self.extended_at(word, 0, position // 8, position % 8)

    def extended_at(self, word: int, layout: int, counter: int, place: int) -> int:
        """Extend the word at ``place``, 0 .. 7, of a block, as :meth:`extended` does: by words 0 and 1 of another."""
        found = chacha.blocks(self.secret, np.array([counter], dtype=np.uint64), layout | (1 + place) << 32)
        return word << 128 | int(found[0]) << 64 | int(found[1])
