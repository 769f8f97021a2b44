"""Every algorithm's step against the slow dense reference, under shared noise, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfest.algorithms.adafest import AdaFEST, AdaFESTPlus
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.exponential import Exponential
from dpfest.algorithms.rules import ALGORITHMS, DPSGD, FEST, Frozen, Threshold
from dpfest.errors import UserError
from dpfest.gradients.layers import Call, LinearFactors
from dpfest.gradients.parts import NoisedGradient
from dpfest.noise.key import NoiseKey
from dpfest.planning.unproven import Nonprivate
from dpfest.step.engine import PrivateEngine
from tests.dpfest.reference import reference_gradient
from tests.dpfest.steps import by_batch, engine_with, released

SIGMA = {"gradient_noise_multiplier": 0.8}
SELECTED = np.array([0, 2, 7, 8, 20, 33, 40, 41, 50])


class Tabular(nn.Module):
    """Three single-valued features, as in the click-through model."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(7, 2), nn.Embedding(40, 3), nn.Embedding(4, 1)])
        self.network = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1))

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        embedded = [table(ids[:, feature]) for feature, table in enumerate(self.tables)]
        return self.network(torch.cat([numeric, *embedded], dim=1)).squeeze(1)


class Text(nn.Module):
    """Repeated tokens, padding, a table that is looked up twice, a sequence of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(45, 3, padding_idx=0)
        self.topic = nn.Embedding(6, 2)
        self.mix = nn.Linear(3, 4)
        self.head = nn.Linear(9, 1, bias=False)

    def forward(self, tokens: Tensor, topic: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(self.words(tokens))).mean(1)
        return self.head(torch.cat([hidden, self.words(tokens[:, 0]), self.topic(topic)], dim=1)).squeeze(1)


class Mixed(nn.Module):
    """Bags of every kind, two layers on one table, layers called twice, normalisations, convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.EmbeddingBag(20, 3, mode="mean", padding_idx=2)
        self.total = nn.EmbeddingBag(15, 2, mode="sum")
        self.words, self.again = nn.Embedding(16, 4), nn.EmbeddingBag(16, 4, mode="sum")
        self.again.weight = self.words.weight
        self.slope = nn.Linear(1, 1)
        self.norm, self.twice, self.rms = nn.LayerNorm(4), nn.Linear(4, 4), nn.RMSNorm(4)
        self.conv, self.group = nn.Conv1d(4, 6, 2, groups=2), nn.GroupNorm(3, 6)
        self.image, self.bend = nn.Conv2d(1, 2, 3, stride=2), nn.PReLU(2)
        self.head = nn.Linear(3 + 2 + 4 + 6 + 2, 1)

    def forward(self, ids: Tensor, lengths: Tensor, images: Tensor) -> Tensor:
        flat = torch.cat([row[:length] for row, length in zip(ids, lengths, strict=True)] or [ids.flatten()])
        ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        weights = torch.sigmoid(self.slope(ids.unsqueeze(2).to(images.dtype))).squeeze(2)
        hidden = self.norm(self.words(ids))
        hidden = self.rms(self.twice(torch.tanh(self.twice(hidden))))
        parts = (
            self.mean(flat, ends[:-1]),
            self.total(ids % 15, per_sample_weights=weights),
            self.again(flat, offsets=ends[:-1]),
            self.group(self.conv(hidden.transpose(1, 2))).mean(2),
            self.bend(self.image(images)).flatten(2).mean(2),
        )
        return self.head(torch.cat(parts, dim=1)).squeeze(1)


def mixed(examples: int) -> tuple[nn.Module, Any, list[list[set[int]]]]:
    torch.manual_seed(3)
    ids, lengths = torch.randint(0, 16, (examples, 5)), torch.randint(0, 6, (examples,))
    images, labels = torch.randn(examples, 1, 5, 5).double(), torch.randint(0, 2, (examples,)).double()
    bags = [set(row[:length].tolist()) for row, length in zip(ids, lengths, strict=True)]
    rows = [{int(i) for i in row} for row in ids]
    touched = [[bag - {2} for bag in bags], [{i % 15 for i in row} for row in rows], rows]
    return Mixed().double(), (ids, lengths, images, labels), touched


