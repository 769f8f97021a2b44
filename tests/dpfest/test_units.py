"""The unit of privacy: whole units are sampled, clipped, counted and paid for; an example is the unit of one."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dpfest
from dpfest import (
    DPSGD,
    FEST,
    AdaFEST,
    AdaFESTPlus,
    NoiseKey,
    Period,
    PrivacyPlan,
    SelectionConfig,
    UnitConfig,
    Units,
    UserError,
    make_private,
    select,
)
from dpfest.accounting import accountant
from dpfest.gradients.batch import LogicalBatch
from dpfest.gradients.clipped_sum import ClippedSum
from dpfest.gradients.reading import DatasetReader, MicroBatch, UnitReader
from dpfest.gradients.tables import Survivors
from dpfest.planning.ledger import Ledger
from dpfest.planning.unproven import Nonprivate
from dpfest.step.engine import PrivateEngine
from dpfest.training.histogram import counted
from dpfest.training.loop import PrivateTraining
from tests.dpfest.reference import reference_gradient
from tests.dpfest.steps import by_batch, engine_with
from tests.dpfest.test_engine import CASES, dense_release, losses_of, mixed, tabular, text
from tests.dpfest.test_training import Shop, data, losses

SIZES = (1, 5, 1, 2, 3, 1, 4)
OF = np.repeat(np.arange(10, 10 + len(SIZES)), SIZES)
"""Units of 17 examples."""


def parts_of(batch: Any, cuts: list[int]) -> list[MicroBatch]:
    """A batch of 17 examples, cut into micro-batches."""
    places = np.split(np.arange(len(OF)), cuts)
    return [MicroBatch(at, tuple(part[torch.from_numpy(at)] for part in batch), OF[at]) for at in places]


def by_unit(losses: Any, combine: str) -> Any:
    """The loss of each unit, whose gradient autograd takes: the mean or the sum of its examples' losses."""

    def of_units(batch: Any) -> Tensor:
        parts = losses(batch).split(SIZES)
        return torch.stack([part.mean() if combine == "mean" else part.sum() for part in parts])

    return of_units


def joined(ids: list[list[set[int]]]) -> list[list[set[int]]]:
    ends = np.cumsum((0, *SIZES))
    return [[set().union(*rows[a:b]) for a, b in itertools.pairwise(ends)] for rows in ids]


# One step.


MAPPED = ("nonprivate", "adafest", "adafest_plus")
"""Units change the sums of every layer, and the maps of rules that have one; each rule in itself is in test_engine."""


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize(
    ("case", "make", "cuts"),
    [
        ("adafest", mixed, []),
        *((case, make, [1, 6, 12]) for case in MAPPED for make in (text, mixed)),
        *((case, tabular, [1, 6, 12]) for case in CASES),
    ],
)
def test_a_step_is_that_of_the_dense_reference_on_whole_units(case: str, make: Any, combine: str, cuts: Any) -> None:
    """Gradients of whole units by autograd, dense tables, float64: sums, clipping, maps and noise."""
    algorithm, settings = CASES[case]
    model, batch, ids = make(len(OF))
    losses, key, selected = losses_of(model), NoiseKey.from_seed(3), settings.get("selected")
    engine = engine_with(
        model,
        algorithm,
        by_batch(losses),
        key,
        expected_batch_size=10.0,
        unit=UnitConfig("person", combine=combine),
        **{**settings, "selected": None if selected is None else torch.from_numpy(selected)},
    )
    got = dense_release(engine, engine.gradient(parts_of(batch, cuts), 5)[0])
    want = reference_gradient(
        model, algorithm, by_unit(losses, combine), batch, joined(ids), key, 5, divisor=10.0, **settings
    )
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [tabular, text, mixed])
@pytest.mark.parametrize("case", ["dpsgd", "adafest"])
def test_units_of_one_example_are_examples_to_the_last_bit(case: str, make: Any, dtype: torch.dtype) -> None:
    algorithm, settings = CASES[case]
    selected, made = settings.get("selected"), []
    for unit in (None, UnitConfig("line", combine="sum"), UnitConfig("line", combine="mean")):
        model, batch, _ = make(9)
        batch = tuple(part.to(dtype) if part.is_floating_point() else part for part in batch)
        engine = engine_with(
            model.to(dtype),
            algorithm,
            by_batch(losses_of(model)),
            NoiseKey.from_seed(3),
            expected_batch_size=10.0,
            unit=unit,
            **{**settings, "selected": None if selected is None else torch.from_numpy(selected)},
        )
        at = np.arange(9)
        made.append(dense_release(engine, engine.gradient([MicroBatch(at, batch, at if unit else None)], 5)[0]))
    for other in made[1:]:
        assert all(torch.equal(other[name], value) for name, value in made[0].items())


