"""Per-example gradients of any part of a model: those of one example at a time by autograd, in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dpfest
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.rules import DPSGD
from dpfest.errors import UserError
from dpfest.gradients import recording as recordings
from dpfest.gradients.capture import Recorder
from dpfest.gradients.clipped_sum import ClippedSum
from dpfest.gradients.parts import NoisedGradient
from dpfest.gradients.sites import Ambiguous
from dpfest.gradients.tables import Survivors
from dpfest.gradients.units import Groups, UnitConfig
from dpfest.noise.key import NoiseKey
from dpfest.step.engine import PrivateEngine
from tests.dpfest.steps import engine_with, released
from tests.dpfest.users_models import DIM, LENGTH, Custom, Items, Scaled, causal, parts, slow_parts

EXAMPLES = 6
FAST, SLOW = list(parts()), list(slow_parts())


def squares(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square()


def items(examples: int = EXAMPLES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(30, (examples, LENGTH), generator=generator), torch.randn(
        examples, generator=generator
    ).double()


def engine_of(model: nn.Module, losses: Any = squares, algorithm: Any = None, **options: Any) -> PrivateEngine:
    options = {"gradient_noise_multiplier": 0.0, "expected_batch_size": 1.0} | options
    return engine_with(model, algorithm or DPSGD(clipping_norm=0.3), losses, NoiseKey.from_seed(0), **options)


def part_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return ({**parts(), **slow_parts()}[name]).double()


def one_at_a_time(recorder: Recorder, losses: Any, batch: Any) -> list[list[Tensor]]:
    """Each example's gradient of every parameter, dense; the model is run on it alone, with its draws."""
    padding = {id(table.weight): table.padding_idx for table in recorder.tables.values()}
    found = []
    for example in range(len(batch[-1])):
        with recorder.drawing(0, np.array([example])):
            loss = losses(recorder.model, tuple(part[example : example + 1] for part in batch)).sum()
        parameters = list(recorder.trainable.values())
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if padding.get(id(parameter)) is not None:
                gradient[padding[id(parameter)]] = 0
        found.append(list(gradients))
    return found


def assert_clipped(recorder: Recorder, recording: Any, want: list[list[Tensor]], rtol: float = 1e-6) -> None:
    """Assert the norms, and a clipped sum whose bound cuts half of the examples."""
    norms = torch.stack([torch.cat([g.flatten() for g in each]).norm() for each in want])
    bound = float(norms.median())
    total = ClippedSum(recorder, Survivors(recorder.layout, None), bound)
    total.add(recording)
    torch.testing.assert_close(total.example_norms[0], norms, rtol=rtol, atol=1e-9)
    sums = {f"{name}.weight": rows for name, rows in zip(recorder.tables, total.rows, strict=True)}
    sums |= dict(zip(recorder.dense_parameters, total.dense.values(), strict=True))
    for number, name in enumerate(recorder.trainable):
        truth = sum(min(1.0, bound / float(norm)) * each[number] for norm, each in zip(norms, want, strict=True))
        torch.testing.assert_close(sums[name], truth, rtol=rtol, atol=rtol * float(truth.abs().max()) + 1e-12, msg=name)


