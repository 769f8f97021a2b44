"""The step of every algorithm, written the slow and obvious way: per-example gradients in float64, dense tables.

Shares with the library only the random draws (the key's streams) and the numbering of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from dpfest.accounting.bands import strategy
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.exponential import Exponential
from dpfest.algorithms.rules import Frozen, Threshold
from dpfest.noise.gaussian import charged_deviation, gaussian, gaussian_grid
from dpfest.noise.key import CHACHA, NoiseKey
from dpfest.planning.unproven import Nonprivate
from dpfest.selection.exponential import draw_rows
from dpfest.selection.survivors import untouched_survivors
from dpfest.selection.thresholding import untouched_rows
from tests.dpfest import placed


def per_example_gradients(model: nn.Module, losses: Tensor) -> list[dict[str, Tensor]]:
    """Gradient of each example's loss, every parameter, dense."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    result = []
    for loss in losses:
        values = torch.autograd.grad(loss, list(named.values()), retain_graph=True, materialize_grads=True)
        result.append(dict(zip(named, values, strict=True)))
    return result


def norm(gradients: Sequence[Tensor]) -> float:
    return float(torch.sqrt(sum((g.square().sum() for g in gradients), torch.zeros((), dtype=torch.float64))))


def row_noise(key: NoiseKey, step: int, rows: Sequence[tuple[int, int]], deviation: float) -> np.ndarray:
    """Independent noise on rows (number, dimension), end to end, as the key's cipher has it."""
    if key.cipher == CHACHA:
        return placed.on_rows(key, step, rows, deviation)
    return gaussian(key.stream("row noise", step), sum(dim for _, dim in rows), deviation)


def filtered(
    key: NoiseKey,
    step: int,
    rows: Sequence[tuple[int, int]],
    coefficients: Sequence[int],
    deviation: float,
) -> np.ndarray:
    """Correlated noise of a step on rows (number, dimension), in units of their grid: exact fractions, all steps."""
    shares = [Fraction(a, coefficients[0]) for a in coefficients]
    of_fresh = deviation * math.sqrt(sum(a * a for a in coefficients)) / coefficients[0] * (1 + 2.0**-50)
    before: list[list[int]] = []
    for number in range(step + 1):
        fresh = row_noise(key, number, rows, of_fresh) / gaussian_grid(of_fresh)
        own = []
        for coordinate, drawn in enumerate(fresh.tolist()):
            value = Fraction(int(drawn), coefficients[0])
            for share, past in zip(shares[1:], reversed(before), strict=False):
                value -= share * past[coordinate]
            own.append(math.floor(value + Fraction(1, 2)))
        before.append(own)
    return np.array(before[-1], dtype=float)


