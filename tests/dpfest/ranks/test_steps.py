"""A step over ranks: the same bits on any number of them, and the step of the engine of one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfest.algorithms.exponential import Exponential
from dpfest.errors import UserError
from dpfest.gradients.reading import MicroBatch, Read, request_of
from dpfest.noise.key import NoiseKey
from dpfest.planning.ledger import Ledger
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.planning.unproven import Nonprivate
from dpfest.ranks.group import Group
from dpfest.ranks.rows import RankRows
from dpfest.ranks.table import shard_tables
from dpfest.ranks.training import PartReader, RankTraining
from dpfest.step.engine import PrivateEngine
from tests.dpfest.ranks import small
from tests.dpfest.ranks.together import together
from tests.dpfest.steps import engine_with

Plans = dict[str, tuple[PrivacyPlan, Ledger]]


@cache
def plans() -> Plans:
    return {name: small.planned(algorithm) for name, algorithm in small.RULES.items()}


def trained(plans: Plans, training: Callable[..., RankTraining] = small.training) -> dict[str, list[object]]:
    """After the plan's steps under every rule: all bits of the weights, and what is said of every step."""
    found: dict[str, list[object]] = {}
    for name, planned in plans.items():
        own = training(planned)
        steps = [own.step(batch) for batch in small.batches(own, own.plan.steps)]
        said = [(step.release.rows_per_table, step.private.examples) for step in steps]
        found[name] = [small.digest(own), said, own.ledger.events]
    return found


@pytest.mark.long("seven processes, each with all algorithms")
def test_one_two_and_four_ranks_give_the_same_bits_under_every_rule() -> None:
    alone = trained(plans())
    for world in (2, 4):
        asked = plans() if world == 2 else {name: plans()[name] for name in ("adafest", "lazy", "bands")}
        for rank, found in enumerate(together(trained, world, asked)):
            for name in asked:
                assert found[name] == alone[name], f"{name}: rank {rank} of {world}"


