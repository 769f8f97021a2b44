"""A step whose parts are kernels: that of the dense reference, with the CPU's noise, and the same when repeated."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dpfest
from dpfest import devices
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.rules import FEST
from dpfest.gradients.parts import NoisedGradient
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.units import UnitConfig
from dpfest.noise import gaussian
from dpfest.noise.key import CHACHA, NoiseKey
from dpfest.training.loop import PrivateTraining
from dpfest.training.trial import check_batch
from tests.dpfest.device.conftest import HERE
from tests.dpfest.reference import reference_gradient
from tests.dpfest.steps import by_batch, engine_with, released
from tests.dpfest.test_engine import CASES, dense_release, losses_of, tabular, text
from tests.dpfest.test_units import OF, by_unit, joined

parts = pytest.importorskip("dpfest.device.parts", reason="the kernels need Triton: pip install triton")

KEY = NoiseKey.from_seed(3, cipher=CHACHA)
CPU = torch.device("cpu")
# A cipher takes a third of a second where it is interpreted, four times a step.
STEPS = [("adafest_plus", tabular), ("adafest", text)]


def moved(batch: Any, where: torch.device, dtype: torch.dtype) -> Any:
    return tuple(part.to(where, dtype if part.is_floating_point() else None) for part in batch)


def engine_of(model: nn.Module, case: str, losses: Any, **options: Any) -> Any:
    algorithm, settings = CASES[case]
    selected = settings.get("selected")
    settings = {**settings, "selected": None if selected is None else torch.from_numpy(selected).to(HERE)}
    return engine_with(model, algorithm, by_batch(losses), KEY, expected_batch_size=10.0, **settings, **options)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(("case", "make"), STEPS, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_step_is_that_of_the_dense_reference(case: str, make: Any) -> None:
    """Of float64 autograd by example and 320-bit noise: survivors, sums within 1e-6, and again the same bits."""
    model, batch, ids = make(17)
    algorithm, settings = CASES[case]
    want = reference_gradient(model, algorithm, losses_of(model), batch, ids, KEY, 5, divisor=10.0, **settings)
    model, batch = model.to(HERE, torch.float32), moved(batch, HERE, torch.float32)
    engine = engine_of(model, case, losses_of(model))
    first, again = (dense_release(engine, released(engine, [batch], 5)) for _ in range(2))
    for name, value in want.items():
        assert torch.equal(first[name], again[name]), name
        torch.testing.assert_close(first[name].double().cpu(), value, rtol=0, atol=1e-6)
        if name.startswith(("tables", "words", "topic")):
            assert torch.equal(first[name].any(1).cpu(), value.any(1))  # rows
    assert algorithm.sparse and any(value.any() for value in want.values())


@pytest.mark.usefixtures("pretended")
def test_a_step_on_units_in_micro_batches_is_that_of_the_dense_reference() -> None:
    model, batch, ids = text(len(OF))
    algorithm, settings = CASES["adafest"]
    want = reference_gradient(
        model, algorithm, by_unit(losses_of(model), "mean"), batch, joined(ids), KEY, 5, divisor=10.0, **settings
    )
    model, batch = model.to(HERE), moved(batch, HERE, torch.float64)
    engine = engine_of(model, "adafest", losses_of(model), unit=UnitConfig("person", combine="mean"))
    cuts = np.split(np.arange(len(OF)), [6])
    micro = [MicroBatch(at, tuple(part[torch.from_numpy(at)] for part in batch), OF[at]) for at in cuts]
    got = dense_release(engine, engine.gradient(micro, 5)[0])
    for name, value in want.items():
        torch.testing.assert_close(got[name].cpu(), value, rtol=1e-9, atol=1e-11)


def of_both(monkeypatch: pytest.MonkeyPatch, make: Any) -> Iterator[Any]:
    """What a step is on a device with kernels, and on a CPU."""
    yield make(HERE)
    monkeypatch.setattr(devices, "PRETENDED", False)
    yield make(CPU)


@pytest.mark.usefixtures("pretended")
def test_noise_and_survivors_are_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, where no gradient is: of losses that are 0."""

    def step(where: torch.device) -> NoisedGradient:
        model, batch, _ = text(17)
        model, batch = model.to(where, torch.float32), moved(batch, where, torch.float32)
        return released(engine_of(model, "adafest", lambda own: 0 * losses_of(model)(own)), [batch], 2)

    here, there = of_both(monkeypatch, step)
    for ours, theirs in zip(here.tables, there.tables, strict=True):
        assert ours.rows is not None and torch.equal(ours.rows.cpu(), theirs.rows) and len(ours.rows) > 1
        assert torch.equal(ours.values.cpu(), theirs.values) and ours.values.any()
    assert all(torch.equal(value.cpu(), there.dense[name]) and value.any() for name, value in here.dense.items())


