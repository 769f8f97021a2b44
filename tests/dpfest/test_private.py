"""The library's one object: it pays before it steps, stops at its budget, resumes to the same bits, refuses by name."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpfest import (
    DPSGD,
    FEST,
    AdaFEST,
    AdaFESTPlus,
    BudgetExceeded,
    Exponential,
    NoiseKey,
    PrivacyPlan,
    PrivateTraining,
    SelectionConfig,
    UserError,
    plan,
    select_rows,
)
from dpfest.algorithms import Algorithm

EXAMPLES, STEPS = 200, 6


class Baskets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.basket, self.shop = nn.EmbeddingBag(50, 4, mode="mean"), nn.Embedding(7, 2)
        self.head = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 1))

    def forward(self, basket: Tensor, shop: Tensor) -> Tensor:
        return self.head(torch.cat([self.basket(basket), self.shop(shop)], dim=1)).squeeze(1)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    basket = torch.randint(0, 50, (EXAMPLES, 3), generator=generator)
    shop = torch.randint(0, 7, (EXAMPLES,), generator=generator)
    return TensorDataset(basket, shop, (shop < 3).float())


PLANNED: dict[tuple[Any, ...], PrivacyPlan] = {}  # a calibration takes seconds


def budget(algorithm: Algorithm, batch_size: int = 20, epsilon: float = 2.0) -> PrivacyPlan:
    key = (algorithm, batch_size, epsilon)
    if key not in PLANNED:
        size = {"examples": EXAMPLES, "batch_size": batch_size, "steps": STEPS, "features": [50, 7]}
        PLANNED[key] = plan(algorithm, epsilon=epsilon, fixed_noise_seed=True, **size)  # type: ignore[arg-type]
    return PLANNED[key]


def training(
    algorithm: Algorithm,
    granted: PrivacyPlan | None = None,
    *,
    key: NoiseKey | None = None,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    **settings: Any,
) -> PrivateTraining:
    torch.manual_seed(5)
    model = Baskets()

    def losses(batch: Any) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2], reduction="none")

    granted = granted or budget(algorithm)
    return PrivateTraining(
        model,
        losses,
        optimizer(model.parameters(), lr=0.5),
        algorithm,
        granted,
        key=key or NoiseKey.from_seed(1),
        **settings,
    )


def weights(run: PrivateTraining) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def test_trains_to_the_end_of_its_budget_and_no_further() -> None:
    run = training(AdaFEST(threshold=1.0))
    before, spent = weights(run), []
    for batch in run.batches(data()):
        run.step(batch)
        spent.append(run.ledger.epsilon())
    assert run.steps_done == STEPS and not torch.equal(weights(run), before)
    assert spent == sorted(spent) and 1.9 < spent[-1] <= 2.0
    after = weights(run)
    with pytest.raises(BudgetExceeded, match="past the target"):
        run.step([data()[:3]])
    assert torch.equal(weights(run), after) and run.steps_done == STEPS
    assert list(run.batches(data())) == []


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
def test_a_saved_state_goes_on_to_the_same_bits(optimizer: type[torch.optim.Optimizer]) -> None:
    whole = training(AdaFEST(threshold=1.0), optimizer=optimizer)
    half = training(AdaFEST(threshold=1.0), optimizer=optimizer)
    for run, steps in ((whole, STEPS), (half, 3)):
        for _, batch in zip(range(steps), run.batches(data()), strict=False):
            run.step(batch)
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = training(AdaFEST(threshold=1.0), key=NoiseKey.fresh(), optimizer=optimizer)
    resumed.load_state_dict(state)
    assert resumed.ledger.epsilon() == half.ledger.epsilon()
    for batch in resumed.batches(data()):
        resumed.step(batch)
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.ledger.epsilon() == whole.ledger.epsilon()


def test_a_state_of_another_budget_is_refused() -> None:
    state = training(DPSGD()).state_dict()
    with pytest.raises(UserError, match="another plan"):
        training(DPSGD(), budget(DPSGD(), epsilon=3.0)).load_state_dict(state)


@pytest.mark.parametrize("algorithm", [DPSGD(), AdaFEST(threshold=1.0)])
def test_micro_batches_change_nothing_but_rounding(algorithm: Algorithm) -> None:
    whole, parts = training(algorithm), training(algorithm)
    for run, size in ((whole, None), (parts, 4)):
        for batch in run.batches(data(), micro_batch_size=size):
            assert size is None or max(len(part[0]) for part in batch) <= size
            run.step(batch)
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-4, atol=1e-6)


def test_batches_are_the_poisson_sample_of_the_key_empty_ones_too() -> None:
    run = training(DPSGD(), budget(DPSGD(), batch_size=1))
    sizes = []
    for batch in run.batches(data()):
        chosen = run.indices(run.steps_done)
        assert [len(part[0]) for part in batch] == ([len(chosen)] if len(chosen) else [])
        assert not batch or torch.equal(batch[0][0], data()[torch.from_numpy(chosen)][0])
        sizes.append(len(chosen))
        run.step(batch)
    assert 0 in sizes and max(sizes) > 1, "fixed seed: a batch of one is sometimes none and sometimes several"


@pytest.mark.parametrize("kind", [FEST, AdaFESTPlus])
def test_rows_chosen_beforehand_are_the_only_ones_that_move(kind: type) -> None:
    settings = {"threshold": 0.5} if kind is AdaFESTPlus else {}
    algorithm = kind(selection=SelectionConfig(rows=8, noise_multiplier=5.0), **settings)
    counts = [np.bincount(np.arange(200) % size, minlength=size) for size in (50, 7)]
    chosen = select_rows(counts, algorithm.selection, NoiseKey.from_seed(2).generator("row selection"))
    run = training(algorithm, selected=chosen)
    before = run.model.basket.weight.detach().clone()
    for batch in run.batches(data()):
        run.step(batch)
    moved = torch.nonzero((run.model.basket.weight.detach() != before).any(1)).flatten().tolist()
    assert moved and set(moved) <= {row for row in chosen.rows.tolist() if row < 50}
    assert run.ledger.events[0].what == "row selection" and run.ledger.epsilon() <= 2.0


def test_what_does_not_fit_together_is_refused() -> None:
    fest = FEST(selection=SelectionConfig(rows=8))
    with pytest.raises(UserError, match=r"select_rows"):
        training(fest)
    with pytest.raises(UserError, match="leave selected out"):
        training(DPSGD(), selected=np.arange(3))
    with pytest.raises(UserError, match=r"no plan for AdaFEST\(.*dpfest\.plan"):
        training(AdaFEST(), budget(DPSGD()))
    with pytest.raises(UserError, match="LBFGS"):
        training(DPSGD(), optimizer=torch.optim.LBFGS)
    with pytest.raises(UserError, match="200"):
        next(training(DPSGD()).batches(TensorDataset(torch.zeros(3))))
    with pytest.raises(UserError, match="before the next"):
        list(training(DPSGD()).batches(data()))


def test_frozen_parameters_cost_nothing_and_do_not_move() -> None:
    run = training(DPSGD())
    run.model.basket.weight.requires_grad_(False)
    run.model.head[0].weight.requires_grad_(False)
    frozen = PrivateTraining(
        run.model,
        run.engine.losses,
        torch.optim.SGD([p for p in run.model.parameters() if p.requires_grad], lr=0.5),
        DPSGD(),
        budget(DPSGD()),
        key=NoiseKey.from_seed(1),
    )
    assert frozen.engine.layout.names == ("shop",) and "head.0.weight" not in frozen.engine.recorder.dense_parameters
    before = run.model.basket.weight.detach().clone()
    for batch in frozen.batches(data()):
        frozen.step(batch)
    assert torch.equal(run.model.basket.weight, before)


def test_a_saved_state_is_a_copy() -> None:
    """A state that shared memory with the weights would, loaded again, repeat a step's noise at other weights."""
    run = training(DPSGD())
    batches = run.batches(data())
    run.step(next(batches))
    state, after_one = run.state_dict(), weights(run)
    run.step(next(batches))
    after_two = weights(run)
    run.load_state_dict(state)
    assert torch.equal(weights(run), after_one) and run.steps_done == 1
    run.step(next(run.batches(data())))
    assert torch.equal(weights(run), after_two), "the same step anew is the same release"


