"""Columns of a table of one's own as labels, numbers, keys and units: each value on its own, whatever file it is from.

Equal values give equal rows from every format. Where numbers are wanted, a text is the number that it writes, and true
and false are 1 and 0. A category is a whole number if it is written as one (7, and neither 007 nor 7.0), else text. An
empty text is a missing value.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.bags import Lists
from pipelines.data.compiled import keys_of_texts, standardised
from pipelines.data.hashing import BLANK_KEY, splitmix64, text_key, text_keys

LARGEST = 5.0
"""Standardised numbers are clipped to [-LARGEST, LARGEST]."""

TABLE_HASH = {
    "key": "of a text that is the decimal of a whole number of 64 bits, splitmix64 of this; of another one "
    "h = splitmix64(its length in bytes of UTF-8), then h = splitmix64(h ^ w) for each 8 bytes w, little-endian, the "
    "last ones filled up with zeros; booleans are the texts true and false, dates as 2024-01-31; blank is 2**32",
    "content": "the sum over a line's fields x_0, x_1, … of x_j * (splitmix64(j) | 1), modulo 2**64: the bits of "
    "numeric columns as float64 (blank: 0), the keys of categorical columns and of columns of units; each kind in the "
    "order of the columns' names. The label is none of them: where few rows differ, equal ones would be divided by it",
}
"""What this module does differently from :data:`pipelines.data.hashing.HASH_SPECIFICATION`."""
BAG_HASH = {
    "bag": "the first distinct rows of a list's values; features of bags are counted after the others, in the order of "
    "their names. The content goes on with a field of each: h = splitmix64(number of values), then h = splitmix64(h ^ "
    "key) for each value",
}
"""What :data:`TABLE_HASH` does not say, of tables that have bags."""

_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_COMPARISONS |= {"==": operator.eq, "!=": operator.ne}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_COMPARISON = re.compile(rf"([^<>=!]+?)\s*(>=|<=|==|!=|>|<)\s*({_NUMBER})")
_STANDARD = re.compile(rf"standard\(\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\)")
_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)


class BadValueError(ValueError):
    """A value that cannot be used: ``row`` is its place in the column, from 0, the text says what is wrong with it."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


@dataclass(frozen=True)
class Label:
    """How a label is made: of a column that holds it, or by comparing a column with a number.

    Attributes:
        column: name of the column.
        comparison: ``>``, ``>=``, ``<``, ``<=``, ``==`` or ``!=``; None if the column holds the label.
        number: to compare with.
    """

    column: str
    comparison: str | None = None
    number: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Label:
        """Return the label that ``column`` or ``column > number`` describes.

        Raises:
            UserError: the text is neither.
        """
        text = text.strip()
        if match := _COMPARISON.fullmatch(text):
            return cls(match[1], match[2], float(match[3]))
        if not text or re.search("[<>=!]", text):
            raise UserError(
                f"data.label={text} must be the name of a column, or compare one with a number by >, >=, <, <=, == or "
                "!=, as in 'data.label=\"rating > 3\"'."
            )
        return cls(text)

    def of(self, column: pl.Series) -> NDArray[np.int64]:
        """Return the label of each row, 0 or 1, shape [n].

        Raises:
            BadValueError: a value is missing, or is no label.
        """
        if self.comparison is None and column.dtype == pl.Int64 and not column.null_count():
            whole = column.to_numpy()
            if not (whole & ~1).any():  # nothing but 0 and 1
                return whole
        values = numbers(column, "write a label as 1 or 0, or true or false")
        refuse_first(np.isnan(values), column, "has no value, and every row needs a label: leave such rows out")
        if self.comparison is not None:
            return _COMPARISONS[self.comparison](values, self.number).astype(np.int64)
        cure = f'write one of them, or compare a number, as in data.label="{self.column} > 0"'
        refuse_first((values != 0) & (values != 1), column, f"is {{}}, but a label is 0 or 1, true or false: {cure}")
        return values.astype(np.int64)


@dataclass(frozen=True)
class Transform:
    """What a number becomes: (f(x) - mean) / deviation, at most ``largest`` in size.

    Attributes:
        logarithm: whether f is the sign of x times log(1 + the size of x); else it is x itself.
    """

    logarithm: bool = False
    mean: float = 0.0
    deviation: float = 1.0
    largest: float = np.inf


def transform(name: str, text: str) -> Transform:
    """Return the transform of a numeric column, of values of any shape.

    Args:
        name: the column's name.
        text: ``log1p``, ``standard(MEAN, STD)`` or ``none``.

    Raises:
        UserError: it is none of them.
    """
    if text == "log1p":
        return Transform(logarithm=True)
    if text == "none":
        return Transform()
    match = _STANDARD.fullmatch(text.strip())
    if not match or not 0 < float(match[2]) < np.inf or not np.isfinite(float(match[1])):
        raise UserError(
            f"data.numeric.{name}={text} must be log1p, none or standard(MEAN, STD) with numbers that you know without "
            "looking at the data, STD above 0, as in standard(40, 15)."
        )
    return Transform(mean=float(match[1]), deviation=float(match[2]), largest=LARGEST)


def _signed_log1p(values: NDArray[np.float64]) -> NDArray[np.float64]:
    changed = np.abs(values)
    np.log1p(changed, out=changed)
    return np.copysign(changed, values, out=changed)