@pytest.mark.parametrize("name", [*FAST, *SLOW])
@pytest.mark.parametrize("combine", ["example", "mean", "sum"])
def test_norms_and_clipped_sums_are_those_of_one_example_at_a_time(
    name: str, combine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of units, too. What is fast stays so: it makes no backward pass for each example."""
    passes = []
    monkeypatch.setattr(
        recordings, "by_losses", lambda losses, roots, by=recordings.by_losses: passes.append(1) or by(losses, roots)
    )
    unit = None if combine == "example" else UnitConfig("person", combine=combine)
    recorder, batch = Recorder(part_of(name), squares, NoiseKey.from_seed(0), unit), items()
    of = np.array([0, 0, 1, 1, 1, 2])
    groups = None if unit is None else Groups(of, combine, torch.device("cpu"))
    for _ in range(2):  # the first pass learns what the second knows
        passes.clear()
        recording = recorder.record(batch, np.arange(EXAMPLES), 0, groups=groups)
        recording.backward()
    assert bool(passes) == (name in SLOW) == bool(recorder.sites.slow)
    want = one_at_a_time(recorder, squares, batch)
    if unit is not None:
        want = [
            [torch.stack(each).sum(0) / (count if combine == "mean" else 1) for each in zip(*mine, strict=True)]
            for number in range(3)
            for count in [int((of == number).sum())]
            for mine in [[want[k] for k in np.flatnonzero(of == number)]]
        ]
    assert_clipped(recorder, recording, want)


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_micro_batches_and_maps_do_not_change_a_step(name: str) -> None:
    """The pass that only looks up runs without gradients; and a mode that runs for look-ups alone sees them all."""
    ids, labels = items()
    cut = [(ids[:4], labels[:4]), (ids[4:], labels[4:])]
    adafest = AdaFEST(threshold=0.5, clipping_norm=0.3)
    for algorithm, noise in (DPSGD(clipping_norm=0.3), {}), (adafest, {"map_noise_multiplier": 0.3}):
        whole, apart = (
            released(engine_of(part_of(name), algorithm=algorithm, **noise), of, 0) for of in ([(ids, labels)], cut)
        )
        assert_equal_releases(whole, apart)


def assert_equal_releases(one: NoisedGradient, other: NoisedGradient) -> None:
    assert one.rows_per_table == other.rows_per_table
    parts = ([*each.dense.values(), *(table.values for table in each.tables)] for each in (one, other))
    for ours, theirs in zip(*parts, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["attention, dropout", "encoder", "gru, two layers", "lstm"])
def test_evaluation_mode_changes_nothing_of_it(name: str) -> None:
    """PyTorch's fast path for attention runs where nothing is to be differentiated."""
    model, batch = part_of(name).eval(), items()
    model.item.weight.requires_grad_(False)
    recorder = Recorder(model, squares, NoiseKey.from_seed(0))
    recording = recorder.record(batch, np.arange(EXAMPLES), 0)
    recording.backward()
    assert_clipped(recorder, recording, one_at_a_time(recorder, squares, batch))


@pytest.mark.parametrize("name", ["attention", "gru", "encoder", "positions", "bias"])
def test_autocast_takes_them_up_to_its_own_rounding(name: str) -> None:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(batch[0])
        return (scores.float() - batch[1].float()).square()

    recorder = Recorder(part_of(name).float(), losses, NoiseKey.from_seed(0))
    recording = recorder.record(items(), np.arange(EXAMPLES), 0)
    recording.backward()
    assert not recorder.sites.plain and not recorder.sites.in_graph
    norms = torch.stack(
        [torch.cat([g.flatten() for g in each]).norm() for each in one_at_a_time(recorder, losses, items())]
    )
    total = ClippedSum(recorder, Survivors(recorder.layout, None), 1.0)
    total.add(recording)
    torch.testing.assert_close(total.example_norms[0], norms, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("mode", ["max", "mean", "sum"])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("form", ["rectangle", "offsets", "last offset"])
def test_bags_in_every_mode(mode: str, padding: int | None, form: str) -> None:
    """Repeated ids, an empty bag, a row that is chosen in one coordinate only."""
    torch.manual_seed(0)
    last = form == "last offset"
    bag = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding, include_last_offset=last)
    model = nn.ModuleList([bag, nn.Linear(4, 1)]).double()
    if form == "rectangle":
        args: tuple[Tensor, ...] = (torch.randint(9, (5, 6)),)
    else:
        ends = torch.tensor([0, 3, 3, 8, 12, 14]) if last else torch.tensor([0, 3, 3, 8, 12])
        args = (torch.randint(6, (14,)), ends)
    losses = lambda model, batch: model[1](model[0](*batch).tanh()).squeeze(1).square()  # noqa: E731
    recorder = Recorder(model, losses, NoiseKey.from_seed(0))
    recording = recorder.record(args, np.arange(5), 0)
    recording.backward()
    of_all = losses(model, args)
    parameters = list(recorder.trainable.values())
    want = [list(torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)) for loss in of_all]
    assert_clipped(recorder, recording, want)
    bags = args[0].tolist()
    if form != "rectangle":
        cuts = args[1].tolist() if last else [*args[1].tolist(), 14]
        bags = [bags[low:high] for low, high in pairwise(cuts)]
    found = recording.lookups
    pairs = set(zip(found.example.tolist(), found.rows[found.row_of].tolist(), strict=True))
    assert pairs == {(e, row) for e, rows in enumerate(bags) for row in rows if row != padding}, "touched, not chosen"