def test_a_state_goes_into_the_same_settings_alone() -> None:
    state = training(DPSGD()).state_dict()
    with pytest.raises(UserError, match="another plan or selection"):
        training(DPSGD(clipping_norm=2.0)).load_state_dict(state)
    with pytest.raises(UserError, match=r"no state of PrivateTraining"):
        training(DPSGD()).load_state_dict({})
    algorithm = FEST(selection=SelectionConfig(rows=8, noise_multiplier=5.0))
    with pytest.raises(UserError, match="or selection"):
        training(algorithm, selected=np.arange(4, 8)).load_state_dict(
            training(algorithm, selected=np.arange(4)).state_dict()
        )
    run = training(DPSGD(), key=NoiseKey.fresh())
    run.step(next(run.batches(data())))
    with pytest.raises(UserError, match="steps of its own"):
        run.load_state_dict(state)
    other = {**state, "model": {"weight": torch.zeros(1)}}
    with pytest.raises(UserError, match="another model"):
        training(DPSGD()).load_state_dict(other)


def test_a_budget_is_for_what_it_was_planned_for() -> None:
    planned, greedy = Exponential(rows_per_step=5), Exponential(rows_per_step=50)
    with pytest.raises(UserError, match=r"no plan for Exponential\("):
        training(greedy, budget(planned))
    with pytest.raises(BudgetExceeded, match="past the target"):
        training(DPSGD(), dataclasses.replace(budget(DPSGD()), batch_size=100))
    algorithm = FEST(selection=SelectionConfig(rows=8, noise_multiplier=20.0))
    cheap = SelectionConfig(rows=8, noise_multiplier=0.5)
    counts = [np.full(50, 4), np.full(7, 30)]
    with pytest.raises(UserError, match="at another cost"):
        training(algorithm, selected=select_rows(counts, cheap, np.random.default_rng(0)))
    with pytest.raises(UserError, match="sorted, distinct"):
        training(algorithm, selected=np.array([3, 1]))
    with pytest.raises(UserError, match="sorted, distinct"):
        training(algorithm, selected=np.array([3, 57]))


