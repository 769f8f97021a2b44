"""A run over ranks while it is made: what :mod:`pipelines.train.run` is in one process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey
from dpfest.ranks.group import Group
from dpfest.ranks.table import shard_tables
from dpfest.ranks.training import RankTraining, shared_key
from pipelines.config.settings import Config
from pipelines.data.rows import ChunkedRows
from pipelines.runs.directory import SHARDS, RunDirectory
from pipelines.runs.schedule import Schedule
from pipelines.runs.weights import Weights, write_pieces
from pipelines.tasks.calibration import Calibration
from pipelines.tasks.clicks import EVALUATION_BATCH, Batch, ClickTask, Evaluation
from pipelines.tasks.task import Task, TaskReader, smaller_tables
from pipelines.train.run import Run
from pipelines.train.shards import DIGEST, missing_shard, read_shard, remove_others, write_shards

_ROWS_AT_ONCE = 1 << 16  # of a table, on their way to rank 0 when weights are written


class RankRun(Run):
    """A run over ranks: what :class:`pipelines.train.run.Run` is in one process."""

    task: ClickTask
    training: RankTraining

    def __init__(self, config: Config, schedule: Schedule, directory: RunDirectory, group: Group) -> None:
        self.group = group
        super().__init__(config, schedule, directory)

    def _task(self) -> Task:
        config = self.config
        data, device = self.schedule.days[0], torch.device("cpu")
        task = ClickTask(data, config.model, config.seed, device, smaller=smaller_tables(config), whole=False)

        def initial(table: int, shard: int, rows: int, dim: int) -> Tensor:
            seed = hashlib.sha256(f"dpfest rows {config.seed} {table} {shard}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(seed[:8], "little") >> 1)
            return torch.empty(rows, dim).normal_(0.0, config.model.embedding_scale, generator=generator)

        self.places = shard_tables(task.model, config.ranks.shards, self.group.world, self.group.rank, initial)
        return task

    def _new_key(self) -> NoiseKey:
        key = super()._new_key()
        return key if self._fixed else shared_key(self.group, key.cipher)

    def _begin(self, after: Any = None) -> RankTraining:
        return RankTraining(
            self.task.model,
            self.task.losses,
            self.optimizers,
            self.schedule.plan,
            TaskReader(self.task, self.schedule.rows[self.period], None),
            places=self.places,
            group=self.group,
            parts=self.config.ranks.parts,
            period=self.period,
            selected=self._selected(),
            key=self.key,
            after=after,
        )

    def _selected(self) -> NDArray[np.int64] | None:
        """Return the selected rows of the period, for which rank 0 alone reads the counts of all rows."""
        if self.schedule.selection is None:
            return None
        rows = torch.empty(0, dtype=torch.int64)
        if self.group.rank == 0:
            rows = torch.from_numpy(self.schedule.selected(self.period))
        size = int(self.group.from_first(torch.tensor([len(rows)])))
        return self.group.from_first(rows if self.group.rank == 0 else rows.new_empty(size)).numpy()

    def _store(self) -> None:
        """Save a checkpoint: the shards in a new folder, each by its owner, then the state that names their content.

        Raises:
            UserError: rank 0 does not find the shards of another rank in its own folder.
        """
        folder = self.directory.private / f"{SHARDS}{self.step}-{self.period}"
        own = torch.frombuffer(bytearray(write_shards(folder, self.training.shard_states())), dtype=torch.uint8)
        every = self.group.joined(own, [DIGEST * shards for shards in self.places.shards_of_rank])
        if self.group.rank == 0 and (missing := missing_shard(folder, self.places.shards)):
            raise UserError(
                f"{missing} is not there, though another rank has written it: paths.runs must be one folder that "
                "all ranks share."
            )
        training = self.training.common_state()
        self.directory.save_state({"training": training, "shards": folder.name, "sha256": every, **self._progress()})
        self.group.wait()
        if self.group.rank == 0:
            remove_others(folder)

    def _resume(self, saved: dict[str, Any]) -> None:
        folder = self.directory.private / saved["shards"]
        self.training.load(saved["training"], lambda shard: read_shard(folder, shard, saved["sha256"]))

    def _values(self, rows: ChunkedRows, calibration: Calibration) -> dict[str, Any]:
        """Evaluate the model on rows, chunk by chunk, each on one rank; counts and losses are summed exactly."""
        self.training.flush()
        model, group, evaluation, losses = self.task.model.eval(), self.group, Evaluation(), list[float]()
        chunks = rows.chunks(EVALUATION_BATCH)

        def run(batch: Batch) -> Tensor:
            return model(*batch[:-1])

        while taken := list(islice(chunks, group.world)):
            own = self.task.to_device(taken[group.rank]) if group.rank < len(taken) else None
            found = torch.zeros(len(taken), dtype=torch.float64)
            with self.training.engine.rows.readable_outside(own, len(own[-1]) if own else 0, run):
                if own:
                    evaluation.add(model, own)
                    found[group.rank] = evaluation.losses[-1]
            losses += group.sum(found).tolist()
        evaluation.losses = losses
        group.sum(torch.from_numpy(evaluation.auc.counts))
        model.train()
        return evaluation.values(calibration)

    def _weights(self) -> Weights:
        layout = self.training.engine.layout
        whole = {f"{name}.weight": size for name, *size in zip(layout.names, layout.rows, layout.dims, strict=True)}
        state = {name: tensor for name, tensor in self.task.model.state_dict().items() if name not in whole}
        shapes = dict(sorted((whole | {name: list(tensor.shape) for name, tensor in state.items()}).items()))
        dtype = self.training.engine.dtype

        def pieces() -> Iterator[Tensor]:
            for name in shapes:
                if name in state:
                    yield state[name].contiguous()
                else:
                    yield from self._rows_of(layout.names.index(name.removesuffix(".weight")))

        kind = str(dtype).removeprefix("torch.")
        return Weights(
            {name: f"{kind} {list(shape)}" for name, shape in shapes.items()},
            lambda path: write_pieces(path, dtype, shapes, pieces()),
        )

    def _rows_of(self, table: int) -> Iterator[Tensor]:
        """Yield a table in pieces on rank 0, empty ones elsewhere; every rank iterates."""
        layout = self.training.engine.layout
        for start in range(0, layout.rows[table], _ROWS_AT_ONCE):
            end = min(start + _ROWS_AT_ONCE, layout.rows[table]) if self.group.rank == 0 else start
            yield self.training.engine.rows.fetch(np.arange(start, end) + layout.offsets[table])[table]
