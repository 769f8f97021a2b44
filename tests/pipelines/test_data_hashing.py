"""The hash is a promise to every dataset already made: it must never change."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.data.hashing import BLANK_KEY, bucket, row_uniforms, splitmix64


def _splitmix64(x: int) -> int:
    mask = 2**64 - 1
    w = (x + 0x9E3779B97F4A7C15) & mask
    y = ((w ^ (w >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((y ^ (y >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_splitmix64_gives_the_published_values() -> None:
    # The first output of the reference implementation seeded with 0 is 0xE220A8397B1DCDAF.
    mixed = splitmix64(np.array([0, 1, 2**64 - 1], dtype=np.uint64))
    assert [hex(value) for value in mixed.tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x910a2dec89025cc1",
        "0xe4d971771b652c20",
    ]


@pytest.mark.parametrize(
    ("feature", "size", "rows"),
    [
        (0, 1_472, [1071, 348, 546, 1355]),
        (2, 82_741, [66249, 12386, 49986, 78591]),
        (25, 12_934, [517, 10935, 727, 10819]),
    ],
)
def test_buckets_are_pinned(feature: int, size: int, rows: list[int]) -> None:
    keys = [0, 0x68FD1E64, 0xFFFFFFFF, BLANK_KEY]
    assert bucket(np.array(keys, dtype=np.uint64), feature, size).tolist() == rows
    assert [_splitmix64(key ^ _splitmix64(feature)) % size for key in keys] == rows


def test_row_uniforms_are_pinned_and_differ_by_file_and_seed() -> None:
    rows = np.arange(3, dtype=np.uint64)
    assert row_uniforms(rows, 0, 0).tolist() == [0.13870941014555427, 0.18436667429957676, 0.6974532717895354]
    assert row_uniforms(rows[:2], 1, 7).tolist() == [0.43775600474440823, 0.7901067743608727]


def test_row_uniforms_are_uniform() -> None:
    # Kolmogorov-Smirnov at a false-alarm rate of 1e-3 (fixed rows, so it passes always or never).
    values = np.sort(row_uniforms(np.arange(100_000, dtype=np.uint64), 0, 3))
    distance = np.abs(values - np.arange(1, 100_001) / 100_000).max()
    assert distance < 1.95 / np.sqrt(100_000)
    assert values[0] >= 0 and values[-1] < 1