def noiseless(make: Any, unit: UnitConfig | None, clipping_norm: float, factors: Tensor | None = None) -> Any:
    """An engine without noise, its batch of 17 examples, and a function that sums parts of it."""
    model, batch, _ = make(len(OF))
    losses = losses_of(model)

    def scaled(_: nn.Module, part: Any) -> Tensor:
        *inputs, at = part
        return losses(inputs) * (1.0 if factors is None else factors[at])

    engine = engine_with(
        model, DPSGD(clipping_norm=clipping_norm), scaled, NoiseKey.from_seed(0), unit=unit,
        gradient_noise_multiplier=0.0, expected_batch_size=1.0,
    )  # fmt: skip
    batch = (*batch, torch.arange(len(OF)))

    def total(members: np.ndarray) -> Tensor:
        part = MicroBatch(members, tuple(one[torch.from_numpy(members)] for one in batch), unit and OF[members])
        found = ClippedSum(engine.recorder, Survivors(engine.layout, None), engine.algorithm.clipping_norm)
        for recording in LogicalBatch(engine.recorder, [part], 0).recordings():
            found.add(recording)
        return torch.cat([found.flat_dense, found.flat_rows])

    return total


@pytest.mark.parametrize("make", [tabular, text, mixed])
def test_removing_a_unit_moves_the_sum_by_the_clipping_norm_at_most_and_unclipped_parts_add_up(make: Any) -> None:
    """Gradients far beyond the norm: each unit's share is C2 exactly, however many examples it has."""
    share = noiseless(make, UnitConfig("person", combine="sum"), 0.01, torch.full((len(OF),), 100.0).double())
    everyone = np.arange(len(OF))
    moved = [float((share(everyone) - share(everyone[unit != OF])).norm()) for unit in np.unique(OF)]
    assert moved == pytest.approx([0.01] * len(SIZES), rel=1e-6)
    loose = noiseless(make, UnitConfig("person", combine="sum"), 1e9)
    torch.testing.assert_close(loose(everyone), noiseless(make, None, 1e9)(everyone), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [tabular, text, mixed])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_unit_with_one_example_that_is_not_finite_counts_as_zero_and_spoils_no_other(make: Any, bad: float) -> None:
    factors = torch.ones(len(OF)).double()
    factors[3] = bad  # of the second unit
    broken = noiseless(make, UnitConfig("person"), 0.7, factors)
    whole, everyone = noiseless(make, UnitConfig("person"), 0.7), np.arange(len(OF))
    torch.testing.assert_close(broken(everyone), whole(everyone[OF != 11]), rtol=1e-9, atol=1e-12)


def test_the_map_of_a_unit_is_clipped_as_one() -> None:
    model, batch, ids = tabular(len(OF))
    engine = engine_with(
        model, AdaFEST(), by_batch(losses_of(model)), NoiseKey.from_seed(0), unit=UnitConfig("person"),
        map_noise_multiplier=1.0, gradient_noise_multiplier=1.0, expected_batch_size=1.0,
    )  # fmt: skip
    for cuts in ([], [1, 6, 12]):
        found = LogicalBatch(engine.recorder, parts_of(batch, cuts), 0).contributions()
        rows = [sum(map(len, unit)) for unit in zip(*joined(ids), strict=True)]
        assert torch.bincount(found.example).tolist() == rows and found.examples == len(SIZES)
        for norm in (0.5, 2.0):
            alone = found.clipped(norm)
            want = sum(min(norm / count**0.5, 1.0) * count for count in rows)
            assert float(alone.sum()) == pytest.approx(want)


