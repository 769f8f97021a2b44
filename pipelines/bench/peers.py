"""Section `peers`: the pCTR step under Opacus, whose noise is dense, with and without per-example gradients.

Every competitor has its own process with a memory limit: one that does not fit fails alone and reports its request.
Opacus wraps one optimiser, so it gets plain SGD for all parameters, which costs less than ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipelines.bench import pctr
from pipelines.bench.case import Case, without
from pipelines.bench.measure import Turn, steps
from pipelines.bench.training import ORDINARY
from pipelines.config.settings import Config
from pipelines.tasks.optimizers import OptimizerConfig
from pipelines.tasks.pctr import PctrConfig

REFERENCE = "adafest"
OURS = (REFERENCE, "fest", "dpsgd", ORDINARY)
GHOST, HOOKS = "opacus, ghost clipping", "opacus, per-example gradients"
_SHARE = 0.8  # of the available memory that all competitors together may take
_SIZES = 2  # per-example gradients do not fit even at the first; the largest size would only be slow


def cases(config: Config) -> list[Case]:
    """Return ours and Opacus at the two smaller sizes."""
    makers = dict.fromkeys(OURS, pctr.competitor) | dict.fromkeys((GHOST, HOOKS), opacus_step)
    gibibytes = 4 * config.train.batch_size * pctr.COORDINATES_PER_ROW / 2**30
    return [
        pctr.case(
            rows,
            config,
            makers,
            reference=REFERENCE,
            apart=True,
            limit=_SHARE,
            left_out=without("opacus", GHOST, HOOKS),
            asked_for={HOOKS: f"per-example gradients of all tables are {rows * gibibytes:,.0f} GiB"},
        )
        for rows in pctr.sizes(config)[:_SIZES]
    ]


def opacus_step(name: str, batch_size: int, config: PctrConfig, weights: Sequence[Tensor]) -> Turn:
    """Return training steps under Opacus with the same clipping and noise."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    warnings.simplefilter("ignore")  # about hooks on inputs that need no gradient, three per step
    plain = pctr.model_on(weights, config)
    batches = pctr.batches([len(weight) for weight in weights], batch_size, weights[0].device)
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