def test_trainable_weights_of_a_bag() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(30, 4, mode="sum"), "score": nn.Linear(4, 1)}).double()
    model.register_parameter("weights", nn.Parameter(torch.randn(LENGTH).double()))

    def losses(model: Any, batch: Any) -> Tensor:
        found = model["bag"](batch[0], per_sample_weights=model.weights.expand(batch[0].shape))
        return (model["score"](found).squeeze(1) - batch[1]).square()

    recorder = Recorder(model, losses, NoiseKey.from_seed(0))
    recording = recorder.record(items(), np.arange(EXAMPLES), 0)
    recording.backward()
    assert_clipped(recorder, recording, one_at_a_time(recorder, losses, items()))


class Tied(nn.Module):
    """An output layer that shares the table: by its weight, or as a layer."""

    def __init__(self, layer: bool) -> None:
        super().__init__()
        self.item, self.mix = nn.Embedding(30, DIM, padding_idx=4), nn.Linear(DIM, DIM)
        self.out = nn.Linear(DIM, 30) if layer else None
        if layer:
            self.out.weight = self.item.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.mix(self.item(ids)).tanh().mean(1)
        return self.out(hidden) if self.out else hidden @ self.item.weight.T


def next_item(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0][:, :-1]), batch[0][:, -1], reduction="none")


def sampled(model: Any, batch: Any) -> Tensor:
    hidden = model.mix(model.item(batch[0][:, :-1])).tanh().mean(1)
    candidates = torch.cat([batch[0][:, -1:], torch.randint(30, (len(hidden), 4))], 1)
    scores = (model.item(candidates) @ hidden.unsqueeze(2)).squeeze(2)
    return F.cross_entropy(scores, torch.zeros(len(hidden), dtype=torch.int64), reduction="none")


@pytest.mark.parametrize("layer", [True, False])
def test_a_tied_output_layer_trains_and_touches_every_row(layer: bool) -> None:
    torch.manual_seed(0)
    recorder = Recorder(Tied(layer).double(), next_item, NoiseKey.from_seed(0))
    with pytest.warns(UserWarning, match=r"table item\.weight outside of look-ups.*model\.item\(candidates\)"):
        recording = recorder.record(items(), np.arange(EXAMPLES), 0)
    recording.backward()
    assert len(recording.lookups.row_of) == EXAMPLES * 29, "all but padding"
    assert_clipped(recorder, recording, one_at_a_time(recorder, next_item, items()))
    only = recorder.record(items(), np.arange(EXAMPLES), 1, backward=False)
    assert len(only.lookups.row_of) == EXAMPLES * 29


def test_sampled_softmax_keeps_a_tied_table_sparse() -> None:
    torch.manual_seed(0)
    recorder = Recorder(Tied(False).double(), sampled, NoiseKey.from_seed(0))
    recording = recorder.record(items(), np.arange(EXAMPLES), 0)
    recording.backward()
    assert_clipped(recorder, recording, one_at_a_time(recorder, sampled, items()))
    assert len(recording.lookups.row_of) <= EXAMPLES * (LENGTH + 4) and not recorder.sites.tracking


def test_lazy_noise_refuses_a_table_that_is_used_whole() -> None:
    engine = engine_of(Tied(False).double(), next_item, DPSGD(noise="lazy"), gradient_noise_multiplier=1.0)
    with pytest.raises(UserError, match=r"item\.weight outside of look-ups.*noise='dense'"):
        released(engine, [items()], 0)


