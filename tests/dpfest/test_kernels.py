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

from dpfest import kernels
from dpfest.algorithms.rules import DPSGD, FEST
from dpfest.gradients.batch import LogicalBatch
from dpfest.gradients.clipped_sum import ClippedSum
from dpfest.gradients.contributions import Contributions
from dpfest.gradients.embeddings import _grouped
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.tables import Survivors, locate
from dpfest.noise import box_muller
from dpfest.noise.gaussian import add_gaussian, gaussian
from dpfest.noise.key import NoiseKey
from tests.dpfest.steps import engine_with

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
    assert "_VERSION = 4 " in source
    library = Path(kernels.library._name)
    if stale == "of other sources":
        source = source.replace("_VERSION = 4 ", "_VERSION = 10**6 ")
        shutil.copy2(library, tmp_path / library.name)
    else:
        (tmp_path / library.name).write_text("no library")
    (tmp_path / "kernels.py").write_text(source, encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kernels; print(kernels.library)"
    shown, warned = warnings_of(code)
    assert shown == "None" and library.name in warned and "install dpfest again" in warned


# Look-ups


def lookups_of(seed: int, examples: int = 200, repeated: bool = False) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Return the sizes of four tables' look-ups, one of them empty, each look-up's row and its example."""
    generator = torch.Generator().manual_seed(seed)
    rows, of_example, sizes, offset = [], [], [], 0
    for vocabulary in (1, 40, 50, 3_000_000):
        uses = 0 if vocabulary == 50 else 3 if repeated else 1
        example = torch.arange(examples).repeat_interleave(uses)
        rows.append(offset + (torch.rand(len(example), generator=generator) ** 3 * vocabulary).long())
        of_example.append(example)
        sizes.append(len(example))
        offset += vocabulary
    return sizes, torch.cat(rows), torch.cat(of_example)


@needs_the_library
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("examples", [0, 1, 200, 5000])
def test_lookups_are_grouped_as_the_reference_groups_them(examples: int, repeated: bool) -> None:
    sizes, row, example = lookups_of(examples, examples, repeated)
    compiled = kernels.group_lookups(row, example, sizes, repeated)
    reference = _grouped(row, example, sizes, repeated)
    assert len(compiled) == len(reference) == 6
    for found, expected in zip(compiled, reference, strict=True):
        assert torch.equal(found, expected)
    assert not repeated or examples < 2 or len(compiled[1]) < len(row)


@needs_the_library
@pytest.mark.parametrize("grid", [0.0, 2.0**-20])
@pytest.mark.parametrize("clipping_norm", [0.3, 1.0, 100.0])
def test_the_clipped_map_has_the_same_bits(clipping_norm: float, grid: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, row, example = lookups_of(0, 500, repeated=True)
    _, _, example_of, rows, row_of, _ = kernels.group_lookups(row, example, sizes, True)
    for examples in (0, 501):
        kept = example_of < examples
        contributions = Contributions(rows, row_of[kept], example_of[kept], examples)
        compiled = contributions.clipped(clipping_norm, grid)
        with monkeypatch.context() as without:
            without.setattr(kernels, "library", None)
            assert torch.equal(compiled, contributions.clipped(clipping_norm, grid))


@needs_the_library
@pytest.mark.parametrize(("wanted", "rows"), [(0, 0), (0, 9), (9, 0), (1, 1), (1000, 3), (3, 1000), (500, 700)])
def test_rows_are_found_as_the_reference_finds_them(wanted: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(wanted)
    several = [torch.randperm(1200, generator=generator)[:count].sort().values for count in (wanted, rows)]
    position, present = locate(several[1], several[0])
    assert torch.equal(kernels.locate(*several), torch.where(present, position, -1))


def losses(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch)


class Model(torch.nn.Module):
    """Columns of a wide gradient, a bag, a table used twice, a table of one dimension, one that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow = torch.nn.Embedding(50, 13), torch.nn.Embedding(7, 1)
        self.bag, self.unused = torch.nn.EmbeddingBag(30, 8, mode="mean"), torch.nn.Embedding(5, 3)
        self.out = torch.nn.Linear(13 + 1 + 8 + 13, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        parts = [self.wide(ids[:, 0]), self.narrow(ids[:, 1] % 7), self.bag(ids[:, 2:] % 30), self.wide(ids[:, 4])]
        return self.out(torch.cat(parts, dim=1)).squeeze(1).exp()


@needs_the_library
@pytest.mark.parametrize(
    ("dtype", "sum_dtype"), [(torch.float32, None), (torch.float32, torch.float64), (torch.float64, None)]
)
@pytest.mark.parametrize("kept", ["all", "touched", "some", "none"])
def test_clipped_sums_are_those_of_the_reference(
    kept: str, dtype: torch.dtype, sum_dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rounding: of norms and sums, with the same survivors, over two micro-batches, one gradient not finite."""

    def step() -> list[torch.Tensor]:
        model = Model().to(dtype)
        engine = engine_with(
            model, DPSGD(), losses, KEY, gradient_noise_multiplier=0.0, expected_batch_size=1.0, sum_dtype=sum_dtype
        )
        ids = torch.randint(50, (60, 8), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            model.wide.weight[49] = math.inf  # such an example counts as zero
        parts = [MicroBatch(np.arange(40), ids[:40]), MicroBatch(np.arange(40, 60), ids[40:])]
        batch = LogicalBatch(engine.recorder, parts, 0)
        touched = batch.contributions().rows
        rows = {"all": None, "touched": touched, "some": touched[::2], "none": touched[:0]}[kept]
        total = ClippedSum(engine.recorder, Survivors(engine.layout, rows), 0.5)
        for recording in batch.recordings():
            total.add(recording)
        assert any(not norms.isfinite().all() for norms in total.example_norms)
        return [total.flat_rows, total.flat_dense, torch.cat(total.example_norms)]

    compiled = step()
    monkeypatch.setattr(kernels, "library", None)
    for found, expected in zip(compiled, step(), strict=True):
        assert found.dtype == expected.dtype
        close = 1e-5 if torch.float32 in (dtype, found.dtype) else 1e-12
        torch.testing.assert_close(found, expected, rtol=close, atol=close)


@needs_the_library
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_types_are_left_to_the_reference(dtype: torch.dtype) -> None:
    assert kernels.serve(torch.zeros(2), torch.zeros(3)) and kernels.serve(torch.zeros(2, dtype=torch.int64))
    assert not kernels.serve(torch.zeros(2, dtype=dtype))
    assert not kernels.serve(torch.zeros(2), torch.zeros(2, dtype=torch.float64)) and not kernels.serve()


def test_selected_rows_of_any_integer_type_are_the_same_rows() -> None:
    norms = []
    for dtype in (torch.int64, torch.int32):
        engine = engine_with(
            Model(), FEST(), losses, KEY, gradient_noise_multiplier=0.0, expected_batch_size=1.0,
            selected=torch.arange(40).to(dtype),
        )  # fmt: skip
        ids = torch.randint(50, (60, 8), generator=torch.Generator().manual_seed(1))
        release, _ = engine.gradient([MicroBatch(np.arange(60), ids)], 0)
        norms.append([float(table.values.norm()) for table in release.tables])
    assert norms[0] == norms[1] and norms[0][0] > 0


def test_sums_narrower_than_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match="narrower than the model's"):
        engine_with(
            Model().double(), DPSGD(), losses, KEY, gradient_noise_multiplier=1.0, expected_batch_size=1.0,
            sum_dtype=torch.float32,
        )  # fmt: skip
