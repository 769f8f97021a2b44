"""The collectives of a private step, over the default process group of torch.distributed or within one process.

Every rank calls each collective the same number of times in a step, whatever its share of the batch: one without an
example joins with empty tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dpfest.errors import UserError

_DIGEST = 32  # bytes


class Group:
    """All ranks of the default process group; without one, this process alone.

    Args:
        timeout: how long a rank waits for the others; None for the default group's. Every rank gives the same.

    Attributes:
        world: number of ranks.
        rank: number of this one.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        alone = not (dist.is_available() and dist.is_initialized())
        self.world, self.rank = (1, 0) if alone else (dist.get_world_size(), dist.get_rank())
        self._ranks = None if alone or timeout is None else dist.new_group(timeout=timeout)

    def sizes(self, sent: Sequence[int]) -> list[int]:
        """Return how many items each rank sends here, from how many this one sends to each."""
        return self.exchange(torch.tensor(sent), [1] * self.world, [1] * self.world).tolist()

    def exchange(self, values: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send consecutive ``values [sum(sent), ...]`` to each rank; return what came, in the order of the ranks."""
        if self.world == 1:
            return values
        out = values.new_empty((sum(received), *values.shape[1:]))
        dist.all_to_all_single(out, values.contiguous(), list(received), list(sent), group=self._ranks)
        return out

    def joined(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return every rank's ``part [sizes[rank]]``, end to end, on every rank."""
        if self.world == 1:
            return part
        most = max(sizes)  # gloo joins parts of one size only
        every = [part.new_empty(most) for _ in sizes]
        dist.all_gather(every, torch.nn.functional.pad(part, (0, most - len(part))), group=self._ranks)
        return torch.cat([one[:size] for one, size in zip(every, sizes, strict=True)])

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of every rank's ``values``, in place; whole numbers are summed exactly."""
        if self.world > 1:
            dist.all_reduce(values, group=self._ranks)
        return values

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return bool(self.sum(torch.tensor(int(flag))) > 0)

    def from_first(self, values: Tensor) -> Tensor:
        """Return rank 0's ``values``, which have the same shape everywhere, in place."""
        if self.world > 1:
            dist.broadcast(values, 0, group=self._ranks)
        return values

    def wait(self) -> None:
        """Return when every rank has come here."""
        self.sum(torch.zeros(1))

    def refuse_difference(self, parts: Mapping[str, str]) -> None:
        """Refuse to go on, on every rank, unless all ranks give the same text for each part.

        Args:
            parts: the same names in the same order on every rank; only SHA-256 digests of the texts are sent.

        Raises:
            UserError: names the parts that differ, and the first rank that does.
        """
        digests = [hashlib.sha256(f"{name}: {text}".encode()).digest() for name, text in parts.items()]
        own = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8)
        every = self.joined(own, [len(own)] * self.world).view(self.world, -1, _DIGEST)
        differs = (every != every[0]).any(2)
        if bool(differs.any()):
            rank = int(torch.nonzero(differs.any(1))[0])
            names = ", ".join(name for name, other in zip(parts, differs.any(0).tolist(), strict=True) if other)
            raise UserError(
                f"The ranks do not agree on {names}: rank {rank} has others than rank 0. Start every rank with the "
                "same command, code, installation and files."
            )