def tabular(examples: int) -> tuple[nn.Module, Any, list[list[set[int]]]]:
    torch.manual_seed(1)
    ids = torch.stack([torch.randint(0, v, (examples,)) for v in (7, 40, 4)], dim=1)
    batch = (torch.randn(examples, 2, dtype=torch.float64), ids, torch.randint(0, 2, (examples,)).double())
    return Tabular().double(), batch, [[{int(i)} for i in ids[:, table]] for table in range(3)]


def text(examples: int) -> tuple[nn.Module, Any, list[list[set[int]]]]:
    torch.manual_seed(2)
    tokens = torch.randint(0, 12, (examples, 6))  # few tokens, so that many repeat; 0 is padding
    topic = torch.randint(0, 6, (examples,))
    ids = [[set(map(int, line)) - {0} for line in tokens], [{int(i)} for i in topic]]
    return Text().double(), (tokens, topic, torch.randint(0, 2, (examples,)).double()), ids


def losses_of(model: nn.Module) -> Any:
    def losses(batch: Any) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(*batch[:-1]), batch[-1], reduction="none") * 8

    return losses


def dense(engine: PrivateEngine, microbatches: list[Any], step: int) -> dict[str, Tensor]:
    return dense_release(engine, released(engine, microbatches, step))


def dense_release(engine: PrivateEngine, gradient: NoisedGradient) -> dict[str, Tensor]:
    result = dict(gradient.dense)
    for (name, table), rows in zip(engine.recorder.tables.items(), gradient.tables, strict=True):
        values = torch.zeros_like(table.weight)
        values[slice(None) if rows.rows is None else rows.rows] = rows.values
        result[name + ".weight"] = values
    return result


CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "nonprivate": (Nonprivate(), {"gradient_noise_multiplier": 0.0}),
    "dpsgd": (DPSGD(clipping_norm=0.7), SIGMA),
    "frozen": (Frozen(clipping_norm=0.7), SIGMA),
    "threshold": (Threshold(clipping_norm=0.7, false_rate=0.3), SIGMA),
    "threshold_soft": (Threshold(clipping_norm=0.7, false_rate=0.6, rule="soft"), SIGMA),
    "fest": (FEST(clipping_norm=0.7), {**SIGMA, "selected": SELECTED}),
    "adafest": (
        AdaFEST(clipping_norm=0.7, contribution_clipping_norm=1.2, threshold=1.5),
        {**SIGMA, "map_noise_multiplier": 0.9},
    ),
    "adafest_tight_map": (
        AdaFEST(clipping_norm=0.7, contribution_clipping_norm=0.3, threshold=0.2),
        {**SIGMA, "map_noise_multiplier": 0.5},
    ),
    "adafest_plus": (
        AdaFESTPlus(clipping_norm=0.7, contribution_clipping_norm=0.8, threshold=0.9),
        {**SIGMA, "map_noise_multiplier": 0.9, "selected": SELECTED},
    ),
    "exponential": (
        Exponential(clipping_norm=0.5, selection_clipping_norm=0.4, rows_per_step=9),
        {**SIGMA, "epsilon_per_draw": 0.8},
    ),
}
CASES |= {name: (kind(clipping_norm=0.7), SIGMA) for name, kind in ALGORITHMS.items() if name not in CASES}


@pytest.mark.parametrize("make", [tabular, text, mixed])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("splits", [1, 3])
def test_step_equals_dense_reference(case: str, make: Any, splits: int) -> None:
    algorithm, settings = CASES[case]
    examples = 17
    model, batch, ids = make(examples)
    losses, key = losses_of(model), NoiseKey.from_seed(3)
    selected = settings.get("selected")
    engine = engine_with(
        model,
        algorithm,
        by_batch(losses),
        key,
        expected_batch_size=10.0,
        **{**settings, "selected": None if selected is None else torch.from_numpy(selected)},
    )
    micro = list(zip(*(part.tensor_split(splits) for part in batch), strict=True))
    got = dense(engine, micro, step=5)
    want = reference_gradient(model, algorithm, losses, batch, ids, key, 5, divisor=10.0, **settings)
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-11)


