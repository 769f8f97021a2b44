"""Noise drawn by kernels is the CPU's, bit for bit, and so are the rows that survive it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfest import devices
from dpfest.noise import chacha
from dpfest.noise.box_muller import Scratch, nearest_normals
from dpfest.noise.gaussian import add_gaussian, draw_units, gaussian_grid
from dpfest.noise.key import AES, CHACHA, NoiseKey
from dpfest.noise.places import DensePlaces, MapPlaces, Places, RowPlaces
from dpfest.selection.survivors import surviving_rows
from tests.dpfest import placed
from tests.dpfest.device.conftest import HERE

triton = pytest.importorskip("triton", reason="the kernels need Triton: pip install triton")
tl, noise = pytest.importorskip("triton.language"), pytest.importorskip("dpfest.device.noise")
memory = pytest.importorskip("dpfest.device.memory")

KEY = NoiseKey.from_seed(6, cipher=CHACHA)


def added(before: Tensor, at: Places | None, purpose: str, deviation: Any = 0.7, own: NoiseKey = KEY) -> Tensor:
    values = before.clone()
    add_gaussian(values, own.stream(purpose, 2), deviation, at)
    return values.cpu()


def both(monkeypatch: pytest.MonkeyPatch, call: Any) -> tuple[Any, Any]:
    """What kernels make, and the CPU."""
    here = call(HERE)
    monkeypatch.setattr(devices, "PRETENDED", False)
    return here, call(torch.device("cpu"))


@triton.jit
def write_words(out, counters, key, layout: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    r0, a0, r1, a1, r2, a2, r3, a3 = noise.words(key, tl.load(counters + lane), layout)
    tl.store(out + 8 * lane, r0)
    tl.store(out + 8 * lane + 1, a0)
    tl.store(out + 8 * lane + 2, r1)
    tl.store(out + 8 * lane + 3, a1)
    tl.store(out + 8 * lane + 4, r2)
    tl.store(out + 8 * lane + 5, a2)
    tl.store(out + 8 * lane + 6, r3)
    tl.store(out + 8 * lane + 7, a3)


def test_words_are_the_ciphers() -> None:
    generator = np.random.default_rng(0)
    counters = generator.integers(0, 2**64, 1024, dtype=np.uint64)
    counters[:3] = 0, 1, 2**32 + 5
    out = torch.empty(8 * 1024, dtype=torch.int64, device=HERE)
    own = memory.key(HERE, KEY.secret)
    memory.launch(write_words, (1,), out, torch.from_numpy(counters.view(np.int64)).to(HERE), own, layout=3, BLOCK=1024)
    assert np.array_equal(out.cpu().numpy().view(np.uint64), chacha._reference(KEY.secret, counters, 3).reshape(-1))


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    ("first", "count", "dtype"),
    [
        (0, 5003, torch.float32),
        (1000, 3000, torch.float64),
        (2**38 + 77, 1500, torch.float32),
        (3, 1, torch.float64),
    ],
)
def test_dense_noise_has_the_cpus_bits(
    monkeypatch: pytest.MonkeyPatch, first: int, count: int, dtype: torch.dtype
) -> None:
    before = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=dtype)
    here, there = both(monkeypatch, lambda where: added(before.to(where), DensePlaces(first), "dense noise"))
    assert torch.equal(here, there) and not torch.equal(here, before)
    alone = added(torch.zeros(count, dtype=torch.float64), DensePlaces(first), "dense noise")[:1].numpy()
    assert np.array_equal(alone, placed.on_dense(KEY, 2, [first], 0.7))


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    ("rows", "dtype"), [([3, 2**40 + 7, 2**40 + 8, 2**47 + 1], torch.float32), (None, torch.float64)]
)
def test_row_noise_has_the_cpus_bits(
    monkeypatch: pytest.MonkeyPatch, rows: list[int] | None, dtype: torch.dtype
) -> None:
    before = torch.randn(56, generator=torch.Generator().manual_seed(0), dtype=dtype)

    def draw(where: torch.device) -> Tensor:
        numbers = None if rows is None else torch.tensor(rows, device=where)
        return added(before.to(where), RowPlaces(numbers, [(1, 33), (0, 4), (1, 7), (2, 8)]), "row noise")

    here, there = both(monkeypatch, draw)
    assert torch.equal(here, there) and not torch.equal(here, before)


@pytest.mark.usefixtures("pretended")
def test_noise_that_kernels_do_not_draw_is_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another cipher, of a deviation for each row, on a part of some rows."""
    monkeypatch.setattr("dpfest.device.parts.add_noise", None)
    before, deviations = (
        torch.randn(20, 3, generator=torch.Generator().manual_seed(0)),
        torch.linspace(0.1, 9, 20).double(),
    )
    for deviation, own, rows in ((0.7, NoiseKey.from_seed(6, cipher=AES), 20), (deviations, KEY, 20), (0.7, KEY, 21)):
        at = RowPlaces(None, [(rows, 3)])
        with monkeypatch.context() as patch:
            here = added(before.to(HERE), at, "row noise", deviation, own)
            patch.setattr(devices, "PRETENDED", False)
            assert torch.equal(here, added(before, at, "row noise", deviation, own))


