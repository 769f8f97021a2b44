"""Examples that look up any number of rows train over ranks: the bits of one rank, and the step of the reference."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.gradients.reading import MicroBatch
from dpfest.noise.key import NoiseKey
from dpfest.ranks.group import Group
from dpfest.ranks.rows import RankRows
from dpfest.ranks.table import shard_tables
from dpfest.ranks.training import PartReader
from dpfest.step.engine import PrivateEngine
from tests.dpfest.ranks import baskets, small, test_states
from tests.dpfest.ranks.baskets import Baskets
from tests.dpfest.ranks.test_steps import assert_a_step_of_one_process, plans, trained
from tests.dpfest.ranks.together import together
from tests.dpfest.reference import reference_gradient

SHARDS, PARTS, STEP = 8, 4, 2


@pytest.mark.slow
def test_three_ranks_give_the_bits_of_one_under_every_rule() -> None:
    """The first rank has two of eight shards, and two of four parts."""
    asked = {name: plan for name, plan in plans().items() if name not in ("frozen", "soft")}
    (alone,) = together(trained, 1, asked, baskets.training)
    for rank, found in enumerate(together(trained, 3, asked, baskets.training)):
        for name, told in found.items():
            assert told == alone[name], f"{name}: rank {rank}"


@pytest.mark.parametrize("name", [name for name in small.RULES if name != "lazy"])  # whose step is no release
def test_a_step_is_that_of_one_process_under_the_same_draws(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that survive are the same; numbers differ by rounding. The sum's weights depend on embeddings."""
    assert_a_step_of_one_process(name, monkeypatch, Baskets, baskets.read)


class Still(Baskets):
    dropout = 0.0


def double(indices: np.ndarray) -> tuple[Tensor, ...]:
    return tuple(part.double() if part.is_floating_point() else part for part in baskets.batch_of(indices))


def in_double(indices: np.ndarray, seed: bytes) -> list[MicroBatch]:
    return [MicroBatch(indices, double(indices))]


def still() -> Still:
    model = Still().double()
    with torch.no_grad():  # gradients on both sides of the clipping norm
        model.network[3].weight.mul_(3)
    return model


SOME = np.sort(np.random.default_rng(5).choice(small.EXAMPLES, 45, replace=False))
BATCHES = {"some": SOME, "all of one rank": SOME[SOME % PARTS == 1], "one": SOME[:1]}


Gradients = dict[tuple[str, str], dict[str, np.ndarray]]


def gradients(planned: dict[str, small.Planned], batches: dict[str, np.ndarray]) -> Gradients:
    """Of each rule and batch, every parameter's gradient, dense, where this rank owns it."""
    found: Gradients = {}
    for name, (plan, _) in planned.items():
        for words, examples in batches.items():
            model, group = still(), Group()
            places = shard_tables(model, SHARDS, group.world, group.rank)
            engine = PrivateEngine(
                model, plan.algorithm, small.losses, NoiseKey.from_seed(3), cost=plan.step(), steps=plan.steps,
                expected_batch_size=10.0, rows=partial(RankRows, places=places, group=group, parts=PARTS),
                selected=torch.from_numpy(small.SELECTED) if plan.algorithm.selection else None,
            )  # fmt: skip
            mine = examples[examples % PARTS % group.world == group.rank]
            release, _ = engine.gradient(PartReader(in_double, PARTS)(mine, b""), STEP)
            found[name, words] = own = {parameter: value.numpy() for parameter, value in release.dense.items()}
            for number, gradient in enumerate(release.tables):
                local = np.concatenate([places.local_rows(number, shard) for shard in places.own])
                local = local if gradient.rows is None else local[gradient.rows.numpy()]
                values = np.zeros((small.ROWS[number], gradient.values.shape[1]))
                values[local] = gradient.values
                own[f"tables.{number}.weight"] = values
    return found


def wanted(planned: small.Planned, examples: np.ndarray) -> dict[str, Tensor]:
    """The slow reference's gradient: autograd, one example at a time, the maps and norms of dense rows."""
    plan, key = planned[0], NoiseKey.from_seed(3)
    model, every, cost = still(), np.arange(sum(small.ROWS)), plan.step()
    touched = [[set(of_table[n].tolist()) for n in examples] for of_table in baskets.looked_up()]
    return reference_gradient(
        model, plan.algorithm, partial(small.losses, model), double(examples), touched, key, STEP, divisor=10.0,
        gradient_noise_multiplier=cost.gradient_noise_multiplier if cost else 0.0,
        map_noise_multiplier=cost.map_noise_multiplier if cost else None,
        selected=small.SELECTED if plan.algorithm.selection else None, steps=plan.steps, roundings=1 + PARTS / 256,
        shards=[(key.derive("shard", shard), every[every % SHARDS == shard]) for shard in range(SHARDS)],
    )  # fmt: skip