def transformed(
    values: NDArray[np.float64], change: Transform, column: pl.Series, out: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return transformed numbers, missing ones as 0, in ``out``, shape [n].

    Raises:
        BadValueError: a number is infinite, or too large for a model.
    """
    source = _signed_log1p(values) if change.logarithm else values
    if standardised(source, change.mean, change.deviation, change.largest, out):
        return out
    with np.errstate(over="ignore", invalid="ignore"):
        out[:] = ((source - change.mean) / change.deviation).clip(-change.largest, change.largest)
    infinite = np.isinf(values) | np.isinf(out)
    refuse_first(infinite, column, "is {}, too large a number: correct it, or leave it empty")
    out[np.isnan(out)] = 0
    return out


def numbers(column: pl.Series, cure: str = "correct it, or leave it empty") -> NDArray[np.float64]:
    """Return the numbers of a column, true as 1 and false as 0, missing ones as NaN, shape [n].

    Raises:
        BadValueError: a text is no number.
    """
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    values = column.cast(pl.Float64, strict=False)
    if values.null_count() > column.null_count():
        words = column.str.to_lowercase().replace_strict({"true": 1.0, "false": 0.0}, default=None)
        values = values.fill_null(words.cast(pl.Float64))
        wrong = values.is_null() & (column.fill_null("") != "")
        refuse_first(wrong.to_numpy(), column, f"is {{}}, which is no number: {cure}")
    return values.fill_null(np.nan).to_numpy()  # ten times as fast as to_numpy of missing values


def keys(column: pl.Series, out: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Return the key of each category (:data:`TABLE_HASH`), shape [n]; in ``out`` if it is given, contiguous."""
    out = np.empty(len(column), np.uint64) if out is None else out
    if column.dtype in _INTEGERS:
        splitmix64(_as_bits(column.cast(pl.Int64)), out)
        if column.null_count():
            out[column.is_null().to_numpy()] = BLANK_KEY
    elif not keys_of_texts(text := column.cast(pl.String), BLANK_KEY, out):
        out[:] = _keys_of_texts(text.fill_null(""))
    return out


def _keys_of_texts(text: pl.Series) -> NDArray[np.uint64]:
    """What :func:`keys_of_texts` is held to, and what runs where there is no compiler."""
    binary = text.cast(pl.Binary)
    offsets = np.zeros(len(text) + 1, np.int64)
    np.cumsum(binary.bin.size().to_numpy(), out=offsets[1:])
    texts = binary.cast(pl.List(pl.UInt8)).explode(empty_as_null=False).to_numpy()
    keys = text_keys(texts, offsets)
    keys[(text == "").to_numpy()] = BLANK_KEY
    whole = _whole_numbers(text)
    keys[whole.is_not_null().to_numpy()] = splitmix64(_as_bits(whole.drop_nulls()))
    return keys


def lists(column: pl.Series, separator: str | None) -> Lists:
    """Return the keys of a column of lists, or of texts whose values a separator parts.

    A missing list is an empty one; a missing value in a list is a category of its own, as in every column.
    """
    texts = column.cast(pl.String) if separator is not None else None
    column = column if texts is None else texts.str.split(str(separator))
    lengths = column.list.len().fill_null(0).cast(pl.Int64)
    if texts is not None:  # an empty text holds no value, rather than one empty one
        lengths = lengths.set(texts.fill_null("") == "", 0)
    return Lists(keys(column.filter(lengths > 0).explode()), lengths.to_numpy())


def identifiers(column: pl.Series) -> NDArray[np.int64]:
    """Return the identifier of each row's unit, shape [n]: a whole number itself, of a text the 64 bits of its BLAKE2b.

    Two texts, of those that nobody made for it, share an identifier with probability 2**-64: any of a million units in
    one of 37 million tables.

    Raises:
        BadValueError: a value is missing.
    """
    text = column.cast(pl.String).fill_null("")
    refuse_first(
        (text == "").to_numpy(),
        column,
        "has no value, and a unit of privacy needs one in every row: write one, or take the column out of data.unit",
    )
    whole = column.cast(pl.Int64) if column.dtype in _INTEGERS else _whole_numbers(text)
    if not whole.null_count():
        return whole.to_numpy()
    texts = text.filter(whole.is_null()).unique()
    hashed = np.array([text_key(one) for one in texts], np.uint64).view(np.int64)
    return whole.fill_null(text.replace_strict(texts, hashed, default=None, return_dtype=pl.Int64)).to_numpy()


def _whole_numbers(text: pl.Series) -> pl.Series:
    """Return the whole numbers of 64 bits that texts are the decimals of, null for others."""
    whole = text.cast(pl.Int64, strict=False)
    if whole.null_count() == len(whole):
        return whole
    return whole.set(whole.cast(pl.String).fill_null("") != text, None)


def _as_bits(whole: pl.Series) -> NDArray[np.uint64]:
    filled = whole.fill_null(0) if whole.null_count() else whole
    return filled.to_numpy().view(np.uint64)


def refuse_first(wrong: NDArray[np.bool_], column: pl.Series, problem: str) -> None:
    """Refuse the first value of a column that is wrong.

    Args:
        wrong: whether each is, shape [n].
        column: the column.
        problem: what is wrong with it, ``{}`` for the value.

    Raises:
        BadValueError: there is one.
    """
    if wrong.any():
        row = int(wrong.argmax())
        value = column[row]
        shown = repr(value) if isinstance(value, str) else str(value)
        raise BadValueError(row, f"{column.name} {problem.replace('{}', shown, 1)}.")