@pytest.mark.parametrize("name", [name for name in small.RULES if name != "lazy"])  # whose step is no release
def test_a_step_is_that_of_one_process_under_the_same_draws(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_a_step_of_one_process(name, monkeypatch)


class Attends(small.Clicks):
    """Parts whose gradients are formed by example: attention over the features, with dropout, and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.mix = nn.MultiheadAttention(1, 1, dropout=0.2, batch_first=True)
            self.offset = nn.Parameter(torch.ones(10))

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        embedded = [table(ids[:, feature]) for feature, table in enumerate(self.tables)]
        features = torch.cat([numeric, *embedded], dim=1).unsqueeze(2)
        return self.network(self.mix(features, features, features)[0].squeeze(2) * self.offset).squeeze(1)


def test_parts_of_any_kind_train_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "Clicks", Attends)
    assert_a_step_of_one_process("adafest", monkeypatch)


class Shares(small.Clicks):
    """Looks a row up for all examples together."""

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        return super().forward(numeric, ids) + self.tables[3](torch.zeros(1, dtype=torch.int64)).sum()


def test_a_look_up_for_all_examples_together_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "Clicks", Shares)
    own = small.training(plans()["adafest"])
    (batch,) = small.batches(own, 1)
    with pytest.raises(UserError, match=r"table tables\.3 is looked up for all examples together.*expand"):
        own.step(batch)


def assert_a_step_of_one_process(
    name: str, monkeypatch: pytest.MonkeyPatch, kind: Any = None, read: Read = small.read
) -> None:
    """One shard, under the run's own key, draws what one process draws."""
    plan, key = plans()[name][0], NoiseKey.from_seed(3)
    size = float(plan.batch_size) if plan.step() else None
    asked = {"cost": plan.step(), "expected_batch_size": size, "steps": plan.steps}
    examples = np.sort(np.random.default_rng(5).choice(small.EXAMPLES, 70, replace=False))
    model = (kind or small.Clicks)()
    asked["selected"] = torch.from_numpy(small.SELECTED) if plan.algorithm.selection else None
    one = PrivateEngine(model, plan.algorithm, small.losses, key, **asked)  # type: ignore[arg-type]
    expected, said = one.gradient(read(examples, b""), 2)
    places = shard_tables(model, 1)
    rows = partial(RankRows, places=places, group=Group(), parts=4)
    own = PrivateEngine(model, plan.algorithm, small.losses, key, rows=rows, **asked)  # type: ignore[arg-type]
    monkeypatch.setattr(own.rows, "shard_key", lambda shard: key)
    found, told = own.gradient(PartReader(read, 4)(examples, b""), 2)
    assert found.rows_per_table == expected.rows_per_table and told.examples == said.examples
    for parameter, value in expected.dense.items():
        assert torch.allclose(found.dense[parameter], value, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(found.tables, expected.tables, strict=True):
        assert (ours.rows is None) == (theirs.rows is None)
        assert theirs.rows is None or torch.equal(ours.rows, theirs.rows)
        assert torch.allclose(ours.values, theirs.values, rtol=1e-6, atol=1e-6)
    if name not in ("frozen", "nonprivate"):
        assert sum(found.rows_per_table) > 0 and any(float(part.values.abs().max()) > 1e-3 for part in found.tables)


def lopsided(planned: tuple[PrivacyPlan, Ledger]) -> list[object]:
    """Releases of a batch whose examples all lie on one rank, and of an empty batch."""
    own, said = small.training(planned), []
    for step, examples in enumerate((np.arange(0, 60, 4), np.empty(0, np.int64))):
        mine = examples[examples % own.parts % own.group.world == own.group.rank]
        release, private = own.engine.gradient(PartReader(small.read, own.parts)(mine, b""), step)
        own.engine.update(release, own.optimizers)
        said += [release.rows_per_table, private.examples]
    return [small.digest(own), *said]


def test_ranks_without_an_example_take_part_and_an_empty_batch_gets_its_noise() -> None:
    for name in ("fest", "adafest", "nonprivate"):
        alone = lopsided(plans()[name])
        assert together(lopsided, 2, plans()[name]) == [alone, alone]
        assert (alone[1][0] > 0, alone[2], alone[4]) == (True, 15, 0)  # type: ignore[index]
        if name != "adafest":  # its survivors of an empty batch are a matter of chance
            assert alone[3] == ([0] * 4 if name == "nonprivate" else alone[1])


def test_exponential_selection_is_refused_with_the_reason() -> None:
    model = small.Clicks()
    places = shard_tables(model, 4)
    with pytest.raises(UserError, match="draws m rows from all tables jointly"):
        engine_with(
            model, Exponential(), small.losses, NoiseKey.fresh(),
            rows=partial(RankRows, places=places, group=Group(), parts=4),
            gradient_noise_multiplier=1.0, expected_batch_size=10.0,
        )  # fmt: skip


class ReadsMemory(small.Clicks):
    """Adds a statistic of a table's memory, which no comparison of parts of a batch can see over ranks."""

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        return super().forward(numeric, ids) + self.tables[1].weight.detach().mean()


def test_a_forward_pass_that_reads_a_tables_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "Clicks", ReadsMemory)
    own = small.training(plans()["adafest"])
    (batch,) = small.batches(own, 1)
    with pytest.raises(UserError, match=r"reads the table tables\.1 outside of a look-up"):
        own.step(batch)
    with (
        own.engine.rows.readable_outside(small.data()[:2], small.EXAMPLES, lambda data: own.model(*data)),
        pytest.raises(UserError, match=r"reads the table tables\.1 outside of a look-up"),
    ):
        own.model(*small.data()[:2])


class AddsMemory(small.Clicks):
    """Adds the sum of a table's memory, which is 0 where nothing can be read."""

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        return super().forward(numeric, ids) + self.tables[1].weight.detach().sum()


def test_a_read_that_is_not_named_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every call is searched for reads of a table's memory; they are harmless in the others."""
    monkeypatch.setattr("dpfest.ranks.rows.OnlyLookUps", lambda tables: nullcontext())
    released = []
    for model in (small.Clicks, AddsMemory):
        monkeypatch.setattr(small, "Clicks", model)
        engine = small.training(plans()["adafest"]).engine
        release, private = engine.gradient(PartReader(small.read, 4)(np.arange(60), b""), 0)
        released.append((private.loss, [part.values.numpy().tobytes() for part in release.tables]))
    assert released[0] == released[1]


class LeavesOneOut(small.Clicks):
    """Looks no row of the second table up: over ranks, its memory is empty within a step."""

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        embedded = [table(ids[:, feature]) for feature, table in enumerate(self.tables) if feature != 1]
        embedded.insert(1, numeric.new_zeros(len(ids), 3))
        return self.network(torch.cat([numeric, *embedded], dim=1)).squeeze(1)


def test_a_batch_that_touches_no_row_of_a_table_passes_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "Clicks", LeavesOneOut)
    own = small.training(plans()["fest"])
    for whole_tables in (True, False):
        own._checks.passed = not whole_tables
        request = request_of(own.engine.key, own.steps_done, own.indices(own.steps_done), check=small.EXAMPLES)
        own.step(own.read(request))
    assert own.steps_done == 2 and own._checks.passed