class ReadByWord(nn.Module):
    """One look-up a position, as many as the longest text of the micro-batch has words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(12, 3, padding_idx=0), nn.Linear(3, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        length = max(1, int((tokens != 0).sum(1).max()))
        return self.head(sum(torch.tanh(self.words(tokens[:, place])) for place in range(length))).squeeze(1)


def test_look_ups_that_vary_between_micro_batches_are_all_seen() -> None:
    """The map holds the look-ups of every micro-batch: more in the second one."""
    torch.manual_seed(4)
    tokens = torch.randint(1, 12, (6, 5))
    tokens[:2, 1:], tokens[2:4, 3:] = 0, 0
    batch, key = (tokens, torch.randint(0, 2, (6,)).double()), NoiseKey.from_seed(3)
    model, (algorithm, settings) = ReadByWord().double(), CASES["adafest"]
    losses = losses_of(model)
    engine = engine_with(model, algorithm, by_batch(losses), key, expected_batch_size=10.0, **settings)
    micro = list(zip(*(part.tensor_split(3) for part in batch), strict=True))
    touched = [[set(map(int, line)) - {0} for line in tokens]]
    for step in range(2):
        got = dense(engine, micro, step)
        want = reference_gradient(model, algorithm, losses, batch, touched, key, step, divisor=10.0, **settings)
        for name, value in want.items():
            torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-11)


def test_clipping_binds_and_masking_comes_first() -> None:
    """With every row masked, the dense part alone fills the clipping norm: masked before clipped."""
    model, batch, _ = tabular(1)
    engine = engine_with(
        model,
        Frozen(clipping_norm=0.01),
        by_batch(losses_of(model)),
        NoiseKey.from_seed(0),
        gradient_noise_multiplier=0.0,
        expected_batch_size=1.0,
    )
    gradient = released(engine, [batch], 0)
    assert torch.sqrt(sum(g.square().sum() for g in gradient.dense.values())).item() == pytest.approx(0.01)


@pytest.mark.parametrize("case", CASES)
def test_empty_batch_still_gets_noise(case: str) -> None:
    algorithm, settings = CASES[case]
    model, batch, _ = tabular(4)
    selected = settings.get("selected")
    engine = engine_with(
        model,
        algorithm,
        by_batch(losses_of(model)),
        NoiseKey.from_seed(0),
        expected_batch_size=10.0,
        **{**settings, "selected": None if selected is None else torch.from_numpy(selected)},
    )
    gradient = released(engine, [tuple(part[:0] for part in batch)], 0)
    noisy = [g for g in gradient.dense.values()]
    if algorithm.private:
        assert all(bool((g != 0).all()) for g in noisy)
    else:
        assert all(bool((g == 0).all()) for g in noisy)


def engine_for(model: nn.Module, algorithm: Algorithm, **settings: Any) -> PrivateEngine:
    return engine_with(
        model,
        algorithm,
        by_batch(losses_of(model)),
        NoiseKey.from_seed(9),
        expected_batch_size=10.0,
        **SIGMA,
        **settings,
    )


@pytest.mark.parametrize(
    ("twin", "settings"),
    [
        (AdaFEST(threshold=-math.inf), {"map_noise_multiplier": 2.0}),
        (AdaFEST(threshold=-1e9), {"map_noise_multiplier": 2.0}),
        (FEST(), {"selected": torch.arange(51)}),
        (AdaFESTPlus(threshold=-1e9), {"map_noise_multiplier": 2.0, "selected": torch.arange(51)}),
    ],
    ids=["no threshold", "adafest", "fest", "adafest_plus"],
)
def test_rules_that_keep_every_row_are_dpsgd_under_shared_noise(twin: Algorithm, settings: dict[str, Any]) -> None:
    model, batch, _ = tabular(20)
    everything = dense(engine_for(model, DPSGD()), [batch], 1)
    kept = dense(engine_for(model, twin, **settings), [batch], 1)
    for name, value in everything.items():
        torch.testing.assert_close(kept[name], value, rtol=1e-12, atol=0)


def test_noise_on_survivors_alone_and_fresh_each_step() -> None:
    model, batch, _ = tabular(20)
    engine = engine_for(model, FEST(), selected=torch.tensor([1, 9]))
    first, second = dense(engine, [batch], 1), dense(engine, [batch], 2)
    assert torch.nonzero(first["tables.0.weight"].any(1)).flatten().tolist() == [1]
    assert torch.nonzero(first["tables.1.weight"].any(1)).flatten().tolist() == [2]
    assert not first["tables.2.weight"].any()
    assert bool((first["tables.0.weight"][1] != second["tables.0.weight"][1]).all())


def test_a_bag_of_repeated_ids_is_summed_even_where_there_are_as_many_ids_as_examples() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(6, 2, mode="sum")

        def forward(self, ids: Tensor, ends: Tensor) -> Tensor:
            return self.bag(ids, ends).sum(1)

    model, ids = Bag().double(), torch.tensor([4, 4, 1])
    batch = (ids, torch.tensor([0, 2, 3]), torch.ones(3).double())
    engine = engine_with(
        model,
        DPSGD(clipping_norm=0.5),
        lambda model, b: model(*b[:2]),
        NoiseKey.from_seed(0),
        gradient_noise_multiplier=0.0,
        expected_batch_size=1.0,
    )
    gradient = released(engine, [batch], 0)
    clipped = 0.5 / 2**0.5  # each example's gradient, whatever it was, is cut to 0.5 over two coordinates
    want = torch.zeros(6, 2).double().index_fill(0, torch.tensor([1, 4]), clipped)
    torch.testing.assert_close(gradient.tables[0].values, want)


def test_in_place_activation_is_refused_by_name() -> None:
    model, batch, _ = tabular(3)
    model.network[1] = nn.ReLU(inplace=True)
    with pytest.raises(UserError, match=r"network\.0 is changed in place"):
        released(engine_for(model, DPSGD()), [batch], 0)


def test_writing_into_an_embedding_output_is_refused_in_a_sentence() -> None:
    table = nn.Embedding(7, 2)
    losses = lambda _, ids: table(ids).mul_(2).sum(1)  # noqa: E731
    engine = engine_with(table, DPSGD(), losses, NoiseKey.from_seed(0), expected_batch_size=5, **SIGMA)
    with pytest.raises(UserError, match=r"output of a trainable layer is changed in place.*out-of-place form"):
        released(engine, [torch.arange(5)], 0)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(3, affine=False), "mixes the examples"),
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.EmbeddingBag(3, 2, max_norm=1.0), "max_norm"),
        (nn.EmbeddingBag(3, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.InstanceNorm1d(3, track_running_stats=True), "statistics"),
    ],
)
def test_layers_that_break_the_guarantee_are_refused_by_name(layer: nn.Module, words: str) -> None:
    model = Tabular()
    model.extra = layer
    with pytest.raises(UserError, match=words) as error:
        engine_for(model, DPSGD())
    assert "extra" in str(error.value)


def test_two_layers_on_a_table_that_differ_in_padding_are_refused() -> None:
    model = Tabular()
    model.extra = nn.Embedding(7, 2, padding_idx=3)
    model.extra.weight = model.tables[0].weight
    with pytest.raises(UserError, match=r"tables\.0 and extra share a table.*padding_idx"):
        engine_for(model, DPSGD())


def test_a_parameter_read_without_gradient_is_no_use() -> None:
    class Reads(Tabular):
        def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
            return super().forward(numeric, ids) * self.network[2].weight.detach().norm().clamp(1, 1)

    model, batch, _ = tabular(3)
    reads = Reads().double()
    reads.load_state_dict(model.state_dict())
    got, want = (dense(engine_for(m, DPSGD()), [batch], 1) for m in (reads, model))
    assert all(torch.equal(got[name], value) for name, value in want.items())


def test_layer_norm_over_the_batch_is_refused() -> None:
    class Over(Tabular):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm([3, 8])

        def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
            embedded = [table(ids[:, feature]) for feature, table in enumerate(self.tables)]
            return self.network(self.norm(torch.cat([numeric, *embedded], dim=1))).squeeze(1)

    _, batch, _ = tabular(3)
    with pytest.raises(UserError, match="norm gives"):
        released(engine_for(Over().double(), DPSGD()), [batch], 0)


def test_frozen_parameters_get_no_gradient_and_keep_their_flag() -> None:
    model, batch, _ = tabular(5)
    model.network[0].weight.requires_grad_(False)
    gradient = released(engine_for(model, DPSGD()), [batch], 0)
    assert "network.0.weight" not in gradient.dense and "network.0.bias" in gradient.dense
    assert not model.network[0].weight.requires_grad and model.network[0].bias.requires_grad


def test_a_mean_loss_is_refused() -> None:
    model, batch, _ = tabular(5)
    losses = losses_of(model)
    engine = engine_with(
        model, DPSGD(), lambda _, b: losses(b).mean(), NoiseKey.from_seed(0), expected_batch_size=5, **SIGMA
    )
    with pytest.raises(UserError, match="one loss per example"):
        released(engine, [batch], 0)


@pytest.mark.parametrize("make", [tabular, text, mixed])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_example_without_a_finite_gradient_counts_as_zero(make: Any, bad: float) -> None:
    model, batch, _ = make(6)
    losses = losses_of(model)
    weights = torch.tensor([1, 1, bad, 1, 1, 1], dtype=torch.float64)
    broken = engine_with(
        model,
        DPSGD(),
        lambda _, b: losses(b) * weights[: len(b[-1])],
        NoiseKey.from_seed(9),
        expected_batch_size=10.0,
        **SIGMA,
    )
    rest = tuple(part[[0, 1, 3, 4, 5]] for part in batch)
    got, want = dense(broken, [batch], 1), dense(engine_for(model, DPSGD()), [rest], 1)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-12)


def test_padding_rows_are_left_alone() -> None:
    model, batch, _ = text(6)
    for algorithm, settings in ((DPSGD(), {}), (FEST(), {"selected": torch.tensor([0, 3, 46])})):
        gradient = dense(engine_for(model, algorithm, **settings), [batch], 1)["words.weight"]
        assert not gradient[0].any() and gradient[3].all()


def test_unused_tables_and_models_without_tables() -> None:
    model, batch, _ = tabular(5)
    model.unused = nn.Embedding(6, 2, dtype=torch.float64)
    assert dense(engine_for(model, DPSGD()), [batch], 1)["unused.weight"].all(), "noise alone"
    assert not dense(engine_for(model, Frozen()), [batch], 1)["unused.weight"].any()
    for table in (*model.tables, model.unused):
        table.weight.requires_grad_(False)
    for algorithm in (Frozen(), DPSGD()):
        assert set(dense(engine_for(model, algorithm), [batch], 1)) == {
            f"network.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")
        }


def test_inputs_may_be_named() -> None:
    class Named(Tabular):
        def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
            embedded = [table(input=ids[:, feature]) for feature, table in enumerate(self.tables)]
            return self.network(torch.cat([numeric, *embedded], dim=1)).squeeze(1)

    plain, batch, _ = tabular(5)
    named = Named().double()
    named.load_state_dict(plain.state_dict())
    got, want = dense(engine_for(named, DPSGD()), [batch], 1), dense(engine_for(plain, DPSGD()), [batch], 1)
    assert all(torch.equal(got[name], value) for name, value in want.items())


def test_norm_of_a_long_sequence_survives_cancellation() -> None:
    """Two near-equal tokens with opposite output gradients: in float32 the Gram sum would come out as zero."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 64, bias=False)
    token = torch.randn(1, 1, 64) * 1e3
    inputs = torch.cat([token, token + 1e-1 * torch.randn(1, 1, 64)], dim=1)
    gradient = torch.randn(1, 1, 64)
    gradients = torch.cat([gradient, -gradient], dim=1)
    call = Call((inputs,), {}, gradients)
    truth = (gradients.double().transpose(1, 2) @ inputs.double()).square().sum()
    assert LinearFactors(layer, [call]).squared_norms().item() == pytest.approx(truth.item(), rel=1e-3)