def test_micro_batches_that_would_clip_a_unit_in_parts_are_refused() -> None:
    model, batch, _ = tabular(len(OF))

    def engine(unit: UnitConfig | None) -> PrivateEngine:
        return engine_with(
            model, DPSGD(), by_batch(losses_of(model)), NoiseKey.from_seed(0), unit=unit,
            gradient_noise_multiplier=1.0, expected_batch_size=1.0,
        )  # fmt: skip

    person = UnitConfig("person")
    with pytest.raises(UserError, match="A person is in two micro-batches"):
        engine(person).gradient(parts_of(batch, [3]), 0)
    (part,) = parts_of(batch, [])
    with pytest.raises(UserError, match="in the order of their units"):
        engine(person).gradient([part._replace(units=OF[::-1].copy())], 0)
    for unit, units in ((person, None), (None, OF)):
        with pytest.raises(UserError, match="exactly where its engine clips by unit"):
            engine(unit).gradient([part._replace(units=units)], 0)


def test_rounding_of_sums_of_units_stays_under_what_is_charged() -> None:
    """float32, 128 units of 16 examples: without one, all others' sum moves by less than 2^-10 C2 besides its share."""
    torch.manual_seed(0)
    of, model = np.repeat(np.arange(128), 16), Shop(dropout=0.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    batch = tuple(torch.cat([part] * 6)[: len(of)] for part in data().tensors)
    engine = engine_with(
        model, DPSGD(clipping_norm=1e-3), lambda model, b: 10 * losses(model, b), NoiseKey.from_seed(0),
        unit=UnitConfig("person", combine="sum"), gradient_noise_multiplier=0.0, expected_batch_size=1.0,
    )  # fmt: skip

    def total(members: np.ndarray) -> Tensor:
        found = ClippedSum(engine.recorder, Survivors(engine.layout, None), engine.algorithm.clipping_norm)
        part = MicroBatch(members, tuple(one[torch.from_numpy(members)] for one in batch), of[members])
        for recording in LogicalBatch(engine.recorder, [part], 0).recordings():
            found.add(recording)
        return torch.cat([found.flat_dense, found.flat_rows]).double()

    everyone = np.arange(len(of))
    whole = total(everyone)
    for unit in range(0, 128, 16):
        share = total(everyone[of == unit])
        assert float(share.norm()) <= 1e-3 * (1 + 1e-5)
        assert float((whole - total(everyone[of != unit]) - share).norm()) < 1e-3 * 2**-10 / 20


# Which units and examples a step reads.


def test_a_step_reads_whole_units_up_to_a_number_of_examples_in_an_order_that_tells_nothing() -> None:
    generator = np.random.default_rng(0)
    of = generator.permutation(np.repeat(np.arange(50), generator.integers(1, 20, 50)))
    units, key = Units(of, "person", max_examples=6), NoiseKey.from_seed(1)
    drawn = np.array([3, 4, 20, 49])
    examples = units.examples(drawn, key.stream("x", 1))
    assert Counter(of[examples].tolist()) == {int(u): min(6, int((of == u).sum())) for u in drawn}
    assert np.array_equal(np.lexsort((examples, of[examples])), np.arange(len(examples)))
    assert np.array_equal(examples, units.examples(drawn, key.stream("x", 1)))
    assert not np.array_equal(examples, units.examples(drawn, key.stream("x", 2)))
    assert len(units.examples(drawn[:0], key.stream("x"))) == 0
    names = Units([f"household {unit}" for unit in of], "household", max_examples=6)
    assert names.count == units.count == 50


def test_every_subset_of_a_units_examples_is_equally_likely() -> None:
    """Of 6 examples 3: 20 subsets, 4,000 draws; the right law fails once in 10^4 seeds. Other units change nothing."""
    alone, among = Units([0] * 6, "person", 3), Units([0] * 6 + [1] * 9, "person", 3)
    key = NoiseKey.from_seed(7)
    for units, drawn in ((alone, [0]), (among, [0, 1])):
        counts: Counter[tuple[int, ...]] = Counter()
        for step in range(4_000):
            examples = units.examples(np.array(drawn), key.stream("x", step))
            counts[tuple(examples[units.of[examples] == 0].tolist())] += 1
        assert len(counts) == 20 and stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_micro_batches_hold_whole_units() -> None:
    dataset = TensorDataset(torch.arange(len(OF)))
    units = Units(OF, "person", max_examples=5)
    for size, want in ((5, [[1], [5], [1, 2], [3, 1], [4]]), (8, [[1, 5, 1], [2, 3, 1], [4]]), (None, [list(SIZES)])):
        read = UnitReader(DatasetReader(dataset, micro_batch_size=size), units)
        found = read(np.arange(len(OF)), b"")
        assert [[len(list(same)) for _, same in itertools.groupby(OF[part.examples])] for part in found] == want
        assert read(np.arange(0), b"") == []
    with pytest.raises(UserError, match="micro_batch_size=4 must be at least max_examples=5: a person is clipped"):
        UnitReader(DatasetReader(dataset, micro_batch_size=4), units)
    with pytest.raises(UserError, match="may divide a person"):
        UnitReader(lambda at, seed: [MicroBatch(one[None], None) for one in at], units)(np.arange(3), b"")


# Training.

PEOPLE = np.random.default_rng(3).integers(0, 80, 400)


def planned_for(algorithm: Any, units: Units, **settings: Any) -> PrivacyPlan:
    """A plan with noise chosen by hand, since calibration is tested elsewhere."""
    noise = 3.0 if algorithm.private else None
    given = {"target_epsilon": 9.0 if algorithm.private else None, "delta": 1e-3, "batch_size": 12} | settings
    return PrivacyPlan(
        algorithm=algorithm,
        fixed_noise_seed=True,
        features=(50, 7),
        periods=(Period(units.count, 8, noise_multiplier=noise),),
        unit=units.config,
        **given,
    )


def training(
    algorithm: Any = None,
    units: Any = PEOPLE,
    *,
    loss_fn: Any = losses,
    dataset: Any = None,
    micro_batch_size: int | None = None,
    selected: Any = None,
) -> PrivateTraining:
    model, algorithm = Shop(), algorithm or DPSGD()
    units = units if isinstance(units, Units) else Units(units, "person", max_examples=4)
    units.refuse_other(len(data()))
    return PrivateTraining(
        model,
        loss_fn,
        torch.optim.SGD(model.parameters(), lr=0.5),
        planned_for(algorithm, units),
        DatasetReader(dataset or data(), micro_batch_size=micro_batch_size),
        units=units,
        selected=selected,
        key=NoiseKey.from_seed(1),
    )


def weights(run: PrivateTraining) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in run.model.parameters()])


