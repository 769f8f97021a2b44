"""Section `device`: what a device gives, and what a training step takes of it.

Copies, products and launches; noise and surviving rows at several sizes, against torch's own normal variates, which
are neither secret nor exact; and, of whole steps, how many operations the device is given, how long it is busy, and how
often the host waits for it. Under ``DPFEST_DEVICE_KERNELS=1`` the kernels of :mod:`dpfest.device` serve. On a CPU the
times alone are measured.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from dpfest.noise.gaussian import add_gaussian, gaussian_grid
from dpfest.noise.key import CHACHA, NoiseKey
from dpfest.noise.places import DensePlaces
from dpfest.selection.survivors import surviving_rows
from pipelines.bench import pctr
from pipelines.bench.case import Case, sizes_up_to
from pipelines.bench.measure import Turn, steps
from pipelines.bench.training import (
    ALGORITHM,
    MAP_NOISE,
    ORDINARY,
    Step,
    click_losses,
    ordinary_step,
    threshold,
    training_step,
    whole,
)
from pipelines.config.settings import Config
from pipelines.tasks.optimizers import OptimizerConfig
from pipelines.tasks.task import device_of

COPY, PRODUCT, LAUNCH = "copy of a gigabyte", "product of float32 matrices, 4,096 cubed", "launch of an empty operation"
TORCH, NOISE, MAP = "torch's normal variates", "exactly rounded noise", "surviving rows"
SIZES = (100_000, 1_000_000, 10_000_000, 100_000_000)
STEPS = (ORDINARY, pctr.FUSED, pctr.PRODUCTS, *ALGORITHM)
"""Competitors whose steps are timed and, but for products alone, profiled."""
WARM_UP, PROFILED = 3, 20  # steps


def cases(config: Config) -> list[Case]:
    """Return the device's own speeds, noise at sizes up to `bench.largest_rows`, and the steps of the pCTR model."""
    device = device_of(config.device)
    side = min(4_096, config.bench.largest_rows)
    own = Case(
        name="the device",
        reference=COPY,
        competitors={
            COPY: partial(copies, min(1 << 28, 1_000 * config.bench.largest_rows), device),
            PRODUCT: partial(products, side, device),
            LAUNCH: partial(copies, 1, device),
        },
        device=device,
    )
    drawn = [
        Case(
            name=f"{size:,} variates, or rows of the map",
            reference=TORCH,
            competitors={
                TORCH: partial(torchs, size, device),
                NOISE: partial(noise, size, device),
                MAP: partial(survivors, size, device),
            },
            device=device,
            fields={"table_rows": size},
        )
        for size in sizes_up_to(config.bench.largest_rows, SIZES)
    ]
    rows = min(pctr.PUBLISHED_ROWS, config.bench.largest_rows)
    size = config.train.batch_size
    whole_steps = pctr.case(
        rows,
        config,
        dict.fromkeys(STEPS, pctr.competitor),
        reference=ORDINARY,
        values={name: partial(profiled_steps, name, size, config) for name in STEPS if name != pctr.PRODUCTS}
        if device.type == "cuda"
        else {},
    )
    return [own, *drawn, whole_steps]


def copies(count: int, device: torch.device) -> Turn:
    """Return copies of so many float32 numbers."""
    source = torch.zeros(count, device=device)
    target = torch.empty_like(source)
    return steps(lambda number: target.copy_(source), device)


def products(side: int, device: torch.device) -> Turn:
    """Return products of two square matrices."""
    one, other = (torch.randn(side, side, device=device) for _ in range(2))
    target = torch.empty_like(one)
    return steps(lambda number: torch.mm(one, other, out=target), device)


def torchs(count: int, device: torch.device) -> Turn:
    """Return draws of so many of torch's float32 normal variates."""
    values = torch.empty(count, device=device)
    return steps(lambda number: values.normal_(), device)


def noise(count: int, device: torch.device) -> Turn:
    """Return additions of exactly rounded noise to so many dense coordinates."""
    values, key = torch.zeros(count, device=device), NoiseKey.fresh(CHACHA)
    return steps(lambda number: add_gaussian(values, key.stream(f"noise {number}"), 1.0, DensePlaces()), device)


def survivors(rows: int, device: torch.device) -> Turn:
    """Return choices of rows of the map, of which a thousand are touched, at the threshold of section `step`."""
    touched = torch.arange(0, rows, -(-rows // 1_000), device=device)
    sums = torch.full((len(touched),), round(1 / gaussian_grid(MAP_NOISE)) * gaussian_grid(MAP_NOISE)).double()
    on_device, key, tau = sums.to(device), NoiseKey.fresh(CHACHA), threshold(rows, MAP_NOISE)

    def choose(number: int) -> None:
        stream = key.stream(f"map {number}")
        surviving_rows(touched, on_device, stream, universe=rows, threshold=tau, deviation=MAP_NOISE)

    return steps(choose, device)


def profiled_steps(name: str, batch_size: int, config: Config, weights: Sequence[Tensor]) -> dict[str, Any]:
    """Return :func:`profiled` of a competitor's steps."""
    model, device = pctr.model_on(weights, config.model), weights[0].device
    read = whole(pctr.batches([len(weight) for weight in weights], batch_size, device), batch_size)
    settings: OptimizerConfig | None = pctr.ORDINARY_OPTIMIZERS.get(name)
    if settings is not None:
        return profiled(ordinary_step(model, click_losses, read, batch_size, settings))
    return profiled(training_step(name, model, click_losses, read, batch_size))


def profiled(step: Step) -> dict[str, Any]:
    """Profile steps on a GPU.

    Returns:
        Of a step: ``operations`` that the device was given, ``waits`` of the host for it, ``device_seconds`` that it
        was busy, and ``longest``: seconds of those operations that took most of them, by name.
    """
    for number in range(WARM_UP):
        step(number)
    waits = _waits(lambda: step(WARM_UP))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for number in range(WARM_UP + 1, WARM_UP + 1 + PROFILED):
            step(number)
        torch.cuda.synchronize()
    taken: Counter[str] = Counter()
    on_device = [event for event in found.events() if event.device_type == DeviceType.CUDA]
    operations = [event for event in on_device if not getattr(event, "is_user_annotation", False)]
    for event in operations:
        taken[event.name] += event.device_time_total / 1e6 / PROFILED
    return {
        "operations": len(operations) / PROFILED,
        "waits": waits,
        "device_seconds": taken.total(),
        "longest": dict(taken.most_common(12)),
    }


def _waits(work: Callable[[], object]) -> int:
    """Return how often work waits for the GPU, as PyTorch warns of it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(one.message) for one in seen)
