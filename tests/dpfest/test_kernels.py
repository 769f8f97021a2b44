"""Compiled loops return what their references in Python return."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

from dpfest import box_muller, kernels
from dpfest.gaussian import add_gaussian, gaussian
from dpfest.noise import NoiseKey

KEY = NoiseKey.from_seed(1)

needs_the_library = pytest.mark.skipif(kernels.library is None, reason="dpfest was installed without a compiler")


def test_the_loops_are_compiled_where_a_compiler_is_at_hand() -> None:
    assert kernels.library is not None or os.environ.get("DPFEST_COMPILED") == "0" or shutil.which("cc") is None


# Noise: the same bits


@needs_the_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 511, 1023, 1025, 65_535, 65_537, 300_001])
def test_noise_has_the_same_bits(count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one deviation and of one a row, added to values of all sizes."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype) * torch.logspace(-9, 9, count)
    values = values.to(dtype)
    deviations = torch.logspace(-6, 6, count, dtype=torch.float64)

    def noised() -> list[torch.Tensor]:
        results = [values.clone(), values.clone(), values.clone().view(-1, 1)]
        add_gaussian(results[0], KEY.stream("a"), 0.7)
        add_gaussian(results[1], KEY.stream("b"), 1e6)
        add_gaussian(results[2], KEY.stream("c"), deviations)
        return results

    compiled = noised()
    monkeypatch.setattr(kernels, "library", None)
    assert all(torch.equal(*pair) for pair in zip(compiled, noised(), strict=True))


@needs_the_library
def test_millions_of_variates_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among 8 million, some 64 radii are extreme, and float64 cannot decide about one."""
    library = kernels.library
    for part in range(8):
        monkeypatch.setattr(kernels, "library", library)
        compiled = gaussian(KEY.stream("many", part), 10**6, 1.0)
        monkeypatch.setattr(kernels, "library", None)
        assert np.array_equal(compiled, gaussian(KEY.stream("many", part), 10**6, 1.0))


def compute(radii: np.ndarray, angles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the compiled loop's whole numbers, distances from them and ln u, of every variate."""
    words = np.concatenate([radii, angles]).astype(np.int64)
    size = len(words)
    units, places, offs, logarithms = np.empty(size), np.empty(size, np.int64), np.empty(size), np.empty(size)
    found = kernels.nearest_normals(
        words, size, 1.0, most=-1.0, least=0.0, highest=0.0, units=units, unsure=(places, offs, logarithms)
    )
    assert found == size
    order = np.argsort(places)
    assert np.array_equal(places[order], np.arange(size))
    return units, offs[order], logarithms[order]


def words_of_every_kind() -> tuple[np.ndarray, np.ndarray]:
    """Return radii and angles: powers of two and their neighbours, and 3,000 at random."""
    powers = [2**power + step for power in range(63) for step in (-1, 0, 1)]
    near_root = [int(2**63 * math.sqrt(0.5)) + step for step in range(-3000, 3000, 500)]
    edges = np.array([*powers, *near_root, 2**63 - 1, 2**63 - 2**10, 2**63 - 2**43])
    drawn = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (2, 3000))
    signed = np.concatenate([edges, -edges, drawn[0]])
    return signed, np.concatenate([signed[len(drawn[1]) :], drawn[1]])


@needs_the_library
def test_the_logarithm_is_within_its_bound() -> None:
    """2.5 units in the last place of ln u, u the double nearest to the word; the noise's guarantee allows four."""
    radii, angles = words_of_every_kind()
    logarithms = compute(radii, angles)[2][: len(radii)]
    with mpmath.workprec(200):
        for radius, logarithm in zip(radii.tolist(), logarithms.tolist(), strict=True):
            uniform = abs(float(radius))
            if uniform == 0:
                assert logarithm < -700
                continue
            exact = mpmath.log(mpmath.ldexp(uniform, -63))
            assert abs(logarithm - exact) <= 2.5 * math.ulp(float(exact)) if exact else logarithm == 0


@needs_the_library
def test_variates_are_within_their_own_error_bounds() -> None:
    radii, angles = words_of_every_kind()
    units, offs, logarithms = compute(radii, angles)
    pairs, checked = len(radii), 0
    with mpmath.workprec(320):
        for place in range(2 * pairs):
            bound = box_muller._error(float(logarithms[place]))
            if math.isinf(bound):
                continue
            for below in (0, 2**128 - 1):
                radius, angle = (int(words[place % pairs]) << 128 | below for words in (radii, angles))
                exact = box_muller.real_variate(mpmath.mp, radius, angle, place >= pairs, 1.0)
                assert abs(abs(exact - float(units[place])) - float(offs[place])) < bound
            checked += 1
    assert checked > 6000


# The library


def warnings_of(code: str, **environment: str) -> tuple[str, str]:
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return ended.stdout.strip(), ended.stderr


def test_compiled_loops_can_be_left_out() -> None:
    shown, warned = warnings_of("from dpfest import kernels; print(kernels.library)", DPFEST_COMPILED="0")
    assert shown == "None" and not warned


@needs_the_library
@pytest.mark.parametrize("stale", ["of other sources", "not a library"])
def test_a_library_that_does_not_fit_is_named_and_not_used(tmp_path: Path, stale: str) -> None:
    """A copy of kernels.py beside a library of another version, and beside a file that is none."""
    source = Path(kernels.__file__).read_text(encoding="utf-8")
    assert "_VERSION = 1 " in source
    library = Path(kernels.library._name)
    if stale == "of other sources":
        source = source.replace("_VERSION = 1 ", "_VERSION = 10**6 ")
        shutil.copy2(library, tmp_path / library.name)
    else:
        (tmp_path / library.name).write_text("no library")
    (tmp_path / "kernels.py").write_text(source, encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kernels; print(kernels.library)"
    shown, warned = warnings_of(code)
    assert shown == "None" and library.name in warned and "install dpfest again" in warned