class Careful(small.Clicks):
    """In training, has the opinion of other rows as well, and catches what goes wrong in asking for it."""

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        first, others = super().forward(numeric, ids), (ids + 1) % torch.tensor(small.ROWS)
        try:
            return first + (super().forward(numeric, others) if self.training else 0.0)
        except Exception:
            return first


def test_training_and_evaluation_may_look_up_different_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "Clicks", Careful)
    own = small.training(plans()["fest"])

    def run(batch: tuple[Tensor, Tensor]) -> Tensor:
        return own.model(*batch)

    for batch in small.batches(own, 3):
        own.step(batch)
        own.model.eval()
        with own.engine.rows.readable_outside(small.data()[:2], small.EXAMPLES, run):
            assert len(run(small.data()[:2])) == small.EXAMPLES
        own.model.train()


LOUD = torch.randn(300, 64, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


class Loud(nn.Module):
    """In float64, where a sum of large terms rounds unless the terms share a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense = nn.Embedding(4, 1).double(), nn.Linear(64, 1).double()

    def forward(self, ids: Tensor) -> Tensor:
        return (self.dense(LOUD[ids]) + self.table(ids % 4)).squeeze(1) * 2.0**17


def test_without_noise_large_sums_are_the_same_in_any_order() -> None:
    model = Loud()
    places = shard_tables(model, 2)
    rows = partial(RankRows, places=places, group=Group(), parts=4)
    engine = PrivateEngine(
        model,
        Nonprivate(),
        lambda model, ids: model(ids),
        NoiseKey.from_seed(1),
        cost=None,
        expected_batch_size=None,
        rows=rows,
    )
    parts = [MicroBatch(np.arange(part, 300, 4), torch.arange(part, 300, 4)) for part in range(4)]
    once, again = (engine.gradient(order, 0)[0].dense for order in (parts, [parts[n] for n in (2, 3, 1, 0)]))
    assert 2.0**13 < 300 * float(once["dense.weight"].abs().max()) < 2.0**23
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_over_all_shards_the_rows_that_train_are_those_selected() -> None:
    for name in ("fest", "adafest_plus"):
        own = small.training(plans()[name])
        offsets, trained = np.cumsum([0, *small.ROWS]), []
        for batch in small.batches(own, 4):
            for table, gradient in enumerate(own.step(batch).release.tables):
                of_slot = np.concatenate([own.places.local_rows(table, shard) for shard in own.places.own])
                trained.append(of_slot[gradient.rows.numpy()] + offsets[table])
        rows = np.concatenate(trained)
        assert set(rows) <= set(small.SELECTED) and len(set(rows % 8)) > 3
        if name == "fest":
            assert set(rows) == set(small.SELECTED) and len(rows) == 4 * len(small.SELECTED)


def test_rows_cannot_be_looked_up_outside_of_a_step() -> None:
    model = small.Clicks()
    shard_tables(model, 4)
    with pytest.raises(UserError, match="lie in several processes"):
        model(*small.data()[:2])
