"""Every algorithm on every path: its step is that of the slow dense reference, or it is refused, and told why.

An algorithm or a path that is added appears here without an edit. Batches touch some rows and leave others untouched,
and the reference has the noise of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfest.errors import UserError
from dpfest.gradients.parts import RowGradient
from dpfest.training.loop import PrivateTraining
from tests.dpfest import combinations as paths
from tests.dpfest.combinations import PATHS, ROWS, SHARDS
from tests.dpfest.reference import reference_gradient

OFFSETS = np.cumsum([0, *ROWS])
VARIANTS = paths.variants()
REFUSED: dict[tuple[str, str], str] = {
    **{(name, "ranks, units"): "parts of a person would be clipped apart" for name in VARIANTS},
    ("exponential", "ranks"): "draws m rows from all tables jointly",
    ("exponential", "ranks, bags"): "draws m rows from all tables jointly",
    ("exponential", "ranks, stream"): "draws m rows from all tables jointly",
    ("exponential", "chacha20, ranks"): "draws m rows from all tables jointly",
    ("exponential", "truncated Poisson"): "accounted for Gaussian releases alone",
    ("exponential", "balls-in-bins"): "accounted for Gaussian releases alone",
    **{
        (f"{name}, bands", "truncated Poisson"): "bands=2 is accounted for sampling=cyclic"
        for name in ("dpsgd", "fest")
    },
    **{(f"{name}, bands", "balls-in-bins"): "bands=2 is accounted for sampling=cyclic" for name in ("dpsgd", "fest")},
    **{(f"{name}, bands", "branch"): "bounds how often an example takes part" for name in ("dpsgd", "fest")},
}
"""Words of each refusal that is meant. What else is refused fails its test, and so does what is not refused."""


def weights(training: PrivateTraining) -> dict[str, Tensor]:
    """Every parameter, whole, as the next forward pass would find it."""
    found = {name: value.detach().clone() for name, value in training.engine.recorder.dense_parameters.items()}
    rows: Any = training.engine.rows
    if hasattr(rows, "fetch"):
        tables = rows.fetch(np.arange(sum(ROWS)))
    else:
        tables = [table.weight.detach().clone() for table in training.engine.recorder.tables.values()]
    return found | dict(zip([f"tables.{number}.weight" for number in range(len(ROWS))], tables, strict=True))


def released(training: PrivateTraining, tables: list[Any]) -> dict[str, Tensor]:
    """The gradient of every table, dense."""
    found = {}
    for number, (count, dim, gradient) in enumerate(zip(ROWS, paths.DIMS, tables, strict=True)):
        places = getattr(training, "places", None)
        local = np.arange(count)
        if places is not None:
            local = np.concatenate([places.local_rows(number, shard) for shard in places.own])
        local = local if gradient.rows is None else local[gradient.rows.numpy()]
        values = torch.zeros(count, dim, dtype=torch.float64)
        values[torch.from_numpy(local)] = gradient.values.double()
        found[f"tables.{number}.weight"] = values
    return found


def expected(training: PrivateTraining, path: paths.Path, examples: np.ndarray, **changed: Any) -> dict[str, Tensor]:
    """The reference's gradient at the weights of the moment."""
    model = paths.Model(torch.float64, path.bags)
    model.load_state_dict({name: value.double() for name, value in weights(training).items()})
    of = np.arange(len(examples))
    if path.unit:
        of = np.unique(paths.units().of[examples], return_inverse=True)[1]
    count = int(of.max()) + 1
    mean = torch.from_numpy((of == np.arange(count)[:, None]) / np.bincount(of)[:, None])

    def losses(batch: paths.Batch) -> Tensor:
        return mean @ paths.losses(model, batch)

    touched = [
        [set(np.concatenate([column[n] for n in examples[of == one]]).tolist()) for one in range(count)]
        for column in paths.data(path.bags)
    ]
    engine, shards = training.engine, None
    if path.ranks:
        rows: Any = engine.rows
        every = np.arange(sum(ROWS))
        shards = [(rows.shard_key(shard), every[every % SHARDS == shard]) for shard in range(SHARDS)]
    cost = engine.cost
    settings: dict[str, Any] = {
        "gradient_noise_multiplier": cost.gradient_noise_multiplier if cost else 0.0,
        "divisor": engine.expected_batch_size or count,
        "map_noise_multiplier": cost and cost.map_noise_multiplier,
        "epsilon_per_draw": cost and cost.epsilon_per_draw,
        "selected": paths.SELECTED if training.algorithm.selection else None,
        "shards": shards,
        "roundings": engine.rows.roundings,
        "steps": training.period.steps,
    }
    batch = paths.batch_of(examples, path.bags)
    return reference_gradient(
        model, training.algorithm, losses, batch, touched, engine.key, training.steps_done, **settings | changed
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_is_that_of_the_reference_or_refused(name: str, path: str) -> None:
    algorithm, way = VARIANTS[name], PATHS[path]
    if (name, path) in REFUSED:
        with pytest.raises(UserError, match=REFUSED[name, path]):
            paths.started(algorithm, way)
        return
    training = paths.started(algorithm, way)
    training.flush()
    batch = next(iter(training))
    examples = np.concatenate([part.examples for part in batch.microbatches])
    want, silent = expected(training, way, examples), expected(training, way, examples, gradient_noise_multiplier=0.0)
    tolerance = {"rtol": 1e-9, "atol": 1e-2 if way.autocast else 1e-8}  # half precision; rounded parts of ranks
    memory = [table.weight.detach().clone() for table in training.engine.recorder.tables.values()]
    step = training.step(batch)
    gradients = step.release.tables
    if algorithm.lazy:  # tables are stepped without noise, and all their rows are owed it
        assert step.release.pending == training.engine.noise.deviation / paths.BATCH > 0
        moved = zip(memory, training.engine.recorder.tables.values(), strict=True)
        gradients = [RowGradient(None, (before - table.weight.detach()) / paths.RATE) for before, table in moved]
        want |= {name: silent[name] for name in want if name.startswith("tables.")}
    got = released(training, gradients) | {n: v.double() for n, v in step.release.dense.items()}
    for parameter, value in want.items():
        torch.testing.assert_close(got[parameter], value.double(), **tolerance)