def take(run: PrivateTraining, steps: int) -> None:
    for _, batch in zip(range(steps), run, strict=False):
        run.step(batch)


def test_a_plan_counts_units_and_the_ledger_says_so() -> None:
    model, count = Shop(), len(np.unique(PEOPLE))
    run = make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.5), data(), losses, algorithm=DPSGD(), epsilon=1.0,
        batch_size=12, steps=8, noise_seed=1, units=Units(PEOPLE, "person", max_examples=4),
    )  # fmt: skip
    assert run.plan.examples == count and run.plan.delta == 1 / count
    assert run.plan.step().sampling_probability == 12 / count
    drawn = [np.unique(PEOPLE[run.indices(step)]) for step in range(400)]
    rate = np.bincount(np.concatenate(drawn), minlength=80)[np.unique(PEOPLE)] / 400
    assert abs(rate.mean() - 12 / count) < 4 * (0.15 * 0.85 / 400 / count) ** 0.5  # once in 16,000 seeds
    for batch in run:
        made = run.step(batch)
        assert made.private.examples == len(batch) <= 4 * len(np.unique(PEOPLE[run.indices(batch.step)]))
    assert 0.99 < run.epsilon() <= 1
    record = json.loads(json.dumps(run.ledger.to_json()))
    assert record["neighbours"] == "add or remove one person"
    assert "all training examples of one person at once" in record["statements"][0]
    assert "add-or-remove-one person" in run.ledger.summary()
    again = Ledger.from_json(record)
    assert again.unit == "person" and again.epsilon() == run.epsilon()


