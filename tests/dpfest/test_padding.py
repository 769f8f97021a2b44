"""Passes over padded batches: the step of batches as they are, of one shape, whatever padding holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.gradients import padding
from dpfest.gradients.parts import NoisedGradient
from dpfest.gradients.reading import Batch, MicroBatch
from dpfest.noise.key import NoiseKey
from dpfest.step.engine import PrivateEngine
from dpfest.training.trial import check_batch
from tests.dpfest.steps import by_batch, engine_with, released
from tests.dpfest.test_engine import CASES, Mixed, dense_release, losses_of, mixed, tabular, text

KEY = NoiseKey.from_seed(3)


def engine_of(model: nn.Module, case: str, losses: Any, usual: int | None, **options: Any) -> PrivateEngine:
    algorithm, settings = CASES[case]
    selected = settings.get("selected")
    settings = {**settings, "selected": None if selected is None else torch.from_numpy(selected)}
    engine = engine_with(model, algorithm, losses, KEY, expected_batch_size=10.0, **settings, **options)
    engine.recorder.usual = usual
    return engine


class Lengths:
    """How many examples each call of a model's layers takes."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: list[int] = []
        for layer in model.modules():
            if not list(layer.children()):
                layer.register_forward_hook(lambda _, args, output: self.seen.append(len(output)))


@pytest.mark.parametrize("make", [tabular, text])
@pytest.mark.parametrize("case", CASES)
def test_a_padded_step_is_the_step(case: str, make: Any) -> None:
    """Twice, as the first pass follows more; with several micro-batches, and dense noise, which is the same."""
    for splits in (1, 3):
        found = []
        for usual in (None, 32):
            model, batch, _ = make(17)
            lengths, engine = Lengths(model), engine_of(model, case, by_batch(losses_of(model)), usual)
            micro = list(zip(*(part.tensor_split(splits) for part in batch), strict=True))
            found.append([dense_release(engine, released(engine, micro, step)) for step in (4, 5)])
            sizes = {1: {17}, 3: {5, 6}}[splits] if usual is None else {1: {32}, 3: {256}}[splits]
            assert set(lengths.seen) == sizes
        for plain, ours in zip(*found, strict=True):
            for name, value in plain.items():
                torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("make", [tabular, text])
def test_what_padding_holds_changes_no_bit(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities, nan, other examples: of one's own first, or whatever."""

    def with_rest(rest: str) -> list[NoisedGradient]:
        def padded(data: Any, count: int, capacity: int) -> Any:
            def one(leaf: Tensor) -> Tensor:
                more = leaf.new_zeros(capacity - count, *leaf.shape[1:])
                if leaf.is_floating_point():
                    more.fill_({"zeros": 0.0, "infinities": torch.inf, "nan": torch.nan}[rest])
                elif rest != "zeros":
                    more[::2] = 3
                return torch.cat([leaf, more])

            return tuple(map(one, data))

        model, batch, _ = make(17)
        with monkeypatch.context() as patch:
            patch.setattr("dpfest.gradients.padding.padded", padded)
            engine = engine_of(model, "adafest", by_batch(losses_of(model)), 32)
            return [released(engine, [batch], step) for step in (0, 1)]

    first, *others = (with_rest(rest) for rest in ("zeros", "infinities", "nan"))
    for other in others:
        for ours, theirs in zip(first, other, strict=True):
            assert all(torch.equal(value, theirs.dense[name]) for name, value in ours.dense.items())
            for mine, its in zip(ours.tables, theirs.tables, strict=True):
                assert torch.equal(mine.rows, its.rows) and torch.equal(mine.values, its.values)  # type: ignore[arg-type]


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(12, 6), nn.Linear(6, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.words(ids).mean(1), 0.5)).squeeze(1)


def test_an_example_draws_the_same_in_a_padded_batch() -> None:
    ids = torch.randint(0, 12, (17, 4), generator=torch.Generator().manual_seed(2))
    found = []
    for usual in (None, 32):
        model = Dropped().double()
        engine = engine_of(model, "dpsgd", lambda own, batch: own(batch[0]).square(), usual)
        found.append([dense_release(engine, released(engine, [(ids,)], step)) for step in (0, 1)])
    for plain, ours in zip(*found, strict=True):
        for name, value in plain.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-11)


class Places(nn.Module):
    """Positions that all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(12, 3), nn.Embedding(4, 3), nn.Linear(3, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head((self.words(ids) + self.places(torch.arange(4))).mean(1)).squeeze(1)


class Scaled(nn.Module):
    """A bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(12, 3), nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor) -> Tensor:
        return (self.words(ids).mean(1) * self.scale).sum(1)


@pytest.mark.parametrize("make", [Places, Scaled, "bags", "a list"])
def test_what_cannot_be_padded_runs_as_it_is(make: Any) -> None:
    """The passes that count are of the batch's own length; the first may be longer, and is made again."""
    found = []
    for usual in (None, 32):
        torch.manual_seed(0)
        ids = torch.randint(0, 12, (17, 4))
        model, batch, _ = mixed(17) if make == "bags" else (Scaled() if make == "a list" else make(), (ids,), None)
        losses = losses_of(model) if make == "bags" else lambda batch, own=model: own(batch[0]).square()
        lengths, engine = Lengths(model), engine_of(model.double(), "dpsgd", by_batch(losses), usual)
        part = [*batch, 3] if make == "a list" else batch
        micro = [MicroBatch(np.arange(17), part)]
        first = dense_release(engine, engine.gradient(micro, 0)[0])
        lengths.seen.clear()
        found.append([first, dense_release(engine, engine.gradient(micro, 1)[0])])
        assert 32 not in lengths.seen and lengths.seen
    for plain, ours in zip(*found, strict=True):
        assert all(torch.equal(value, ours[name]) for name, value in plain.items())
    assert make != "bags" or isinstance(model, Mixed)


class Crowded(nn.Module):
    """Mixes examples where there are many."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(12, 6), nn.Linear(6, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).mean(1)
        return self.head(x - x.mean(0) if len(ids) > 24 else x).squeeze(1)


def test_a_model_that_mixes_only_in_a_padded_batch_is_refused() -> None:
    """The check runs a whole batch as steps do."""
    parts = [MicroBatch(np.arange(17)[cut], (torch.arange(68).view(17, 4)[cut] % 12,)) for cut in
             (slice(17), slice(9), slice(9, 17))]  # fmt: skip
    batch = Batch(0, parts[:1], tuple([one] for one in parts))
    for usual in (None, 32):
        torch.manual_seed(0)
        engine = engine_of(Crowded(), "dpsgd", lambda own, batch: own(batch[0]).square(), usual)
        if usual is None:
            check_batch(engine.recorder, 0.7, batch)
            continue
        with pytest.raises(UserError, match="The examples of a batch mix"):
            check_batch(engine.recorder, 0.7, batch)


def test_capacities() -> None:
    """A Poisson batch of 2,048 fits into one but once in 10^9; few examples do not take a large batch's passes."""
    usual = padding.usual_capacity(2048)
    assert usual == 2560 and padding.usual_capacity(1.0) == 256
    assert [padding.capacity_for(count, usual) for count in (1, 256, 257, 1279, 1280, 2560, 2561)] == [
        256, 256, 512, 1280, usual, usual, 2816,
    ]  # fmt: skip
