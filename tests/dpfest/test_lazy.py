"""Lazy noise has the law of dense noise: per row, after any pattern of reads and learning rates, before every read.

Chi-squared tests at a fixed seed, false-alarm rate 1e-4 each; a deviation that is 5% off is rejected.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpfest import DPSGD, NoiseKey, PrivacyPlan, PrivateTraining, UserError, plan
from dpfest.gradients.reading import DatasetReader
from dpfest.step.lazy import lacks_noise
from tests.dpfest.steps import by_batch, engine_with, released

ROWS, DIM, STEPS, EXAMPLES = 6, 12_000, 7, 40
FALSE_ALARM = 1e-4


class Reader(nn.Module):
    """Reads rows and learns nothing from them: what moves is noise alone. Keeps what it read."""

    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, DIM, padding_idx=padding_idx)
        self.head = nn.Linear(1, 1)
        self._read: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            self.table.weight.zero_()


def read_and_keep(model: Any, batch: Any) -> Tensor:
    ids, x = batch
    found = model.table(ids)
    model._read.append((ids.clone(), found.detach().clone()))
    return model.head(x).squeeze(1) + 0.0 * found.flatten(1).sum(1)


PLANNED: list[PrivacyPlan] = []


def planned() -> PrivacyPlan:
    if not PLANNED:
        settings = {"epsilon": 20.0, "examples": EXAMPLES, "batch_size": 4, "steps": STEPS, "fixed_noise_seed": True}
        PLANNED.append(plan(DPSGD(noise="lazy"), calibrate=lambda *question: 1.0, **settings))
    return PLANNED[0]


def data() -> TensorDataset:
    """Row 5 is never read, row 0 often."""
    ids = torch.from_numpy(np.random.default_rng(0).choice(5, size=(EXAMPLES, 2), p=[0.5, 0.2, 0.1, 0.1, 0.1]))
    return TensorDataset(ids, torch.randn(EXAMPLES, 1, generator=torch.Generator().manual_seed(0)))


def training(
    model: nn.Module, lr: float = 0.5, seed: int = 1, micro_batch_size: int | None = None, **settings: Any
) -> PrivateTraining:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **settings)
    read = DatasetReader(data(), micro_batch_size=micro_batch_size)
    return PrivateTraining(model, read_and_keep, optimizer, planned(), read, key=NoiseKey.from_seed(seed))


def accepts(sample: Tensor, variance: float) -> None:
    total, size = float(sample.double().square().sum()), sample.numel()
    tail = min(stats.chi2.sf(total / variance, size), stats.chi2.cdf(total / variance, size))
    assert tail > FALSE_ALARM / 2
    for wrong in (0.95, 1.05):
        other = total / (variance * wrong**2)
        assert min(stats.chi2.sf(other, size), stats.chi2.cdf(other, size)) < 1e-3


def test_every_read_and_the_end_have_the_variance_of_dense_noise() -> None:
    model = Reader()
    run = training(model, micro_batch_size=3)
    deviation = run.engine.noise.deviation / run.plan.batch_size
    owed = 0.0
    for step, batch in enumerate(run):
        rate = 0.5 / (1 + step)  # a schedule
        run.optimizers[0].param_groups[0]["lr"] = rate
        model._read.clear()
        run.step(batch)
        for ids, found in model._read:
            if owed:
                rows = {int(row): found.reshape(-1, DIM)[place] for place, row in enumerate(ids.flatten())}
                for value in rows.values():
                    accepts(value, owed)
        if step < STEPS - 1:
            assert model.table.weight[5].abs().sum() == 0, "never read: its noise is owed until the flush"
        owed += (rate * deviation) ** 2
    for row in range(ROWS):
        accepts(model.table.weight.detach()[row], owed)
    correlation = np.corrcoef(model.table.weight.detach().numpy())
    off = correlation[np.triu_indices(ROWS, 1)] * np.sqrt(DIM)
    assert stats.chi2.sf((off**2).sum(), len(off)) > FALSE_ALARM


def test_a_flush_on_the_way_changes_no_law_and_owes_nothing() -> None:
    model = Reader()
    run = training(model)
    deviation = run.engine.noise.deviation / run.plan.batch_size
    for step, batch in enumerate(run):
        run.step(batch)
        if step in (1, 4):
            run.flush()
            accepts(model.table.weight.detach(), (step + 1) * (0.5 * deviation) ** 2)
            before = model.table.weight.detach().clone()
            run.flush()
            assert torch.equal(model.table.weight, before)
    accepts(model.table.weight.detach(), STEPS * (0.5 * deviation) ** 2)


def test_padding_is_never_noised() -> None:
    model = Reader(padding_idx=5)
    run = training(model)
    for batch in run:
        run.step(batch)
    assert model.table.weight[5].abs().sum() == 0 and bool((model.table.weight[:5] != 0).all())
    copy.deepcopy(model)  # padding lacks no noise


def test_a_single_row_that_lacks_noise_is_noticed() -> None:
    model = Reader(padding_idx=5)
    run = training(model)
    run.step(next(iter(run)))
    lazy = run.engine.lazy
    assert lazy is not None
    with lazy.private():
        model.table(torch.tensor([0, 1, 2, 3]))
        lazy.read(0, torch.tensor([0, 1, 2, 3]))
        assert lacks_noise(lazy.state_dict())
    with pytest.raises(UserError, match="lack noise that is still pending"):
        copy.deepcopy(model)


def test_a_killed_run_goes_on_to_the_same_bits() -> None:
    whole, half = training(Reader()), training(Reader())
    for run, steps in ((whole, STEPS), (half, 3)):
        for _, batch in zip(range(steps), run, strict=False):
            run.step(batch)
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    resumed = training(Reader(), seed=2)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for batch in resumed:
        resumed.step(batch)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_without_noise_it_is_dense_dpsgd_to_the_bit() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Linear(6, 1)).double()
    batch = torch.randint(0, 20, (8, 2))
    found = []
    for noise in ("dense", "lazy"):
        engine = engine_with(
            model,
            DPSGD(clipping_norm=0.1, noise=noise),
            by_batch(lambda ids: model(ids).squeeze(1).square()),
            NoiseKey.from_seed(0),
            gradient_noise_multiplier=0.0,
            expected_batch_size=8.0,
        )
        gradient = released(engine, [batch], 0)
        tables = [
            torch.zeros(20, 3).double().index_add(0, t.rows if t.rows is not None else torch.arange(20), t.values)
            for t in gradient.tables
        ]
        found.append([*tables, *gradient.dense.values()])
        assert gradient.rows_per_table == [20]
    assert all(torch.equal(dense, lazy) for dense, lazy in zip(*found, strict=True))


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"weight_decay": 0.1}])
def test_lazy_noise_asks_for_plain_sgd(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match="SGD"):
        training(Reader(), **settings)


def test_lazy_noise_refuses_an_optimiser_with_a_memory() -> None:
    model = Reader()
    with pytest.raises(UserError, match="plain SGD alone, not under Adagrad"):
        optimizer = torch.optim.Adagrad(model.parameters())
        read = DatasetReader(data())
        PrivateTraining(model, read_and_keep, optimizer, planned(), read, key=NoiseKey.from_seed(1))


def test_an_unknown_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="must be dense or lazy"):
        DPSGD(noise="late")


@pytest.mark.parametrize("at", [3, pytest.param(7, marks=pytest.mark.slow), 8])
def test_noise_does_not_depend_on_what_is_checked(at: int) -> None:
    """Steps 1 and 8 check a sample of the batch; a resumed training checks its first step whole: the same bits."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 500, (3000, 3), generator=generator)
    data = TensorDataset(ids, (ids.sum(1) % 2).float())
    budget = {"epsilon": 9.0, "delta": 1e-5, "examples": 3000, "batch_size": 300, "steps": 10, "fixed_noise_seed": True}
    planned = plan(DPSGD(noise="lazy"), calibrate=lambda *question: 1.0, **budget)

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.bag, self.score = nn.EmbeddingBag(500, 4, mode="sum"), nn.Linear(4, 1)

        def forward(self, ids: Tensor) -> Tensor:
            return self.score(self.bag(ids)).squeeze(1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(batch[0]), batch[1], reduction="none")

    def begin() -> PrivateTraining:
        model, key = Bag(), NoiseKey.from_seed(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        return PrivateTraining(model, loss, optimizer, planned, DatasetReader(data), key=key)

    def go_on(run: PrivateTraining, until: int) -> None:
        while run.steps_done < until:
            run.step(run.read(run.request(run.steps_done)))

    whole, resumed = begin(), begin()
    go_on(whole, at)
    state = whole.state_dict()
    go_on(whole, 10)
    resumed.load_state_dict(state)
    go_on(resumed, 10)
    assert torch.equal(whole.model.bag.weight, resumed.model.bag.weight)  # type: ignore[union-attr]


def test_an_interruption_leaves_no_sum_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives while a table is updated: what the step added is noised in the end, on every row."""
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = PrivateTraining(model, read_and_keep, optimizer, planned(), DatasetReader(data()), key=NoiseKey.from_seed(1))
    update = Tensor.index_add_

    def interrupted(weight: Tensor, *arguments: Any, **settings: Any) -> Tensor:
        update(weight, *arguments, **settings)
        if weight is model.table.weight or weight.shape == model.table.weight.shape:
            raise KeyboardInterrupt
        return weight

    monkeypatch.setattr(Tensor, "index_add_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.step(run.read(run.request(0)))
    monkeypatch.undo()
    assert run.engine.lazy is not None and run.engine.lazy.is_pending
    noised = model.state_dict()["table.weight"]
    assert bool((noised != 0).any(1).all()) and not run.engine.lazy.settling