@pytest.mark.usefixtures("pretended")
def test_an_example_whose_gradient_is_not_finite_counts_as_zero() -> None:
    model, batch, _ = text(9)
    model, batch = model.to(HERE, torch.float32), moved(batch, HERE, torch.float32)
    engine = engine_with(
        model, FEST(clipping_norm=0.7), by_batch(losses_of(model)), KEY, gradient_noise_multiplier=0.0,
        expected_batch_size=10.0, selected=torch.arange(0, 51, device=HERE),
    )  # fmt: skip
    rest = tuple(torch.cat([part[:4], part[5:]]) for part in batch)
    batch[2][4] = torch.inf
    (broken, private), whole = engine.gradient([MicroBatch(np.arange(9), batch)], 0), released(engine, [rest], 0)
    assert private.without_gradient == 1
    for ours, theirs in zip(dense_release(engine, broken).values(), dense_release(engine, whole).values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


class Shop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList([nn.Embedding(6, 3), nn.Embedding(5, 4)])
        self.head = nn.Linear(7, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.cat([t(ids[:, n]) for n, t in enumerate(self.tables)], 1)).squeeze(1)


@functools.cache
def plan() -> dpfest.PrivacyPlan:
    algorithm = AdaFEST(clipping_norm=0.5, threshold=1.5)
    return dpfest.plan(algorithm, epsilon=3.0, fixed_noise_seed=True, examples=60, batch_size=20, steps=2)


def trained(where: torch.device, state: Any = None, after: int = 0) -> tuple[Shop, Any]:
    """Two steps, or those that are left of a state, with a table under SGD and one under Adagrad; and a state."""
    ids = torch.stack([torch.arange(60) % rows for rows in (6, 5)], 1)
    model = Shop().to(where)
    optimizers = [
        torch.optim.Adam(model.head.parameters(), lr=0.01),
        torch.optim.SGD(model.tables[0].parameters(), lr=0.1),
        torch.optim.Adagrad(model.tables[1].parameters(), lr=0.1),
    ]
    read = dpfest.DatasetReader(TensorDataset(ids))
    run = PrivateTraining(model, lambda m, batch: (m(batch[0]) - 1).square(), optimizers, plan(), read, key=KEY)
    if state is not None:
        run.load_state_dict(state)
    for batch in run:
        if run.steps_done == after:
            state = run.state_dict()
        run.step(batch)
    return model, state


@pytest.mark.long("whole steps whose kernels are interpreted: 8 seconds of an idle core")
@pytest.mark.usefixtures("pretended")
def test_a_training_is_the_cpus_and_resumes_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []  # one batch: what is interpreted takes its time

    def check(*args: Any, **options: Any) -> None:
        checked.append(None if checked else check_batch(*args, **options))

    monkeypatch.setattr("dpfest.training.loop.check_batch", check)
    run, state = trained(HERE, after=1)
    resumed, _ = trained(HERE, state)
    monkeypatch.setattr(devices, "PRETENDED", False)
    on_cpu, _ = trained(CPU)
    assert checked
    for ours, again, theirs, start in zip(*(own.parameters() for own in (run, resumed, on_cpu, Shop())), strict=True):
        assert torch.equal(ours, again) and not torch.equal(ours.cpu(), start)
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=2e-6)


def test_kernels_serve_a_gpu_alone_and_where_triton_is(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.zeros(1)
    assert devices.serving(values) is None and devices.serving() is None and devices.build(CPU) == []
    monkeypatch.setattr(devices, "PRETENDED", True)
    assert devices.serving(values) is parts
    (with_triton,) = devices.build(torch.device("cuda"))
    for how in ("none", "unwanted"):
        with monkeypatch.context() as patch:
            patch.setattr(devices, "_parts", devices._parts.__wrapped__)
            if how == "none":
                patch.setattr(importlib.util, "find_spec", lambda name: None)
            else:
                patch.setenv("DPFEST_DEVICE_KERNELS", "0")
            assert devices.serving(values) is None and devices.build(torch.device("cuda")) != [with_triton]
            gaussian.add_gaussian(values, KEY.stream("noise"), 1.0)
    assert values.any()


def test_a_triton_that_cannot_be_imported_is_said_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("no driver")

    monkeypatch.setattr(devices, "PRETENDED", True)
    monkeypatch.setattr(devices, "_parts", devices._parts.__wrapped__)
    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.warns(UserWarning, match=r"cannot be used \(no driver\)"):
        assert devices.serving(torch.zeros(1)) is None
