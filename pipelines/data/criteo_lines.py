"""Lines of Criteo's text format to numbers: ``parse_line`` says what is right, ``parse_block`` does it fast.

A line is 40 fields between tabs: a label 0 or 1, 13 counts (decimal integers, negative ones too, or blank)
and 26 categories (8 hexadecimal digits in either case, or blank). Lines may end in CR LF: some tools rewrite
them so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.data.hashing import BLANK_KEY
from pipelines.data.source import CATEGORICAL_FEATURES, NUMERIC_FEATURES

FIELDS = 1 + NUMERIC_FEATURES + CATEGORICAL_FEATURES
_ALPHABET = b"0123456789abcdefABCDEF-\t\n"
_COUNT = re.compile(rb"-?[0-9]+")
_CATEGORY = re.compile(rb"[0-9a-fA-F]{8}")
_INTEGERS = [f"integer_{i}" for i in range(1, NUMERIC_FEATURES + 1)]
_CATEGORIES = [f"category_{i}" for i in range(1, CATEGORICAL_FEATURES + 1)]
_SCHEMA = {name: pl.String for name in ["label", *_INTEGERS, *_CATEGORIES]}


class BadLineError(ValueError):
    """Why a line is no example: ``reason`` is its kind, the text says which field and what it held."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class ParsedLines:
    """The good lines of a block and the bad ones, n and m of them.

    Attributes:
        line: Position of each good line in the block, from 0, rising, shape [n].
        label: 0 or 1, shape [n].
        integers: The counts, blanks as 0, shape [n, 13].
        keys: Keys of the categories, shape [n, 26].
        bad: Position in the block and error of each bad line, rising, m of them.
    """

    line: NDArray[np.int64]
    label: NDArray[np.float32]
    integers: NDArray[np.int64]
    keys: NDArray[np.uint64]
    bad: list[tuple[int, BadLineError]]


def parse_line(line: bytes) -> tuple[int, list[int], list[int]]:
    """Label, 13 counts (blank is 0) and 26 category keys of one line, given without its line ending.

    Raises:
        BadLineError: The line is not in the format.
    """
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLineError("invalid UTF-8", f"invalid UTF-8 at byte {error.start + 1} of the line") from error
    fields = line.split(b"\t")
    if len(fields) != FIELDS:
        raise BadLineError("wrong number of fields", f"{len(fields)} fields between tabs, {FIELDS} wanted")
    if fields[0] not in (b"0", b"1"):
        raise BadLineError("label neither 0 nor 1", f"label {_shown(fields[0])}, 0 or 1 wanted")
    integers = [_count(field, place) for place, field in enumerate(fields[1 : 1 + NUMERIC_FEATURES], 2)]
    keys = [
        _key(field, place) for place, field in enumerate(fields[1 + NUMERIC_FEATURES :], 2 + NUMERIC_FEATURES)
    ]
    return int(fields[0]), integers, keys


def _count(field: bytes, place: int) -> int:
    if not field:
        return 0
    digits = field.lstrip(b"-").lstrip(b"0") or b"0"
    # The length comes first: Python refuses to read digits by the thousand.
    if _COUNT.fullmatch(field) and len(digits) <= 19:
        value = -int(digits) if field.startswith(b"-") else int(digits)
        if -(2**63) <= value < 2**63:
            return value
    raise BadLineError("count not a 64-bit integer", f"field {place} is {_shown(field)}, an integer wanted")


def _key(field: bytes, place: int) -> int:
    if not field:
        return BLANK_KEY
    if not _CATEGORY.fullmatch(field):
        wanted = "8 hexadecimal digits wanted"
        raise BadLineError("category not 8 hexadecimal digits", f"field {place} is {_shown(field)}, {wanted}")
    return int(field, 16)


def _shown(field: bytes) -> str:
    text = field.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "…")