def test_over_three_ranks_a_step_is_that_of_the_dense_reference() -> None:
    """Bags lie across ranks, some ranks have no example, and some examples touch no row of a table."""
    lengths = [[len(of_table[n]) for n in SOME] for of_table in baskets.looked_up()]
    assert all(0 in of and max(of) > 2 for of in lengths[:3])
    asked = {name: plan for name, plan in plans().items() if name != "lazy"}
    ranks = together(gradients, 3, asked, BATCHES)
    for name, planned in asked.items():
        for words, examples in BATCHES.items():
            for parameter, value in wanted(planned, examples).items():
                each = [rank[name, words][parameter] for rank in ranks]
                got = sum(each) if parameter.startswith("tables.") else each[0]
                np.testing.assert_allclose(got, value, rtol=1e-9, atol=1e-7, err_msg=f"{name}, {words}: {parameter}")


@pytest.mark.parametrize("name", ["adafest", "lazy", "bands"])
def test_a_run_of_two_then_three_then_one_ranks_is_the_run_of_one(name: str, tmp_path: Path) -> None:
    planned = test_states.planned(name)
    whole = baskets.training(planned)
    for batch in small.batches(whole, 5):
        whole.step(batch)
    expected = small.digest(whole), 5
    together(test_states.stretch, 2, planned, tmp_path, 2, True, baskets.training)
    together(test_states.stretch, 3, planned, tmp_path, 1, False, baskets.training)
    assert test_states.stretch(planned, tmp_path, 2, False, baskets.training) == expected


def test_a_row_of_padding_stays_zero_and_is_never_owed_noise() -> None:
    for name in ("lazy", "bands", "nonprivate"):
        own = baskets.training(plans()[name])
        for batch in small.batches(own, 2):
            own.step(batch)
        found = small.weights(own)
        for number, padding in enumerate(baskets.PADDING[:2]):
            table = found[f"tables.{number}.weight"]
            assert not table[padding].any() and table[:padding].any(1).all()


def changed(**options: Any) -> nn.Module:
    model = Baskets()
    model.tables[1] = nn.EmbeddingBag(small.ROWS[1], 3, **options)
    return model


def test_a_table_that_ranks_cannot_divide_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match=r"table tables\.1 cannot lie in several processes, because of mode=max"):
        shard_tables(changed(mode="max"), 4)
    model = changed(padding_idx=2)
    with torch.no_grad():
        model.tables[1].weight[2] = 1
    with pytest.raises(UserError, match=r"because of padding_idx=2, whose row is not zero"):
        shard_tables(model, 4)


class Otherwise(Baskets):
    """Looks up what its attribute says."""

    def how(self, ids: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def forward(self, numeric: Tensor, padded: Tensor, ids: Tensor, starts: Tensor, *more: Tensor) -> Tensor:
        return super().forward(numeric, padded, *self.how(ids, starts), *more)


class OneBag(Baskets):
    def forward(self, numeric: Tensor, padded: Tensor, ids: Tensor, starts: Tensor, *more: Tensor) -> Tensor:
        return super().forward(numeric, padded, ids, starts, *more) + self.tables[1](ids, starts[:1]).sum()


class OutOfOrder(Otherwise):
    def how(self, ids: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        return ids, starts.flip(0)


class Moved(Otherwise):
    """The same rows for other examples, once embeddings are no longer zero: the map would count them elsewhere."""

    def how(self, ids: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        some = self.tables[3](torch.zeros(len(starts), dtype=torch.int64))
        return ids, starts * bool((some == 0).all())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OneBag, r"tables\.1 is looked up for all examples together.* give each example a bag"),
        (OutOfOrder, r"offsets of bags must begin with 0, not descend, and stay within the \d+ ids"),
        (Moved, r"which rows an example looks up must not depend on embeddings"),
    ],
)
def test_bags_that_are_not_one_for_each_example_or_not_always_the_same_are_refused(kind: Any, words: str) -> None:
    engine = small.training(plans()["adafest"], kind=kind, reader=baskets.read).engine
    with pytest.raises(UserError, match=words):
        engine.gradient(baskets.read(SOME), 0)