def test_a_table_that_some_batches_use_whole_is_refused() -> None:
    def losses(model: Any, batch: Any) -> Tensor:
        found = sampled(model, batch)
        return found if len(found) > 3 else found + model.item.weight.square().sum()

    engine = engine_of(Tied(False).double(), losses)
    released(engine, [items()], 0)
    with pytest.raises(UserError, match="in some batches and not in others"):
        released(engine, [items(3)], 1)


def test_a_dense_parameter_that_some_batches_use_elsewhere_is_told_apart() -> None:
    def losses(model: Any, batch: Any) -> Tensor:
        found = sampled(model, batch)
        return found if len(found) > 3 else found * model.mix.weight.exp().sum()

    recorder = Recorder(Tied(False).double(), losses, NoiseKey.from_seed(0))
    recorder.record(items(), np.arange(EXAMPLES), 0).backward()
    recording = recorder.record(items(3), np.arange(3), 0)
    recording.backward()
    assert_clipped(recorder, recording, one_at_a_time(recorder, losses, items(3)))


class Positions(nn.Module):
    """Looks positions up once for the batch; or for each example."""

    def __init__(self, length: int, expanded: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.item, self.place, self.score = nn.Embedding(30, 4), nn.Embedding(length, 4), nn.Linear(4, 1)
        self.expanded, self.places = expanded, length

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(self.places)
        hidden = self.item(ids) + self.place(places.expand(len(ids), -1) if self.expanded else places)
        return self.score(hidden.tanh()).mean((1, 2))


@pytest.mark.parametrize("micro_batch_size", [None, 7])
def test_as_many_positions_as_examples_are_not_taken_for_one_each(micro_batch_size: int | None) -> None:
    """The first batch has as many examples as positions, so that lengths alone say each example has one."""
    examples = 200

    def training(length: int, expanded: bool) -> dpfest.PrivateTraining:
        ids = torch.randint(30, (examples, length), generator=torch.Generator().manual_seed(0))
        data = torch.utils.data.TensorDataset(ids, ids[:, 0].float())
        model = Positions(length, expanded)
        return dpfest.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data, squares, algorithm=DPSGD(clipping_norm=0.01),
            epsilon=3.0, delta=1e-5, batch_size=20, steps=3, noise_seed=1, micro_batch_size=micro_batch_size,
        )  # fmt: skip

    length = micro_batch_size or len(training(2, True).indices(0))
    shared, expanded = training(length, False), training(length, True)
    for one, other in zip(shared, expanded, strict=True):
        shared.step(one), expanded.step(other)
        for ours, theirs in zip(shared.model.parameters(), expanded.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_place_that_changes_its_kind_is_refused_before_anything_is_released() -> None:
    recorder = Recorder(Positions(6, False), squares, NoiseKey.from_seed(0))
    ids = torch.randint(30, (6, 6))
    recorder.record((ids, ids[:, 0].float()), np.arange(6), 0)
    with pytest.raises(Ambiguous, match=r"layer place .*Expand it to the batch"):
        recorder.record((ids[:4], ids[:4, 0].float()), np.arange(4), 1)
    again = recorder.record((ids, ids[:, 0].float()), np.arange(6), 2)  # now it is known
    again.backward()
    assert len(again.lookups.row_of) == 6 * 6 + sum(len(set(row)) for row in ids.tolist())


def test_a_mask_as_long_as_the_batch_is_no_examples_own() -> None:
    model = Items(nn.MultiheadAttention(DIM, 2, batch_first=True), lambda p, x: p(x, x, x, attn_mask=causal())[0])
    recorder, batch = Recorder(model.double(), squares, NoiseKey.from_seed(0)), items(LENGTH)
    recording = recorder.record(batch, np.arange(LENGTH), 0)
    recording.backward()
    assert_clipped(recorder, recording, one_at_a_time(recorder, squares, batch))


def test_rows_of_the_batch_looked_up_once_are_refused() -> None:
    """Each example would touch the rows of all."""

    def losses(model: Any, batch: Any) -> Tensor:
        distinct, place = batch[0].unique(return_inverse=True)
        return (model[1](model[0](distinct)[place]).mean((1, 2)) - batch[1]).square()

    model = nn.ModuleList([nn.Embedding(30, 4), nn.Linear(4, 1)]).double()
    with pytest.raises(UserError, match="looks up other rows"):
        dpfest.validate(model, losses, items(16))


def test_one_examples_overflow_spoils_no_other() -> None:
    """Where gradients are taken for all at once it counts as zero; where they cannot be told apart, no step is made."""
    for name in ("attention", "gru", "positions", "bias", "functions"):
        model, (ids, labels) = part_of(name), items(7)
        bad, rest = labels.clone(), [0, 1, 3, 4, 5, 6]
        bad[2] = float("inf")
        assert_equal_releases(
            released(engine_of(model), [(ids, bad)], 0), released(engine_of(model), [(ids[rest], labels[rest])], 0)
        )
    ids, labels = items()
    labels[2] = float("inf")
    with pytest.raises(UserError, match="cannot be told from the others'"):
        released(engine_of(part_of("flattened")), [(ids, labels)], 0)


def test_a_subclass_of_a_layer_is_differentiated_as_it_is() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    recorder = Recorder(Items(Doubled(DIM, DIM)).double(), squares, NoiseKey.from_seed(0))
    recording = recorder.record(items(), np.arange(EXAMPLES), 0)
    recording.backward()
    assert_clipped(recorder, recording, one_at_a_time(recorder, squares, items()))


def test_look_ups_of_a_subclass_are_sparse_and_seen_without_gradients() -> None:
    model = Custom(lambda p, ids: p.table(ids[:, 0]).sum(1), table=Scaled(30, 4))
    recorder = Recorder(model, squares, NoiseKey.from_seed(0))
    batch = tuple(part.float() if part.is_floating_point() else part for part in items())
    for backward in (True, False):
        recording = recorder.record(batch, np.arange(EXAMPLES), 0, backward=backward)
        assert len(recording.lookups.row_of) == EXAMPLES


@pytest.mark.parametrize("name", ["attention, dropout", "gru, two layers", "positions, mixed", "bias", "first token"])
def test_sound_models_pass_the_check_and_train(name: str) -> None:
    model = part_of(name).float()
    data = torch.utils.data.TensorDataset(*(part.float() if part.is_floating_point() else part for part in items(60)))
    dpfest.validate(model, squares, data[:LENGTH])  # as many as positions
    training = dpfest.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, squares, algorithm=AdaFEST(threshold=1.0),
        epsilon=3.0, delta=1e-5, batch_size=20, steps=2,
    )  # fmt: skip
    for batch in training:
        training.step(batch)


