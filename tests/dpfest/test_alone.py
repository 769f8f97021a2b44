"""A training is one object in one process, and its noise serves one gradient: copies, forks and threads."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dpfest
from dpfest import DPSGD, AdaFEST, UserError, make_private
from dpfest.accounting.accountant import Event
from dpfest.noise.key import NoiseKey
from dpfest.training.loop import PrivateTraining
from tests.dpfest.steps import engine_with, step_cost


def data() -> TensorDataset:
    items = torch.randint(0, 50, (400, 3), generator=torch.Generator().manual_seed(0))
    return TensorDataset(items, (items.sum(1) % 2).float())


def losses(model: nn.Module, batch: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1], reduction="none")


def training(algorithm: Any = None, seed: int | None = 1, **settings: Any) -> PrivateTraining:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(50, 8, mode="sum"), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"epsilon": 4.0, "delta": 1e-4, "batch_size": 40, "steps": 8, "noise_seed": seed} | settings
    return make_private(model, optimizer, data(), losses, algorithm=algorithm or AdaFEST(threshold=2), **given)


def step(run: PrivateTraining) -> Any:
    return run.step(run.read(run.request(run.steps_done))).release


def weights(run: PrivateTraining) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in run.model.parameters()])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("what", ["training", "engine", "key"])
def test_what_draws_noise_is_not_copied(what: str, copied: Callable[[Any], Any]) -> None:
    run = training()
    one: Any = {"training": run, "engine": run.engine, "key": run.engine.key}[what]
    with pytest.raises(UserError, match=rf"A {type(one).__name__} cannot be copied or pickled: .*fork\(steps\)"):
        copied(one)


@pytest.mark.parametrize(
    "take",
    [
        step,
        lambda run: run.engine.gradient([], 0),
        lambda run: run.fork(2),
        lambda run: run.state_dict(),
        lambda run: run.load_state_dict({}),
        lambda run: run.engine.key.stream("noise", 0),
        lambda run: run.engine.key.derive("another"),
    ],
    ids=["training", "engine", "fork", "state_dict", "load_state_dict", "stream", "derive"],
)
def test_a_forked_process_takes_no_step_and_draws_nothing(take: Callable[[PrivateTraining], Any]) -> None:
    run = training()
    ours, theirs = os.pipe()
    if not os.fork():
        try:
            take(run)
            said = "it went on"
        except UserError as error:
            said = str(error)
        os.write(theirs, said.encode())
        os._exit(0)
    os.wait()
    said = os.read(ours, 4096).decode()
    assert f"was made in process {os.getpid()}" in said and "fork(steps)" in said
    assert run.ledger.events == [] and len(step(run).tables) == 1


def test_trainings_in_two_threads_are_what_they_are_alone() -> None:
    """Their data draw by example, and their models by key: neither sees the other's draws as its own."""
    alone = []
    for seed in (1, 2):
        run = training(seed=seed)
        while run.steps_left:
            step(run)
        alone.append(weights(run))
    runs, failed = [training(seed=seed) for seed in (1, 2)], []

    def work(run: PrivateTraining) -> None:
        try:
            for batch in run:
                run.step(batch)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [torch.equal(weights(run), expected) for run, expected in zip(runs, alone, strict=True)] == [True, True]
    assert torch.equal(weights(training(seed=1)), weights(training(seed=1))), "what follows is not refused"


def test_a_process_that_is_forked_within_a_step_reads_on() -> None:
    """Workers of a loader may be forked while another thread holds the lock."""
    from dpfest.noise.alone import PROCESS_STATE

    run = training()
    with PROCESS_STATE:
        child = os.fork()
        if not child:
            worker = threading.Thread(target=lambda: run.read(run.request(0)), daemon=True)
            worker.start()
            worker.join(20)
            os._exit(1 if worker.is_alive() else 0)
    assert os.waitpid(child, 0)[1] == 0


def test_two_branches_of_one_state_have_keys_of_their_own() -> None:
    """One forked, one started from a state saved just before: under a fixed seed, both are functions of the state."""
    run = training(DPSGD())
    step(run)
    before, forked = run.state_dict(), run.fork(3)
    one, other = training(DPSGD()), training(DPSGD())
    one.load_state_dict(forked, steps=3)
    other.load_state_dict(before, steps=3, taken=1)
    assert one.engine.key.secret != other.engine.key.secret != run.engine.key.secret


