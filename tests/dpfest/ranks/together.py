"""Functions on several ranks: processes of their own, which talk through gloo on this machine's loopback."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_SECONDS = 120  # far more than any test takes


class Failed(Exception):
    """A rank failed; the message is its traceback."""


def together(work: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
    """What a module-level function returns on each of so many ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "scipy.special", "dpfest.ranks.training"])
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            processes.append(context.Process(target=_rank, args=(theirs, folder, world, rank, work, arguments)))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            results = [_answer(pipe) for pipe in pipes]
        finally:
            for process in processes:
                process.join(1)
                process.kill()
                process.join()
    if failures := [str(result) for good, result in results if not good]:
        raise Failed("\n".join(failures))
    return [result for _, result in results]


def _answer(pipe: Connection) -> tuple[bool, Any]:
    try:
        return pipe.recv() if pipe.poll(_SECONDS) else (False, "no answer")
    except EOFError:
        return False, "the process ended"


def _rank(pipe: Connection, folder: str, world: int, rank: int, work: Any, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group("gloo", store=store, world_size=world, rank=rank)
    try:
        pipe.send((True, work(*arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        os._exit(1)  # the others must notice
    dist.barrier()
    dist.destroy_process_group()