@pytest.mark.parametrize(
    "algorithm",
    [AdaFEST(threshold=2), pytest.param(DPSGD(noise="lazy"), marks=pytest.mark.slow), Nonprivate()],
    ids=lambda a: a.name,
)
def test_a_saved_state_goes_on_to_the_same_bits_and_with_the_same_units_alone(algorithm: Any) -> None:
    whole, half, resumed = (training(algorithm, micro_batch_size=9) for _ in range(3))
    take(whole, 8)
    take(half, 3)
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed.load_state_dict(state)
    take(resumed, 8)
    assert torch.equal(weights(resumed), weights(whole))
    swapped = PEOPLE.copy()
    first, second = np.flatnonzero(PEOPLE == 0)[0], np.flatnonzero(PEOPLE == 1)[0]
    swapped[[first, second]] = swapped[[second, first]]
    with pytest.raises(UserError, match=r"saved under another .*units"):
        training(algorithm, swapped, micro_batch_size=9).load_state_dict(state)


def test_lazy_noise_takes_the_clipped_sums_of_units() -> None:
    """What a lazy step applies before its noise is the noiseless sum over whole units."""
    model, batch, _ = tabular(len(OF))
    rows = []
    for algorithm, sigma in ((DPSGD(noise="lazy", clipping_norm=0.7), 1.0), (DPSGD(clipping_norm=0.7), 0.0)):
        engine = engine_with(
            model, algorithm, by_batch(losses_of(model)), NoiseKey.from_seed(0), unit=UnitConfig("person"),
            gradient_noise_multiplier=sigma, expected_batch_size=1.0,
        )  # fmt: skip
        rows.append(dense_release(engine, engine.gradient(parts_of(batch, [6]), 0)[0]))
    for name in (name for name in rows[0] if name.startswith("tables")):
        torch.testing.assert_close(rows[0][name], rows[1][name], rtol=1e-9, atol=1e-12)


def test_units_that_mix_are_refused_and_examples_of_one_unit_may() -> None:
    def across(model: nn.Module, batch: Any) -> Tensor:
        found = losses(model, batch)
        return found - found.mean().detach() * found

    with pytest.raises(UserError, match="examples of a batch mix"):
        take(training(loss_fn=across), 1)

    def within(model: nn.Module, batch: Any) -> Tensor:
        """Each loss times the sum of the losses of its person."""
        found, of = losses(model, batch[:3]), batch[3]
        together = torch.zeros(400).index_add(0, of, found)
        return found * together[of].detach()

    dataset = TensorDataset(*data().tensors, torch.from_numpy(PEOPLE))
    take(training(loss_fn=within, dataset=dataset), 2)
    with pytest.raises(UserError, match="examples of a batch mix"):
        take(training(units=np.arange(400) // 2, loss_fn=within, dataset=dataset), 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_examples": 0}, "max_examples=0 must be a whole number, 1 or more"),
        ({"combine": "max"}, "combine='max' must be mean or sum"),
        ({"name": "example"}, "A unit needs a name of its own"),
        ({"of_example": np.zeros((3, 2), int)}, r"one integer or string per example.*int64 of shape \(3, 2\)"),
        ({"of_example": [0.5, 1.5]}, r"one integer or string per example.*float64"),
    ],
)
def test_settings_without_meaning_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Units(**{"of_example": [1, 2], "name": "person", **change})