def attends_across(part: Any, x: Tensor) -> Tensor:
    means = x.mean(1)
    return (F.softmax(means @ means.T, -1) @ means * part.w).unsqueeze(1)


MIXED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "statistics of the batch": lambda p, x: F.batch_norm(x[:, 0], None, None, training=True)[:, None] * p.w,
    "attention across examples": attends_across,
    "positions in the batch": lambda p, x: x + p.w * torch.arange(len(x))[:, None, None],
    "a mean over the batch": lambda p, x: x - (x * p.w).mean(0),
}


@pytest.mark.parametrize("name", MIXED)
def test_examples_that_mix_around_a_bare_parameter_are_refused(name: str) -> None:
    torch.manual_seed(0)
    model = Items(Custom(lambda p, x: x, w=vector_of_ones()), MIXED[name])
    batch = tuple(part.float() if part.is_floating_point() else part for part in items(16))
    with pytest.raises(UserError, match="mix"):
        dpfest.validate(model, squares, batch)


def vector_of_ones() -> Tensor:
    return torch.ones(DIM) + 0.1 * torch.arange(DIM)


def test_a_layer_that_returns_something_else_the_second_time_takes_the_slow_way() -> None:
    calls = []

    def odd(part: Any, x: Tensor) -> Tensor:
        calls.append(1)
        return x * part.w * len(calls)

    model = Items(Custom(odd, w=vector_of_ones())).double()
    recorder = Recorder(model, squares, NoiseKey.from_seed(0))
    recorder.record(items(), np.arange(EXAMPLES), 0)
    assert recorder.sites.in_graph == {"part"}