@pytest.mark.parametrize("changed", ["nothing", "plan", "weights", "loss", "data"])
def test_a_key_that_is_given_twice_repeats_its_noise_for_the_same_training_alone(changed: str) -> None:
    """As whoever repeats a search that was cut off, with the key that they kept."""
    given = NoiseKey.from_seed(7)

    def made(**other: Any) -> PrivateTraining:
        torch.manual_seed(other.get("weights", 0))
        model = nn.Sequential(nn.EmbeddingBag(50, 8, mode="sum"), nn.Linear(8, 1))
        return make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), other.get("data", data()), other.get("loss", losses),
            algorithm=DPSGD(), epsilon=4.0, delta=1e-4, batch_size=40, steps=other.get("plan", 8), key=given,
        )  # fmt: skip

    others = {
        "plan": 9,
        "weights": 1,
        "loss": lambda model, batch: 2 * losses(model, batch),
        "data": TensorDataset(data().tensors[0], 1 - data().tensors[1]),
    }
    one = made()
    other = made(**({} if changed == "nothing" else {changed: others[changed]}))
    assert (one.engine.key.secret == other.engine.key.secret) == (changed == "nothing")


@pytest.mark.parametrize("stated", [None, 0.0], ids=["nothing", "none"])
def test_a_private_step_without_noise_is_refused(stated: float | None) -> None:
    class Silent(DPSGD):
        def step_event(self, noise_multiplier: float, sampling_probability: float) -> Event:
            event = super().step_event(noise_multiplier, sampling_probability)
            return replace(event, gradient_noise_multiplier=stated)

    with pytest.raises(ValueError, match="gradient_noise_multiplier"):
        training(Silent())


def test_a_map_without_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="map_noise_multiplier must be a number in"):
        step_cost(1.0, map_noise_multiplier=0.0)


@pytest.mark.parametrize("algorithm", [dpfest.FEST(), AdaFEST(), dpfest.Exponential()], ids=lambda one: one.name)
def test_what_a_choice_of_rows_needs_is_asked_for_by_name(algorithm: Any) -> None:
    """Not by an assertion, which `python -O` would leave out."""
    run = training()
    engine = engine_with(
        run.model, algorithm, losses, NoiseKey.fresh(), gradient_noise_multiplier=1.0, expected_batch_size=40.0
    )
    with pytest.raises(UserError, match=r"selected=|map_noise_multiplier=|epsilon_per_draw="):
        engine.gradient([], 0)


def lines(run: PrivateTraining) -> Tensor:
    """The released gradient of the first table, dense."""
    table = step(run).tables[0]
    rows = torch.arange(50) if table.rows is None else table.rows
    return torch.zeros(50, table.values.shape[1], dtype=table.values.dtype).index_copy_(0, rows, table.values)


def units(ids: Any) -> dpfest.Units:
    return dpfest.Units(ids, name="person", max_examples=4)


def test_a_key_given_twice_meets_no_two_gradients() -> None:
    """What decides the gradients decides the noise, too: of two trainings under one key, untouched rows differ."""

    def first(lr: float = 0.1, **settings: Any) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.EmbeddingBag(50, 8, mode="sum"), nn.Linear(8, 1))
        optimizer = settings.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=lr)
        given = {"epsilon": 4.0, "delta": 1e-4, "batch_size": 40, "steps": 8, "algorithm": DPSGD()} | settings
        return lines(make_private(model, optimizer, data(), losses, key=NoiseKey(bytes(32)), **given))

    def chosen(rows: list[int]) -> Tensor:
        selection = dpfest.SelectionConfig(mechanism="public", prior="counts.npy", rows=2)
        return first(algorithm=dpfest.FEST(selection=selection), selected=torch.tensor(rows))

    assert torch.equal(first(), first())
    groups = [units(torch.arange(400).numpy() // 4), units(torch.arange(400).numpy() % 100)]
    pairs = [
        (first(), first(lr=0.2)),
        (first(), first(optimizer=torch.optim.Adagrad)),
        (first(), first(sum_dtype=torch.float64)),
        (first(units=groups[0]), first(units=groups[1])),
        (chosen([0, 1]), chosen([0, 2])),
    ]
    for one, other in pairs:
        both = (one != 0).any(1) & (other != 0).any(1)
        assert both.any() and not (one[both] == other[both]).any()
