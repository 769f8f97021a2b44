"""The key's streams: standard normal, independent across purpose, step and block, and reproducible.

Each statistical test is run at a fixed seed with false-alarm rate 1e-4.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from dpfest.noise import BLOCK, NoiseKey, _box_muller

FALSE_ALARM = 1e-4


def test_normal_law_and_a_wrong_scale_is_rejected() -> None:
    sample = NoiseKey.from_seed(1).normal("x", 0, 200_000).double().numpy()
    assert stats.kstest(sample, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(sample, "norm", args=(0, 1.04)).pvalue < 1e-6
    n = len(sample)
    assert stats.chi2.sf((sample**2).sum(), n) > FALSE_ALARM
    assert stats.chi2.cdf((sample**2).sum() / 1.02**2, n) < 1e-3


def test_streams_are_distinct_and_uncorrelated() -> None:
    key, size = NoiseKey.from_seed(1), 50_000
    streams = [
        key.normal("rows", 0, size),
        key.normal("rows", 1, size),
        key.normal("dense", 0, size),
        NoiseKey.from_seed(2).normal("rows", 0, size),
    ]
    correlation = np.corrcoef(torch.stack(streams).double().numpy())
    off = correlation[np.triu_indices(4, 1)] * np.sqrt(size)
    assert stats.chi2.sf((off**2).sum(), len(off)) > FALSE_ALARM


def test_blocks_do_not_repeat_and_threads_do_not_matter() -> None:
    key, size = NoiseKey.from_seed(4), 2 * BLOCK + 1000
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = key.normal("rows", 3, size)
        torch.set_num_threads(2)
        together = key.normal("rows", 3, size)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)
    assert not torch.equal(alone[:1000], alone[BLOCK : BLOCK + 1000])
    assert torch.unique(alone).numel() > 0.97 * size


def test_all_of_the_key_matters() -> None:
    """torch's own CPU seed keeps 32 bits; keys that differ in the last byte alone still give other noise."""
    first, second = NoiseKey(bytes(32)), NoiseKey(bytes(31) + b"\x01")
    assert not torch.equal(first.normal("x", 0, 100), second.normal("x", 0, 100))
    assert first.generator("x").random() != second.generator("x").random()


def test_fresh_keys_differ_and_fixed_ones_do_not() -> None:
    assert NoiseKey.fresh().secret != NoiseKey.fresh().secret
    assert NoiseKey.from_seed(5) == NoiseKey.from_seed(5)
    assert NoiseKey.from_seed(5).fixed and not NoiseKey.fresh().fixed


def test_one_seed_gives_each_purpose_its_own_key() -> None:
    assert NoiseKey.from_seed(5, "run a") != NoiseKey.from_seed(5, "run b")


@pytest.mark.parametrize(("limit", "draws"), [(5.0, 10**7), pytest.param(5.77, 12 * 10**8, marks=pytest.mark.slow)])
def test_tails_reach_as_far_as_the_law(limit: float, draws: int) -> None:
    """Box-Muller on 24-bit uniforms ends at 5.768: whatever lies beyond would then tell that an example is there."""
    key, size, beyond = NoiseKey.from_seed(0), 10**7, 0
    for step in range(draws // size):
        beyond += int((key.normal("tail", step, size).abs() > limit).sum())
    expected = 2 * stats.norm.sf(limit) * draws
    assert stats.poisson.sf(beyond - 1, expected) > FALSE_ALARM
    assert stats.poisson.cdf(beyond, expected) > FALSE_ALARM


def test_largest_radii_have_63_bits() -> None:
    """Where the 32 bits of a radius are few, those drawn below them make it, down to the least number of 63 bits."""
    coarse = np.array([0, 0, 5, 65_535, 65_536], np.uint32)
    below = np.array([0, 2**31 - 1, 2**30, 7], np.uint64)
    given = iter([np.concatenate([coarse, np.zeros(5, np.uint32)]).view(np.uint64), below << np.uint64(33)])
    out = np.empty(10, np.float32)
    _box_muller(lambda count: next(given), 2.0, out)  # angles of zero: cosines of one
    uniform = np.array([2.0**-63, 2.0**-32, 5.5 * 2.0**-32, 65_535 * 2.0**-32, 2.0**-16])
    np.testing.assert_allclose(out[:5], 2 * np.sqrt(-2 * np.log(uniform)), rtol=1e-6)
    assert next(given, None) is None


def test_deviation_scales_the_noise() -> None:
    key = NoiseKey.from_seed(1)
    torch.testing.assert_close(key.normal("x", 0, 1001, deviation=3e-25), 3e-25 * key.normal("x", 0, 1001))


def test_the_key_is_not_printed() -> None:
    key = NoiseKey.fresh()
    assert repr(key.secret) not in repr(key) and key.secret.hex() not in repr(key)


def test_short_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        NoiseKey(b"short")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_normal_law() -> None:
    sample = NoiseKey.from_seed(1).normal("x", 0, 200_000, "cuda").double().cpu().numpy()
    assert stats.kstest(sample, "norm").pvalue > FALSE_ALARM