def mapped(where: torch.device, threshold: float, selected: Tensor | None = None) -> Tensor:
    universe, deviation = 12_003, 3.0
    touched = torch.arange(5, universe, 13)
    grid = gaussian_grid(deviation)
    sums = torch.floor(torch.arange(len(touched)).double() % 12 / grid * 0.9) * grid
    settings = {"universe": universe, "threshold": threshold, "deviation": deviation}
    touched, sums, selected = (one if one is None else one.to(where) for one in (touched, sums, selected))
    return surviving_rows(touched, sums, KEY.stream("map", 1), selected=selected, **settings).cpu()


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("threshold", [7.0, -1.5, 1e9])
def test_survivors_are_the_cpus(monkeypatch: pytest.MonkeyPatch, threshold: float) -> None:
    here, there = both(monkeypatch, lambda where: mapped(where, threshold))
    assert torch.equal(here, there) and (len(here) > 0) == (threshold < 1e9)
    assert threshold != 7.0 or 0.3 < float((here % 13 == 5).double().mean()) < 0.9  # touched ones, and others


@pytest.mark.usefixtures("pretended")
def test_a_row_that_reaches_the_threshold_to_the_last_unit_survives_and_one_below_does_not() -> None:
    deviation, threshold, universe = 3.0, 5.0, 64
    grid = gaussian_grid(deviation)
    units = torch.from_numpy(draw_units(KEY.stream("map", 1), universe, deviation, MapPlaces(None)))
    sums = threshold - units * grid  # all on the grid, and so exact
    touched, sums[1::2] = torch.arange(universe, device=HERE), sums[1::2] - grid
    settings = {"universe": universe, "threshold": threshold, "deviation": deviation}
    found = surviving_rows(touched, sums.to(HERE), KEY.stream("map", 1), **settings)
    assert found.tolist() == list(range(0, universe, 2))
    alone = surviving_rows(touched[:0], sums[:0].to(HERE), KEY.stream("map", 1), **settings | {"threshold": -1.0})
    assert alone.tolist() == (units * grid >= -1.0).nonzero().flatten().tolist()
    exact = float(units[7] * grid)  # noise alone, to the last unit
    for least, there in ((exact, True), (exact + grid, False)):
        alone = surviving_rows(touched[:0], sums[:0].to(HERE), KEY.stream("map", 1), **settings | {"threshold": least})
        assert (7 in alone.tolist()) == there


@pytest.mark.usefixtures("pretended")
def test_survivors_within_selected_rows_are_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = both(monkeypatch, lambda where: mapped(where, 6.0, torch.arange(0, 12_000, 5)))
    assert torch.equal(here, there) and len(here) > 20


