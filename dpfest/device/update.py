"""Steps of SGD and Adagrad on the rows of all tables in one launch: post-processing of a release.

Every other optimiser takes its own step, as on a CPU. A row's step is taken after its release is whole, and not within
the kernel that sums it: whoever asks for a gradient moves no weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from dpfest.device.memory import blocks, launch, table
from dpfest.device.sums import FLOATS
from dpfest.gradients.parts import RowGradient
from dpfest.gradients.tables import Table
from dpfest.gradients.validation import is_plain_adagrad, is_plain_sgd

_ROWS, _WIDTH = 16, 32
_COLUMNS = tl.constexpr(7)


@triton.jit
def take(tables, reals, FLOAT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Take the steps of rows, programs of axis 1 a table each.

    Memory:
        tables: of each, address of its weight and the step from row to row; of its gradient's values and rows; number
            of these; dimension; address of Adagrad's sums, 0 for SGD.
        reals: of each, learning rate and epsilon.
    """
    own = tables + tl.program_id(1) * _COLUMNS
    rate = tl.load(reals + 2 * tl.program_id(1)).to(FLOAT).to(tl.float64)  # as torch takes it
    epsilon = tl.load(reals + 2 * tl.program_id(1) + 1).to(FLOAT).to(tl.float64)
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < tl.load(own + 4)
    dim, state = tl.load(own + 5), tl.load(own + 6)
    row = tl.load(tl.load(own + 3).to(tl.pointer_type(tl.int64)) + lane, mask=inside, other=0) * tl.load(own + 1)
    weight = tl.load(own).to(tl.pointer_type(FLOAT))
    values = tl.load(own + 2).to(tl.pointer_type(FLOAT))
    sums = state.to(tl.pointer_type(FLOAT))
    column = dim * 0
    while column < dim:
        columns = column + tl.arange(0, WIDTH)
        mask = inside[:, None] & (columns[None, :] < dim)
        at = row[:, None] + columns[None, :]
        step = tl.load(values + lane[:, None] * dim + columns[None, :], mask=mask, other=0.0).to(tl.float64)
        adaptive = mask & (state != 0)
        # Each result is rounded as torch's own, and so the same whether products and sums are fused.
        total = tl.load(sums + at, mask=adaptive, other=1.0).to(tl.float64) + (step * step).to(FLOAT).to(tl.float64)
        tl.store(sums + at, total.to(FLOAT), mask=adaptive)
        if state != 0:
            root = tl.sqrt(total.to(FLOAT).to(tl.float64)).to(FLOAT).to(tl.float64)
            step = (step / (root + epsilon).to(FLOAT).to(tl.float64)).to(FLOAT).to(tl.float64)
        old = tl.load(weight + at, mask=mask, other=0.0).to(tl.float64)
        tl.store(weight + at, (old - rate * step).to(FLOAT), mask=mask)
        column += WIDTH


def take_steps(
    tables: Sequence[Table], gradients: Sequence[RowGradient], optimizers: Sequence[torch.optim.Optimizer]
) -> set[int]:
    """Take the steps of tables whose gradient has rows and whose optimiser is SGD or Adagrad, both in their plain form.

    Returns:
        Numbers of these tables.
    """
    groups = {
        id(weight): (one, group) for one in optimizers for group in one.param_groups for weight in group["params"]
    }
    found: dict[int, tuple[list[int], tuple[float, float]]] = {}
    for number, (own, gradient) in enumerate(zip(tables, gradients, strict=True)):
        weight, rows = own.weight, gradient.rows
        if rows is None or not len(rows) or id(weight) not in groups or weight.stride(1) != 1:
            continue
        optimizer, group = groups[id(weight)]
        if isinstance(group["lr"], Tensor) or group.get("fused"):
            continue
        rate, epsilon, sums = float(group["lr"]), 0.0, 0
        if is_plain_adagrad(optimizer, group):
            state = optimizer.state[weight]
            if state["sum"].stride() != weight.stride():
                continue
            rate /= 1 + float(state["step"]) * group["lr_decay"]
            state["step"] += 1
            epsilon, sums = float(group["eps"]), state["sum"].data_ptr()
        elif not is_plain_sgd(optimizer, group):
            continue
        of_gradient = [gradient.values.data_ptr(), rows.data_ptr(), len(rows), weight.shape[1]]
        found[number] = ([weight.data_ptr(), weight.stride(0), *of_gradient, sums], (rate, epsilon))
        torch.autograd.graph.increment_version(weight)
    if found:
        values = gradients[next(iter(found))].values
        numbers = table(values.device, [one for one, _ in found.values()])
        settings = torch.tensor([both for _, both in found.values()], dtype=torch.float64)
        settings = settings.to(values.device, non_blocking=True)  # a schedule's differ by step: none are kept
        grid = blocks(max(one[4] for one, _ in found.values()), _ROWS), len(found)
        launch(take, grid, numbers, settings, FLOAT=FLOATS[values.dtype], WIDTH=_WIDTH, BLOCK=_ROWS)
    return set(found)
