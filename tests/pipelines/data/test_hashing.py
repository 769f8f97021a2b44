"""The hash is a promise to every dataset already made: it must never change."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from pipelines.data import compiled
from pipelines.data.clicks.table_columns import BadValueError, Transform, keys, transform, transformed
from pipelines.data.hashing import BLANK_KEY, bucket, content_uniforms, line_content, splitmix64, text_key, text_keys


def mixed(x: int) -> int:
    """SplitMix64."""
    mask = 2**64 - 1
    w = (x + 0x9E3779B97F4A7C15) & mask
    y = ((w ^ (w >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((y ^ (y >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def mixed_text(text: bytes) -> int:
    """The key of a text by SplitMix64."""
    key = mixed(len(text))
    for place in range(0, len(text), 8):
        key = mixed(key ^ int.from_bytes(text[place : place + 8], "little"))
    return key


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
    assert [mixed(key ^ mixed(feature)) % size for key in keys] == rows


def _content(*fields: int) -> int:
    return sum(field * (mixed(place) | 1) for place, field in enumerate(fields)) % 2**64


def test_the_content_of_a_line_is_as_specified() -> None:
    labels, counts = np.array([1, 0, 1]), np.array([-3, 0, 2**40])
    keys = np.array([0x68FD1E64, BLANK_KEY, text_key("JFK")], np.uint64)
    content = line_content([labels, counts, keys])
    assert content.tolist() == [_content(*map(int, line)) for line in zip(labels, counts, keys, strict=True)]
    assert text_key("JFK") == 0xBCFC05B1A292B502
    places = [(mixed(line ^ mixed(seed)) >> 11) / 2**53 for seed in (0, 7) for line in map(int, content.tolist())]
    assert [*content_uniforms(content, 0), *content_uniforms(content, 7)] == places


def test_the_keys_of_texts_are_as_specified_and_pinned() -> None:
    texts = [b"", b"JFK", b"JFK\0", "Zürich".encode(), b"12345678", b"123456789", bytes(range(256)) * 3, b"", b"a"]
    keys = text_keys(np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)]))
    assert keys.tolist() == [mixed_text(text) for text in texts]
    assert len(set(keys.tolist())) == len(texts) - 1
    assert len(text_keys(np.empty(0, np.uint8), np.zeros(1, np.int64))) == 0


def test_a_field_that_differs_or_stands_elsewhere_is_other_content() -> None:
    # 50,000 lines that differ in one field by little, or by the order of fields: equal by chance for 1 seed in 10**10.
    small = np.arange(10_000)
    none, lines = np.zeros_like(small), []
    for place in range(5):
        lines.append(line_content([small + 1 if field == place else none for field in range(5)]))
    assert len(np.unique(np.concatenate(lines))) == 50_000


def test_the_numbers_of_lines_are_uniform() -> None:
    # Kolmogorov-Smirnov at a false-alarm rate of 1e-3 (fixed lines, so it passes always or never).
    numbers = np.arange(100_000)
    values = np.sort(content_uniforms(line_content([numbers % 2, numbers // 2]), 3))
    distance = np.abs(values - np.arange(1, 100_001) / 100_000).max()
    assert distance < 1.95 / np.sqrt(100_000)
    assert values[0] >= 0 and values[-1] < 1


TEXTS = ["", None, "0", "-0", "-1", "007", "7.0", "+5", "-", " 5", "5 ", "1e3", "a" * 12, "b" * 13, "c" * 8, "é" * 9]
TEXTS += [str(value) for value in (2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 10**20)]
TEXTS += ["abcdefghijklmnopqrstuvwxyz0123456789"[:length] for length in range(1, 36)]
COLUMNS = {
    "texts": pl.Series(TEXTS),
    "a slice": pl.Series(TEXTS * 3)[5:-7],
    "several chunks": pl.concat([pl.Series(TEXTS), pl.Series(["user-1", None]), pl.Series(TEXTS)[3:9]], rechunk=False),
    "none": pl.Series([], dtype=pl.String),
    "missing": pl.Series([None, None], dtype=pl.String),
    "categories": pl.Series(TEXTS, dtype=pl.Categorical),
    "whole numbers": pl.Series([3, None, -(2**63), 2**63 - 1]),
    "booleans": pl.Series([True, None, False]),
}


@pytest.mark.skipif(compiled._library is None, reason="nothing was compiled")
@pytest.mark.parametrize("name", COLUMNS)
def test_compiled_keys_have_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = keys(COLUMNS[name])
    monkeypatch.setattr(compiled, "_library", None)
    assert loops.tolist() == keys(COLUMNS[name]).tolist()


@pytest.mark.skipif(compiled._library is None, reason="nothing was compiled")
def test_compiled_contents_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    real = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, 5e-324, *random.normal(size=94)])
    whole = random.integers(-(2**63), 2**63 - 1, 100)
    fields = [whole, real, whole.view(np.uint64), np.repeat(whole, 2)[::2]]
    loops = line_content(fields)
    monkeypatch.setattr(compiled, "_library", None)
    assert loops.tolist() == line_content(fields).tolist()
    with pytest.raises(ValueError):
        line_content([np.zeros(100, np.int32)])
    bits = [int(word) for word in np.where(np.isnan(real) | (real == 0), 0, real).view(np.uint64)]
    assert loops[5] == _content(int(whole[5]), bits[5], int(whole[5]), int(whole[5]))


@pytest.mark.skipif(compiled._library is None, reason="nothing was compiled")
@pytest.mark.parametrize("change", [transform("x", text) for text in ("log1p", "none", "standard(40, 15)")])
def test_compiled_numbers_have_the_same_bits(change: Transform, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    real = np.array([0.0, -0.0, np.nan, -np.nan, 5e-324, 3e38, -3e38, 40.0, *random.normal(0, 100, size=993)])
    column = pl.Series("x", real)
    loops = transformed(real, change, column, np.empty(len(real), np.float32))
    for wrong in (np.inf, -np.inf, 1e300) if change == Transform() else (np.inf, -np.inf):
        with_it = np.append(real, wrong)
        with pytest.raises(BadValueError, match=r"^x is .*, too large a number"):
            transformed(with_it, change, pl.Series("x", with_it), np.empty(len(with_it), np.float32))
    monkeypatch.setattr(compiled, "_library", None)
    assert loops.tobytes() == transformed(real, change, column, np.empty(len(real), np.float32)).tobytes()
    assert np.isfinite(loops).all()