@triton.jit
def knows_nothing(radius, angle, deviation):
    zero = radius.to(tl.float64) * 0
    return zero, zero, zero, zero + 1


@pytest.mark.skipif(HERE.type != "cpu", reason="a kernel that is compiled keeps the functions that it calls")
@pytest.mark.usefixtures("pretended")
def test_what_a_kernel_is_not_sure_of_is_decided_as_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that take every variate for 0, and are sure of none."""
    monkeypatch.setattr(noise, "pair", knows_nothing)
    before = torch.randn(61, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([3, 700, 2**40])

    def draws(where: torch.device) -> list[Tensor]:
        dense = added(before.to(where), DensePlaces(9), "dense noise")
        of_rows = added(before[:27].to(where), RowPlaces(rows.to(where), [(2, 9), (1, 9)]), "row noise")
        touched, sums = torch.tensor([2, 9, 30], device=where), torch.tensor([2.0, 0.0, 5.0], device=where).double()
        settings = {"universe": 41, "threshold": 2.0, "deviation": 1.5}
        return [dense, of_rows, surviving_rows(touched, sums, KEY.stream("map", 1), **settings).cpu()]

    here, there = both(monkeypatch, draws)
    assert all(torch.equal(*each) for each in zip(here, there, strict=True)) and 3 < len(here[2]) < 30


@pytest.mark.skipif(HERE.type != "cpu", reason="a kernel that is compiled keeps the functions that it calls")
@pytest.mark.usefixtures("pretended")
def test_more_unsure_variates_than_there_can_be_stop_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "pair", knows_nothing)
    with pytest.raises(RuntimeError, match="90 variates are unsure"):
        added(torch.zeros(90), DensePlaces(), "dense noise")


@triton.jit
def write_variates(radii, angles, units, sure, reals, pairs, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    deviation = tl.load(reals)
    cosine, sine, factor, error = noise.pair(tl.load(radii + lane), tl.load(angles + lane), deviation)
    unit = noise.nearest(cosine)
    tl.store(units + lane, unit)
    tl.store(sure + lane, noise.unsure(0.5 - tl.abs(cosine - unit), factor, error, deviation) == 0)
    unit = noise.nearest(sine)
    tl.store(units + pairs + lane, unit)
    tl.store(sure + pairs + lane, noise.unsure(0.5 - tl.abs(sine - unit), factor, error, deviation) == 0)


def test_a_kernel_is_sure_of_what_it_may_be_sure_of() -> None:
    """At 2^38 units a deviation, where float64 leaves 0.1% undecided; and at radii that are extreme."""
    pairs, deviation = 1 << 16, 2.0**38
    words = KEY.stream("words").at(0, 2 * pairs).view(np.int64).copy()
    words[:6] = 0, 1, -1, 2**63 - 1, 2**33 - 1, 2**63 - 2**9
    units, sure = (
        torch.empty(2 * pairs, dtype=torch.float64, device=HERE),
        torch.empty(2 * pairs, dtype=torch.bool, device=HERE),
    )
    radii, angles = (torch.from_numpy(part).to(HERE) for part in (words[:pairs], words[pairs:]))
    reals = torch.tensor([deviation], dtype=torch.float64, device=HERE)
    block = pairs if HERE.type == "cpu" else 256  # an interpreted program takes as long for many lanes as for few
    memory.launch(write_variates, (pairs // block,), radii, angles, units, sure, reals, pairs, BLOCK=block)

    class Beyond:
        def extended(self, word: int, position: int) -> int:
            return word << 128 | 1 << 127

    exact = nearest_normals(Beyond(), 0, words, 2 * pairs, deviation, Scratch(2 * pairs)).copy()
    equal, sure_of = units.cpu().numpy() == exact, sure.cpu().numpy()
    assert equal[sure_of].all() and not sure_of[:5].any()
    assert 0 < (~equal).sum() < (~sure_of).sum() < 5e-3 * len(exact)
    assert 0.99 < float((units / deviation).std()) < 1.01
