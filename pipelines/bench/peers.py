"""Section `peers`: the pCTR step under Opacus, whose noise is dense, with and without per-example gradients.

Every competitor has its own process with a memory limit: one that does not fit fails alone and reports its request.
Opacus wraps one optimiser, so it gets plain SGD for all parameters, which costs less than ours.
"""

from __future__ import annotations

import contextlib
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from pipelines.bench import pctr
from pipelines.bench.measure import Times, Turn, steps, take_turns
from pipelines.bench.records import Record, records
from pipelines.bench.step import case, sizes
from pipelines.bench.worker import Peak, Worker, WorkerError, available_bytes
from pipelines.config.settings import Config
from pipelines.system.progress import progress
from pipelines.tasks.optimizers import OptimizerConfig
from pipelines.tasks.pctr import PctrConfig
from pipelines.tasks.task import device_of

REFERENCE = "adafest"
OURS = (REFERENCE, "fest", "dpsgd", pctr.ORDINARY)
GHOST, HOOKS = "opacus, ghost clipping", "opacus, per-example gradients"
ABSENT = "absent: opacus is not installed (pip install -e '.[peers]')"
_SHARE = 0.8  # of the available memory that all competitors together may take
_SIZES = 2  # per-example gradients do not fit even at the first; the largest size would only be slow


def bench(config: Config, repeats: int) -> list[Record]:
    """Time ours and Opacus at the two smaller sizes."""
    measured = []
    with progress("peers") as report:
        for number, rows in enumerate(sizes(config)[:_SIZES]):
            report(number, _SIZES, f"{rows:,} rows")
            measured += _at(rows, config, repeats)
    return measured


def _at(rows: int, config: Config, repeats: int) -> list[Record]:
    device, batch_size = device_of(config.device), config.train.batch_size
    settings = (rows, batch_size, config.model, str(device))
    notes: dict[str, str] = {}
    peaks: dict[str, Peak] = {}
    with contextlib.ExitStack() as stack:
        turns: dict[str, Turn] = {}
        for name in (*OURS, GHOST, HOOKS):
            if name not in OURS and find_spec("opacus") is None:
                notes[name] = ABSENT
                continue
            make = pctr.alone if name in OURS else opacus_step
            # Try each competitor alone first, so that a failure costs no other its turn.
            limit = int(_SHARE * available_bytes())
            try:
                with Worker(make, name, *settings, memory=limit) as trial:
                    peaks[name] = trial.peak(device)
            except WorkerError as error:
                notes[name] = f"failed within {limit / 2**30:.1f} GiB: {error}{_asked(name, rows, batch_size)}"
            else:
                turns[name] = stack.enter_context(Worker(make, name, *settings, memory=limit))
        times: Times = take_turns(turns, REFERENCE, repeats=repeats, seconds=config.bench.seconds)
    return records(
        times,
        REFERENCE,
        peaks=peaks,
        notes=notes,
        section="peers",
        case=case(rows),
        table_rows=rows,
        batch_size=batch_size,
    )


def _asked(name: str, rows: int, batch_size: int) -> str:
    if name != HOOKS:
        return ""
    needed = 4 * batch_size * rows * pctr.COORDINATES_PER_ROW / 2**30
    return f"; per-example gradients of all tables are {needed:,.0f} GiB"


def opacus_step(name: str, rows: int, batch_size: int, config: PctrConfig, device: str) -> Turn:
    """Return training steps under Opacus with the same clipping and noise."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    warnings.simplefilter("ignore")  # about hooks on inputs that need no gradient, three per step
    weights = pctr.tables(rows, torch.device(device))
    plain, batches = (
        pctr.model_on(weights, config),
        pctr.batches([len(w) for w in weights], batch_size, weights[0].device),
    )
    settings, criterion = OptimizerConfig(), nn.BCEWithLogitsLoss()
    groups = [
        {"params": plain.network.parameters(), "lr": settings.dense.learning_rate},
        {"params": plain.tables.parameters(), "lr": settings.tables.learning_rate},
    ]
    noise: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": batch_size}
    loss: Any = criterion
    if name == GHOST:
        model = GradSampleModuleFastGradientClipping(plain, max_grad_norm=1.0, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(groups), **noise)
        loss = DPLossFastGradientClipping(model, optimizer, criterion)
    else:
        model = GradSampleModule(plain)
        optimizer = DPOptimizer(torch.optim.SGD(groups), **noise)

    def step(number: int) -> None:
        numeric, ids, labels = batches[number % len(batches)]
        loss(model(numeric, ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return steps(step, weights[0].device)