def test_a_seeded_key_and_the_ledger_agree() -> None:
    unseeded = dataclasses.replace(budget(DPSGD()), fixed_noise_seed=False)
    with pytest.raises(UserError, match="follows from a seed"):
        training(DPSGD(), unseeded)
    model = Baskets()
    with pytest.raises(UserError, match="give key="):
        PrivateTraining(model, lambda b: b, torch.optim.SGD(model.parameters()), DPSGD(), budget(DPSGD()))


def test_only_the_batch_that_was_drawn_is_stepped() -> None:
    run = training(DPSGD())
    before = weights(run)
    with pytest.raises(UserError, match=r"The batch has 200 examples, and \d+ were drawn"):
        run.step([data()[:]])
    with pytest.raises(UserError, match="list of micro-batches"):
        run.step(data()[:3])
    assert torch.equal(weights(run), before)


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "message"),
    [
        (
            AdaFEST(),
            lambda m: torch.optim.Adam(m.parameters()),
            "Adam cannot take the sparse gradient of basket.weight",
        ),
        (AdaFEST(), lambda m: torch.optim.SGD(m.parameters(), weight_decay=0.1), "SGD with weight_decay cannot take"),
        (DPSGD(), lambda m: torch.optim.SparseAdam([m.basket.weight]), "SparseAdam cannot take the dense gradient"),
        (DPSGD(), lambda m: torch.optim.SGD(m.head.parameters()), "No optimiser steps basket.weight, shop.weight"),
        (DPSGD(), lambda m: torch.optim.LBFGS(m.parameters()), "LBFGS evaluates the loss several times"),
    ],
)
def test_optimisers_that_cannot_step_are_refused_before_anything_is_spent(
    algorithm: Algorithm, optimizer: Any, message: str
) -> None:
    model = Baskets()
    with pytest.raises(UserError, match=message):
        PrivateTraining(model, lambda b: b, optimizer(model), algorithm, budget(algorithm), key=NoiseKey.from_seed(1))


def test_a_list_of_words_in_an_empty_batch_is_not_looked_at() -> None:
    """Nothing of any example may enter an empty batch, whatever its collate makes of examples."""
    run = training(DPSGD(), budget(DPSGD(), batch_size=1))
    seen: list[int] = []

    def collate(rows: list[Any]) -> Any:
        seen.append(len(rows))
        return torch.utils.data.default_collate(rows)

    for batch in run.batches(data(), collate=collate):
        run.step(batch)
    assert 0 not in seen and sum(seen) == sum(len(run.indices(step)) for step in range(STEPS))