def test_units_that_are_not_the_plans_are_refused() -> None:
    with pytest.raises(UserError, match="units name 399 examples, but the data set has 400"):
        training(units=PEOPLE[1:])
    run = training()

    def made(units: Units | None, planned: Any = run.plan) -> PrivateTraining:
        return PrivateTraining(
            run.model, losses, run.optimizers, planned, DatasetReader(data()), units=units, key=NoiseKey.from_seed(1)
        )

    with pytest.raises(UserError, match=r"samples \d+ units a period, but units has 400"):
        made(Units(np.arange(400), "person", max_examples=4))
    for units in (None, Units(PEOPLE, "person", max_examples=5)):
        with pytest.raises(UserError, match="must agree"):
            made(units)
    with pytest.raises(UserError, match="must agree"):
        made(run.units, replace(run.plan, unit=None))
    with pytest.raises(UserError, match="a person as unit needs fidelity=rigorous"):
        dpfest.plan(
            DPSGD(), epsilon=1.0, examples=80, batch_size=8, steps=3, fidelity="paper", unit=UnitConfig("person")
        )


# Row selection.


def test_a_unit_moves_each_tables_histogram_in_so_many_rows_by_one_each() -> None:
    """However many examples it has, in whatever chunks they are read: l2-sensitivity sqrt(p m)."""
    rows = np.random.default_rng(1).integers(0, 30, 300)
    unit = np.repeat([0, 1], [250, 50])
    pairs = np.unique(unit * 30 + rows)
    together, without = (counted(some // 30, some % 30, [0, 10, 30], [4, 4]) for some in (pairs, pairs[pairs >= 30]))
    moved = together - without
    assert set(moved.tolist()) <= {0, 1} and moved[:10].sum() == moved[10:].sum() == 4


def test_select_counts_units_and_its_rows_fit_a_plan_of_the_same_unit_alone() -> None:
    """Noise of 2.4 a count: a household of 300 lines with one shop weighs as much as any other."""
    baskets, shops = torch.randint(0, 50, (400, 3)), torch.zeros(400, dtype=torch.int64)
    people = np.concatenate([np.zeros(300, int), 1 + np.arange(100) // 2])  # 1 + 50 units
    shops[300:], shops[:300] = 5, 3
    dataset = TensorDataset(baskets, shops, torch.ones(400))
    units = Units(people, "person", max_examples=4)
    algorithm = FEST(selection=SelectionConfig(rows=2, split="equal", noise_multiplier=1.0))
    for size in (90, 1024):
        by_person = select(
            Shop(), dataset, losses, algorithm, rows_per_example=3, units=units, batch_size=size, noise_seed=1
        )
        assert by_person.rows[-1] == 50 + 5 and by_person.unit == units.config
    by_line = select(Shop(), dataset, losses, algorithm, rows_per_example=3, noise_seed=1)
    assert by_line.rows[-1] == 50 + 3
    plus = AdaFESTPlus(selection=algorithm.selection, threshold=1.0)
    for kind in (algorithm, plus):
        take(training(kind, units, selected=by_person), 2)
        with pytest.raises(UserError, match="selected under another unit of privacy"):
            training(kind, units, selected=by_line)


# Streams.

DAYS = [np.arange(60), np.arange(10, 80), np.concatenate([np.arange(40), np.arange(30)]), np.arange(70, 100)]


def stream(algorithm: Any, period: int = 1, epsilon: float = 2.0, **settings: Any) -> PrivacyPlan:
    return dpfest.plan(
        algorithm, epsilon=epsilon, examples=DAYS, batch_size=10, epochs=1.0, period=period, features=[50, 60],
        unit=UnitConfig("person"), **settings,
    )  # fmt: skip


def noise(sigma: float) -> Any:
    """In place of calibration: this noise."""
    return lambda make_events, target, delta: sigma


def fest(source: str) -> FEST:
    return FEST(selection=SelectionConfig(rows=10, noise_multiplier=8.0, source=source))


@pytest.mark.parametrize(("source", "histograms"), [("streaming", 4), ("first_day", 1), ("all_days", 1)])
def test_a_unit_pays_for_every_period_and_every_days_histogram(source: str, histograms: int) -> None:
    """Recounted by dp_accounting alone: everything composed, nothing parallel."""
    planned = stream(fest(source), period=2, calibrate=noise(8.0))
    assert [one.examples for one in planned.periods] == [80, 70] and planned.examples == 100
    assert planned.delta == 1 / 100
    record = json.loads(json.dumps(planned.ledger(2).to_json()))
    accountant = PLDAccountant()
    for event in record["events"]:
        assert event["part"] == []
        mechanism = dp_accounting.GaussianDpEvent(event["noise_multiplier"])
        if event["sampling_probability"] < 1:
            mechanism = dp_accounting.PoissonSampledDpEvent(event["sampling_probability"], mechanism)
        accountant.compose(mechanism, event["count"])
    assert record["epsilon"] == pytest.approx(accountant.get_epsilon(record["delta"]), rel=1e-6)
    assert record["epsilon"] <= 2
    assert sum(e["count"] for e in record["events"] if e["what"] == "row selection") == histograms
    assert {e["sampling_probability"] for e in record["events"] if e["what"] == "training step"} == {10 / 80, 10 / 70}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "sampling"),
    [(fest("streaming"), {}), (DPSGD(), {"sampling": "truncated_poisson", "max_batch_size": 12})],
    ids=["streaming", "truncated"],
)
def test_noise_is_calibrated_to_what_a_unit_in_all_periods_pays(algorithm: Any, sampling: dict[str, Any]) -> None:
    """Slow: each trial of a noise composes all periods. By default, noise is given, and its cost is recounted."""
    planned = stream(algorithm, period=2, **sampling)
    assert 1.99 < planned.epsilon <= 2 and len({one.noise_multiplier for one in planned.periods}) == 1


def test_noise_that_would_do_for_each_period_does_not_for_a_unit_in_all() -> None:
    """No parallel composition: each of four periods costs less than the target, all of them more."""
    planned = stream(DPSGD(), calibrate=noise(3.0))
    each = [accountant.epsilon([event], planned.delta) for event in planned.events]
    assert max(each) < 0.7 * planned.epsilon and all(event.part == () for event in planned.events)
    with pytest.raises(dpfest.BudgetExceeded):
        stream(DPSGD(), epsilon=0.9 * planned.epsilon, calibrate=noise(3.0)).ledger()


def test_a_stream_of_units_trains_period_by_period_on_one_ledger() -> None:
    planned = stream(DPSGD(), period=2, fixed_noise_seed=True, calibrate=noise(3.0))
    model, key, book = Shop(), NoiseKey.from_seed(2), planned.ledger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spent = []
    for number, days in enumerate((DAYS[:2], DAYS[2:])):
        run = PrivateTraining(
            model, losses, optimizer, planned, DatasetReader(data()), period=number, key=key, ledger=book,
            units=Units(np.concatenate(days), "person"),
        )  # fmt: skip
        take(run, 100)
        spent.append(book.epsilon())
    assert 0 < spent[0] < 0.8 * spent[1] and spent[1] == planned.epsilon <= 2


def test_numbers_of_units_by_day_are_refused() -> None:
    with pytest.raises(UserError, match="a unit in two days of a period counts once"):
        dpfest.plan(DPSGD(), epsilon=1.0, examples=[50, 60], batch_size=8, steps=3, unit=UnitConfig("person"))
    with pytest.raises(UserError, match=r"Period 4 \(day 3\) has 30 units, fewer than a batch"):
        dpfest.plan(DPSGD(), epsilon=1.0, examples=DAYS, batch_size=40, steps=3, unit=UnitConfig("person"))


def test_units_of_a_stream_are_not_allocated_to_bins_and_truncation_counts_in_every_period() -> None:
    with pytest.raises(UserError, match="may take part in several periods: choose sampling=poisson"):
        stream(DPSGD(), sampling="balls_in_bins", calibrate=noise(3.0))
    truncated = {"sampling": "truncated_poisson", "max_batch_size": 12}
    planned = stream(DPSGD(), period=2, calibrate=noise(6.0), **truncated)
    assert {(event.max_batch_size, event.dataset_size) for event in planned.events} == {(12, 80), (12, 70)}
    each = [accountant.epsilon([event], planned.delta) for event in planned.events]
    assert max(each) < planned.epsilon <= 2 and all(event.part == () for event in planned.events)
    assert planned.epsilon > stream(DPSGD(), period=2, calibrate=noise(6.0)).epsilon, "what is cut off costs too"