def reference_gradient(
    model: nn.Module,
    algorithm: Algorithm,
    losses: Callable[[Any], Tensor],
    batch: Any,
    ids: list[list[set[int]]],
    key: NoiseKey,
    step: int,
    *,
    gradient_noise_multiplier: float,
    divisor: float,
    map_noise_multiplier: float | None = None,
    epsilon_per_draw: float | None = None,
    selected: np.ndarray | None = None,
    shards: Sequence[tuple[NoiseKey, np.ndarray]] | None = None,
    roundings: float = 1.0,
    steps: int = 0,
) -> dict[str, Tensor]:
    """The averaged noised gradient of every parameter, dense; zero in rows that did not survive.

    Args:
        ids: for each table, in order, the set of rows that each example looked up.
        shards: the key and the global rows, ascending, of each part of the tables that draws for itself; None for one.
        roundings: how often a sum is rounded, as is charged.
        steps: of the whole training, on which the coefficients of correlated noise depend.
    """
    kinds, parameters = (nn.Embedding, nn.EmbeddingBag), dict(model.named_parameters())  # a shared table once
    tables = {
        n + ".weight": m for n, m in model.named_modules() if isinstance(m, kinds) and n + ".weight" in parameters
    }
    names = list(tables)
    sizes = [t.num_embeddings for t in tables.values()]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    total = int(offsets[-1])
    shards = [(key, np.arange(total))] if shards is None else shards
    gradients = per_example_gradients(model, losses(batch))
    examples = len(gradients)

    contributions = np.zeros((examples, total))
    for offset, table in zip(offsets, ids, strict=False):
        for example, rows in enumerate(table):
            contributions[example, [offset + row for row in rows]] = 1

    mask = np.zeros(total, dtype=bool)
    if isinstance(algorithm, AdaFEST):
        universe = np.arange(total) if selected is None else selected
        lengths = np.maximum(np.linalg.norm(contributions[:, universe], axis=1, keepdims=True), 1e-30)
        clipped = contributions * np.minimum(1, algorithm.contribution_clipping_norm / lengths)
        scale = map_noise_multiplier * algorithm.contribution_clipping_norm
        probability = 0.5 - 0.5 * float(torch.erf(torch.tensor(algorithm.threshold / scale / 2**0.5).double()))
        for own, members in shards:
            within, stream = np.intersect1d(members, universe), own.stream("map", step)
            touched = np.flatnonzero(contributions[:, within].sum(0))
            if own.cipher == CHACHA:  # all rows of the shard, or their ranks in its part of the set
                numbers = range(len(within)) if selected is not None else (within // len(shards)).tolist()
                noisy = clipped.sum(0)[within] + placed.on_map(own, step, numbers, scale)
                mask[within[noisy >= algorithm.threshold]] = True
                continue
            noisy = clipped.sum(0)[within[touched]] + gaussian(stream, len(touched), scale)
            mask[within[touched[noisy >= algorithm.threshold]]] = True
            mask[within[untouched_survivors(touched, len(within), probability, stream)]] = True
    elif isinstance(algorithm, Exponential):
        utilities = np.zeros(total)
        sums = [torch.zeros(t.weight.shape, dtype=torch.float64) for t in tables.values()]
        for gradient in gradients:
            length = norm([gradient[name] for name in names])
            factor = min(1.0, algorithm.selection_clipping_norm / max(length, 1e-30))
            for total_sum, name in zip(sums, names, strict=True):
                total_sum += gradient[name] * factor
        utilities = torch.cat([table.norm(dim=1) for table in sums]).numpy()
        touched = np.flatnonzero(contributions.sum(0))
        scale = 2 * algorithm.selection_clipping_norm / epsilon_per_draw
        mask[
            draw_rows(
                touched,
                utilities[touched],
                universe=total,
                count=algorithm.rows_per_step,
                scale=scale,
                stream=key.stream("exponential selection", step),
            )
        ] = True
    elif isinstance(algorithm, Nonprivate | Threshold):  # of a threshold, all other rows are noise alone
        mask[np.flatnonzero(contributions.sum(0))] = True
    elif isinstance(algorithm, Frozen):
        pass
    elif selected is not None:
        mask[selected] = True
    else:
        mask[:] = True

    masks = {name: torch.from_numpy(mask[offsets[i] : offsets[i + 1]]) for i, name in enumerate(names)}
    sums_by_name = {name: torch.zeros_like(value) for name, value in gradients[0].items()} if gradients else {}
    for gradient in gradients:
        for name in names:
            gradient[name] = gradient[name] * masks[name][:, None]
        factor = min(1.0, algorithm.clipping_norm / max(norm(list(gradient.values())), 1e-30))
        for name, value in gradient.items():
            sums_by_name[name] += value * factor

    if gradient_noise_multiplier > 0:
        coordinates = sum(value.numel() for value in dict(model.named_parameters()).values() if value.requires_grad)
        sensitivity = algorithm.clipping_norm * (1 + 2**-10)
        rows_noise = strategy(algorithm.bands, steps) if algorithm.bands else None
        row_grid = rows_noise.grid if rows_noise else gaussian_grid
        deviation = charged_deviation(gradient_noise_multiplier, sensitivity, coordinates * roundings**2, row_grid)
        grid = gaussian_grid(deviation)

        def noised(sums: Tensor, noise: np.ndarray, size: float = grid) -> Tensor:
            return (sums / size).round() * size + torch.from_numpy(noise)

        def in_shard(rows: np.ndarray) -> list[tuple[int, int]]:
            return [(number // len(shards), len(row(number))) for number in rows.tolist()]

        def row(number: int) -> Tensor:
            table = int(np.searchsorted(offsets, number, side="right")) - 1
            return sums_by_name[names[table]][number - offsets[table]]

        for own, members in shards:
            alive = members[mask[members]]
            flat = torch.cat([torch.empty(0, dtype=torch.float64), *map(row, alive)])
            if rows_noise:
                size = row_grid(deviation)
                noise = size * filtered(own, step, in_shard(alive), rows_noise.coefficients, deviation)
                values = noised(flat, noise, size)
            else:
                values = noised(flat, row_noise(own, step, in_shard(alive), deviation))
            values = values.split([len(row(number)) for number in alive])
            for number, value in zip(alive, values, strict=True):
                row(number).copy_(value)
        dense = [name for name in sums_by_name if name not in names]
        flat = torch.cat([sums_by_name[name].flatten() for name in dense])
        if key.cipher == CHACHA:
            flat = noised(flat, placed.on_dense(key, step, range(flat.numel()), deviation))
        else:
            flat = noised(flat, gaussian(key.stream("dense noise", step), flat.numel(), deviation))
        for name, part in zip(dense, flat.split([sums_by_name[n].numel() for n in dense]), strict=True):
            sums_by_name[name] = part.view_as(sums_by_name[name])
        if isinstance(algorithm, Threshold):
            streams = [own.stream("untouched rows", step) for own, _ in shards]
            for number, name in enumerate(names):
                dim = sums_by_name[name].shape[1]
                radius = deviation * float(stats.chi.isf(algorithm.false_rate, dim))
                for stream, (own, members) in zip(streams, shards, strict=True):
                    within = members[(members >= offsets[number]) & (members < offsets[number + 1])]
                    touched = np.flatnonzero(mask[within])
                    if own.cipher == CHACHA:
                        others = np.flatnonzero(~mask[within])
                        drawn = row_noise(own, step, in_shard(within[others]), deviation).reshape(-1, dim)
                        sums_by_name[name][within[others] - offsets[number]] = torch.from_numpy(drawn)
                        continue
                    others, drawn = untouched_rows(touched, len(within), dim, deviation, radius, stream)
                    sums_by_name[name][within[others] - offsets[number]] = torch.from_numpy(drawn)
                length = sums_by_name[name].norm(dim=1, keepdim=True)
                shorter = 1 - radius / length if algorithm.rule == "soft" else 1.0
                sums_by_name[name] *= torch.where(length >= radius, shorter, 0.0)
    for name, table in tables.items():
        if table.padding_idx is not None:
            sums_by_name[name][table.padding_idx] = 0
    return {name: value / divisor for name, value in sums_by_name.items()}
