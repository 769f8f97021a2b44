"""The law of what a step releases: noise where it belongs, of the right size, fresh and independent; equal rules agree.

Fixed seeds; each accepting test would raise a false alarm for one seed in 10^4.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats

from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import DPSGD, FEST, Threshold
from dpfest.noise.key import NoiseKey
from tests.dpfest.steps import by_batch, engine_with
from tests.dpfest.test_engine import dense, losses_of, tabular

FALSE_ALARM, STEPS = 1e-4, 800
CLIPPING_NORM, SIGMA, BATCH = 0.7, 1.3, 10.0


def released(algorithm: Algorithm, examples: int, seed: int, selected: list[int] | None = None) -> np.ndarray:
    """Every coordinate of the gradient in each of many steps on one batch, ``[steps, coordinates]``."""
    model, batch, _ = tabular(examples)
    engine = engine_with(
        model,
        algorithm,
        by_batch(losses_of(model)),
        NoiseKey.from_seed(seed),
        gradient_noise_multiplier=SIGMA,
        map_noise_multiplier=2.0,
        expected_batch_size=BATCH,
        selected=None if selected is None else torch.tensor(selected),
    )
    steps = (dense(engine, [batch], step) for step in range(STEPS))
    return np.stack([torch.cat([value.flatten() for value in step.values()]).detach().numpy() for step in steps])


@cache
def released_by_dpsgd() -> np.ndarray:
    """What every rule that keeps all rows is compared with."""
    return released(DPSGD(clipping_norm=CLIPPING_NORM), 12, 3)


def test_noise_lies_on_survivors_alone_with_the_right_variance_fresh_and_independent() -> None:
    values = released(FEST(clipping_norm=CLIPPING_NORM), 0, 1, selected=[1, 9, 46, 50])
    noised = values.any(0)
    dense_coordinates = 8 * 5 + 5 + 5 + 1
    assert noised.sum() == dense_coordinates + 1 * 2 + 2 * 3 + 1 * 1, "an empty batch: noise, and nowhere else"
    noise = values[:, noised] / (CLIPPING_NORM * SIGMA / BATCH)
    assert stats.kstest(noise.ravel(), "norm").pvalue > FALSE_ALARM
    power = [float(np.square(noise / scale).sum()) for scale in (1.0, 0.98, 1.02)]
    right, low, high = (2 * min(stats.chi2.sf(p, noise.size), stats.chi2.cdf(p, noise.size)) for p in power)
    assert right > FALSE_ALARM and low < 1e-6 and high < 1e-6
    size = noise.shape[1]
    between = np.corrcoef(noise.T)[np.triu_indices(size, 1)] * math.sqrt(STEPS)
    assert stats.chi2.sf((between**2).sum(), len(between)) > FALSE_ALARM, "rows, tables and dense parameters"
    along = np.array([np.corrcoef(noise[1:, i], noise[:-1, i])[0, 1] for i in range(size)]) * math.sqrt(STEPS - 1)
    assert stats.chi2.sf((along**2).sum(), size) > FALSE_ALARM, "step after step"


@pytest.mark.parametrize("rule", ["hard", pytest.param("soft", marks=pytest.mark.slow)])
def test_a_threshold_that_keeps_every_row_is_dpsgd_in_law(rule: str) -> None:
    """In law alone, since it draws rows apart; the other rules are DP-SGD to the bit (`tests.dpfest.test_engine`)."""
    ours = released(Threshold(clipping_norm=CLIPPING_NORM, false_rate=1.0, rule=rule), 12, 2)
    theirs = released_by_dpsgd()
    deviation = CLIPPING_NORM * SIGMA / BATCH
    mean = (ours.mean(0) - theirs.mean(0)) / (deviation * math.sqrt(2 / STEPS))
    assert stats.chi2.sf((mean**2).sum(), len(mean)) > FALSE_ALARM
    ratio = ours.var(0, ddof=1) / theirs.var(0, ddof=1)
    tails = np.minimum(stats.f.sf(ratio, STEPS - 1, STEPS - 1), stats.f.cdf(ratio, STEPS - 1, STEPS - 1))
    assert 2 * tails.min() * len(ratio) > FALSE_ALARM
    assert np.linalg.norm(theirs.mean(0)) > 20 * deviation / math.sqrt(STEPS), "there is a signal to agree about"


def test_another_clipping_norm_is_another_law() -> None:
    ours, theirs = released(DPSGD(clipping_norm=0.9), 12, 2), released_by_dpsgd()
    mean = (ours.mean(0) - theirs.mean(0)) / (CLIPPING_NORM * SIGMA / BATCH * math.sqrt(2 / STEPS))
    assert stats.chi2.sf((mean**2).sum(), len(mean)) < 1e-6