def parse_block(block: bytes) -> ParsedLines:
    """Parse whole lines at once: exactly what ``parse_line`` says of each, many times faster.

    Polars reads the lines that are surely 40 fields of plain characters; whatever it or the checks find odd
    is left to ``parse_line``, line by line.
    """
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    lines = block.count(b"\n")
    plain = not block.translate(None, _ALPHABET)
    frame = _read_frame(block, lines) if plain and block.count(b"\t") == lines * (FIELDS - 1) else None
    line = np.arange(lines)
    odd = line[:0]
    if frame is None:
        split = block.split(b"\n")[:-1]
        regular = [text.count(b"\t") == FIELDS - 1 and not text.translate(None, _ALPHABET) for text in split]
        line, odd = np.flatnonzero(regular), np.flatnonzero(~np.array(regular))
        frame = _read_frame(b"".join(split[i] + b"\n" for i in line), len(line))
        if frame is None:
            raise AssertionError("Polars does not find 40 fields in lines that hold 39 tabs")
    good = frame["good"].to_numpy()
    parsed = ParsedLines(
        line=line,
        label=frame["label"].to_numpy(),
        integers=frame.select(_INTEGERS).to_numpy(),
        keys=frame.select(_CATEGORIES).to_numpy(),
        bad=[],
    )
    if len(odd) == 0 and good.all():
        return parsed
    return _mend(parsed, good, np.sort(np.concatenate([odd, line[~good]])), block.split(b"\n"))


def _read_frame(lines: bytes, count: int) -> pl.DataFrame | None:
    """``count`` lines as columns, ``good`` telling which are surely right; None where they do not fit."""
    if count == 0:
        return _typed(pl.DataFrame(schema=_SCHEMA))
    try:
        frame = pl.read_csv(lines, separator="\t", has_header=False, quote_char=None, schema=_SCHEMA)
    except (pl.exceptions.ComputeError, pl.exceptions.SchemaError):
        return None
    return _typed(frame) if frame.height == count else None


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    integers = {name: pl.col(name).cast(pl.Int64, strict=False) for name in _INTEGERS}
    keys = {name: pl.col(name).str.to_integer(base=16, dtype=pl.Int64, strict=False) for name in _CATEGORIES}
    good = [pl.col("label").is_in(["0", "1"]).fill_null(False)]
    good += [pl.col(name).is_null() | value.is_not_null() for name, value in integers.items()]
    # The sign: "-1234567" is 8 characters that read as a hexadecimal number, too.
    good += [
        pl.col(name).is_null() | ((pl.col(name).str.len_bytes() == 8) & (value >= 0)).fill_null(False)
        for name, value in keys.items()
    ]
    return frame.select(
        pl.all_horizontal(good).alias("good"),
        (pl.col("label") == "1").fill_null(False).cast(pl.Float32),
        *(value.fill_null(0).alias(name) for name, value in integers.items()),
        *(
            value.fill_null(BLANK_KEY).cast(pl.UInt64, strict=False).alias(name)
            for name, value in keys.items()
        ),
    )


def _mend(
    parsed: ParsedLines, good: NDArray[np.bool_], doubtful: NDArray[np.int64], text: list[bytes]
) -> ParsedLines:
    """The good rows of ``parsed``, and what ``parse_line`` says of the doubtful lines, in file order."""
    mended: list[tuple[int, int, list[int], list[int]]] = []
    bad: list[tuple[int, BadLineError]] = []
    for place in doubtful.tolist():
        try:
            mended.append((place, *parse_line(text[place])))
        except BadLineError as error:
            bad.append((place, error))
    line = np.concatenate([parsed.line[good], np.array([row[0] for row in mended], dtype=np.int64)])
    order = np.argsort(line)

    def merged(fast: NDArray[np.generic], slow: list[int] | list[list[int]]) -> NDArray[np.generic]:
        added = np.array(slow, dtype=fast.dtype).reshape(len(mended), *fast.shape[1:])
        return np.concatenate([fast[good], added])[order]

    return ParsedLines(
        line=line[order],
        label=merged(parsed.label, [row[1] for row in mended]),  # type: ignore[arg-type]
        integers=merged(parsed.integers, [row[2] for row in mended]),  # type: ignore[arg-type]
        keys=merged(parsed.keys, [row[3] for row in mended]),  # type: ignore[arg-type]
        bad=bad,
    )
