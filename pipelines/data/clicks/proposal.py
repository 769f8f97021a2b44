"""A first configuration of a table of one's own, guessed from its columns' types and a sample of its rows.

What is guessed from rows is no public statement: a user must be able to defend each number without them. So a proposal
rounds coarsely (sizes of tables to powers of two, means and deviations to one digit), says what it saw, and is a file
to read and correct.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from dpfest.errors import UserError

LABEL, CATEGORICAL, NUMERIC, OUT = "label", "categorical", "numeric", "left out"

_LABELS = re.compile(r"(?:is_?)?(?:click(?:ed|s)?|label|target|y|convert(?:ed)?|conversion|purchased?|bought|response)")
_IDENTIFIES = re.compile(r"(?:^|[_ .-])(?:id|ids|code|zip|zipcode|postcode|sku|isbn|hash|type|hour|weekday|month|dow)$")
_UNITS = re.compile(
    r"(?:user|customer|client|person|household|member|account|visitor|patient|buyer|reader)(?:[_ -]?id)?"
)
_RATING = re.compile(r"(?:rating|stars|score)s?")
_TEXTS = (pl.String, pl.Categorical, pl.Enum)
_READ = (*_TEXTS, pl.Boolean)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}$")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_FEW = 20
"""Whole numbers with at most so many values are categories, unless they look like counts; or ratings."""
_SMALL, _SPARE = 256, 4
"""Tables of at most so many values have so many rows for each, or values would often share one."""
_LONG = 40.0
"""Texts with more characters than this, in the mean, are written by people."""
_UNIQUE = 100
"""Rows from which on a column without any repeated value identifies rows."""


@dataclass(frozen=True)
class Choice:
    """What is proposed for one column.

    Attributes:
        column: its name.
        type: its type.
        role: label, categorical, numeric or left out.
        setting: what the configuration says of it: the label's expression, a table's rows or a transform.
        why: what speaks for it, in a few words.
        unit: whether it may be the unit of privacy.
    """

    column: str
    type: str
    role: str
    setting: str = ""
    why: str = ""
    unit: bool = False


@dataclass(frozen=True)
class Proposal:
    """What is proposed for a table.

    Attributes:
        choices: one for each column, in the order of the file.
        sampled: rows of the sample.
        rows: rows of the file.
    """

    choices: tuple[Choice, ...]
    sampled: int
    rows: int

    def of(self, role: str) -> list[Choice]:
        """Return the choices of one role."""
        return [choice for choice in self.choices if choice.role == role]

    @property
    def label(self) -> str:
        return self.of(LABEL)[0].setting

    @property
    def units(self) -> list[str]:
        return [choice.column for choice in self.choices if choice.unit]


def propose(sample: pl.DataFrame, rows: int, label: str | None = None, typed: bool = True) -> Proposal:
    """Propose what each column of a table is.

    Args:
        sample: some of its rows, at least one.
        rows: number of all of its rows.
        label: the column of labels, or a comparison such as ``rating > 3``; None to guess.
        typed: False if the columns are texts only because the file is CSV or TSV.

    Raises:
        UserError: no column, or more than one, could be the label; or none remains to be a category.
    """
    columns = [column if typed else _parsed(column) for column in sample.get_columns()]
    of_label = label or _label(columns)
    named = re.split(r"[<>=!]", of_label)[0].strip()
    if named not in sample.columns:
        raise UserError(f"--label names the column {named}, and the table has {', '.join(sample.columns)}.")
    whole = sample.height == rows
    choices = []
    for column in columns:
        if column.name == named:
            if of_label == named and not _is_binary(column, both=False):  # of a sample, maybe
                raise UserError(
                    f"The label {named} holds {_held(column)}: a label is 1 or 0, or true or false, in every row, and "
                    "both occur. Write words as 1 and 0, leave out rows without a label, or compare a number, as in "
                    '--label "rating > 3".'
                )
            why = "as you said" if label else "0 or 1 in every row" if of_label == named else "a rating"
            choices.append(Choice(column.name, _type(column), LABEL, of_label, why))
        else:
            choices.append(_feature(column, whole))
    if not any(choice.role == CATEGORICAL for choice in choices):
        raise UserError(
            "No column looks like a category, and an embedding table needs one: write conf/data/NAME.yaml by hand, "
            "with categorical: {COLUMN: ROWS}."
        )
    return Proposal(tuple(choices), sample.height, rows)


def _label(columns: Sequence[pl.Series]) -> str:
    """Return the label that a table seems to have."""
    binary = [column for column in columns if _is_binary(column)]
    named = [column for column in columns if _LABELS.fullmatch(column.name.lower())]
    likely = [column for column in named if _is_binary(column)] or ([] if named else binary)
    if len(likely) == 1:
        return likely[0].name
    if len(likely) > 1:
        names = ", ".join(column.name for column in likely)
        raise UserError(f"Several columns could be the label ({names}): choose one with --label.")
    ratings = [one for one in columns if _RATING.fullmatch(one.name.lower()) and one.dtype.is_integer()]
    if len(ratings) == 1 and ratings[0].n_unique() <= _FEW and not named:
        middle = (_number(ratings[0].min()) + _number(ratings[0].max())) / 2
        return f"{ratings[0].name} > {middle:g}"
    held = "; ".join(f"{column.name} holds {_held(column)}" for column in named)
    raise UserError(
        "No column holds 0 and 1, or true and false, in every row"
        + (f" ({held}: leave out rows without a label, and write words as 1 and 0)" if named else "")
        + ': name the label with --label, as in --label clicked or --label "rating > 3".'
    )


def _is_binary(column: pl.Series, both: bool = True) -> bool:
    if column.null_count():
        return False
    if column.dtype == pl.Boolean:
        return True
    if not (column.dtype == pl.String or column.dtype.is_numeric()):
        return False
    values, binary = set(column.unique()), {"0", "1"} if column.dtype == pl.String else {0, 1}
    return values == binary or (values < binary and not both)


def _held(column: pl.Series) -> str:
    """Say what a column holds, in a few words."""
    values = column.drop_nulls().unique(maintain_order=True)
    few = ", ".join(map(str, values.sort())) if len(values) <= 3 else f"{len(values):,} values"
    return " and ".join([few or "no value"] + [f"{column.null_count():,} missing ones"] * bool(column.null_count()))


def _feature(column: pl.Series, whole: bool) -> Choice:
    """Propose what a column other than the label is; ``whole`` says that the sample is all of the table."""
    name, type_ = column.name, _type(column)
    held = column.drop_nulls()
    if isinstance(column.dtype, pl.List) and (column.dtype.inner.is_integer() or column.dtype.inner == pl.String):
        return _bag(column, held, whole)
    if column.dtype.is_nested():
        return Choice(name, type_, OUT, why="neither a value nor a list of texts or whole numbers")
    if column.dtype in (pl.Datetime, pl.Time, pl.Duration):
        return Choice(name, type_, OUT, why="a time: write its hour, weekday or month as a column of its own")
    if column.dtype == pl.Date:
        return Choice(name, type_, OUT, why="a date, new every day: write its weekday or month as a column of its own")
    if not (column.dtype.is_numeric() or column.dtype in _READ):
        return Choice(name, type_, OUT, why="neither text, a number nor a boolean")
    distinct = held.n_unique()
    if distinct < 2:
        return Choice(name, type_, OUT, why="one value in all rows seen")
    lower = name.lower()
    unit = bool(_UNITS.fullmatch(lower)) and not column.null_count() and not column.dtype.is_float()
    if distinct == len(held) >= _UNIQUE and not column.dtype.is_float() and not (unit and not whole):
        return Choice(name, type_, OUT, why="another value in every row: it identifies rows")
    text = column.dtype in _TEXTS
    if text and (separator := _separator(texts := held.cast(pl.String))):
        return _bag(column, texts.str.split(separator), whole, separator)
    if text and _number(held.cast(pl.String).str.len_chars().mean()) > _LONG:
        return Choice(name, type_, OUT, why="long texts: written by people")
    if text or column.dtype == pl.Boolean or unit or _IDENTIFIES.search(lower):
        if column.dtype.is_float():
            return Choice(name, type_, OUT, why="named as a category, and held as floats: write whole numbers")
        return _category(column, held, distinct, whole, unit)
    if column.dtype.is_integer() and distinct <= _FEW and _number(held.min()) > 0:
        return _category(column, held, distinct, whole, unit)
    setting, why = _transform(held.cast(pl.Float64))
    return Choice(name, type_, NUMERIC, setting, why + ", unless its numbers are names" * column.dtype.is_integer())


def _separator(texts: pl.Series) -> str | None:
    """Return what parts most texts into values of which there are fewer than texts; None if nothing does."""
    for separator in "|;":
        if 2 * int(texts.str.contains(separator, literal=True).sum()) > len(texts):
            return separator if texts.str.split(separator).explode().n_unique() < texts.n_unique() else None
    return None


def _bag(column: pl.Series, held: pl.Series, whole: bool, separator: str = "") -> Choice:
    """Propose the rows of a bag's table, and how many of a list count: as many as nine lists of ten have."""
    values = held.explode().drop_nulls()
    most = 1 << math.ceil(math.log2(max(1.0, _number(held.list.n_unique().quantile(0.9)))))
    why = f"lists of {values.n_unique():,} values, most of them of {most} or fewer"
    parted = f', separator: "{separator}"' if separator else ""
    setting = f"{{rows: {_rows(values, whole)}, most: {most}{parted}}}"
    return Choice(column.name, _type(column), CATEGORICAL, setting, why)


def _category(column: pl.Series, held: pl.Series, distinct: int, whole: bool, unit: bool) -> Choice:
    return Choice(column.name, _type(column), CATEGORICAL, str(_rows(held, whole)), f"{distinct:,} values seen", unit)


def _rows(values: pl.Series, whole: bool) -> int:
    """Propose a table's rows, as a power of two: the values seen and, in a part of the rows, as many again as were seen
    once; more if they are few."""
    distinct = values.n_unique() + (0 if whole else int(values.unique_counts().eq(1).sum()))
    return 1 << max(1, math.ceil(math.log2(max(1, distinct * (_SPARE if distinct <= _SMALL else 1)))))


def _transform(held: pl.Series) -> tuple[str, str]:
    """Propose the transform of a column of numbers, and say why."""
    finite = held.filter(held.is_finite())
    low, high, middle = (_number(value) for value in (finite.min(), finite.max(), finite.median()))
    mean, deviation = _number(finite.mean()), _number(finite.std())
    if low >= -1 and high <= 1:
        return "none", "within -1 and 1"
    if low >= 0 and high > 10 * max(middle, 1.0):
        return "log1p", f"0 or more, with a long tail (up to {high:,.4g})"
    step = _one_digit(deviation)
    centre = round(mean / step) * step
    return f"standard({centre:g}, {step:g})", f"about {centre:g} ± {step:g}"


def _one_digit(number: float) -> float:
    """Round a positive number to one significant digit."""
    return float(f"{number:.0e}") if number > 0 else 1.0


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _parsed(column: pl.Series) -> pl.Series:
    """Return a column of texts as what all of them write: whole numbers, numbers, true and false, times, dates, or
    texts."""
    column = column.replace("", None)
    written = column.drop_nulls()
    first = str(written.first())
    if written.is_in(["true", "false"]).all() and len(written):
        return column == "true"
    whole = written.cast(pl.Int64, strict=False)
    if len(written) and not whole.null_count():  # 007 is a text
        return column.cast(pl.Int64) if (whole.cast(pl.String) == written).all() else column
    if len(written) and not written.cast(pl.Float64, strict=False).null_count():
        return column.cast(pl.Float64)
    for pattern, dtype in ((_DATE, pl.Date), (_TIME, pl.Datetime("us"))):
        if pattern.match(first):
            read = column.str.strptime(dtype, strict=False)
            return column if read.null_count() > column.null_count() else read
    return column


def _type(column: pl.Series) -> str:
    return str(column.dtype)


def yaml(proposal: Proposal, name: str, path: str) -> str:
    """Return conf/data/NAME.yaml: the proposal as a table's configuration, with a comment where it is a guess."""
    lines = [
        f"# A first guess by `dpfest init`, from {proposal.sampled:,} of {proposal.rows:,} rows. What stands here is",
        "# published with each run, and no epsilon covers it: put numbers here that you would defend without the data.",
        "defaults: [table, _self_]",
        f"name: {name}",
        f"path: {_scalar(path)}",
        f"label: {_scalar(proposal.label)}",
        "categorical:  # column: rows of its embedding table; of a list also the most values that count",
        *_entries(proposal.of(CATEGORICAL)),
    ]
    if numeric := proposal.of(NUMERIC):
        lines += ["numeric:  # column: log1p, none or standard(MEAN, STD)", *_entries(numeric)]
    if proposal.units:
        lines += [
            "# privacy.unit may name these: then epsilon covers all rows with one value, and not one row alone.",
            f"unit: [{', '.join(map(_scalar, proposal.units))}]",
        ]
    if left := proposal.of(OUT):
        lines += ["# Left out:", *(f"#   {choice.column}: {choice.why}" for choice in left)]
    return "\n".join(lines) + "\n"


def _entries(choices: Sequence[Choice]) -> list[str]:
    shown = [f"  {_scalar(choice.column)}: {_value(choice.setting)}" for choice in choices]
    width = max(map(len, shown))
    return [f"{text:{width}}  # {choice.why}" for text, choice in zip(shown, choices, strict=True)]


def _value(setting: str) -> str:
    return setting if setting.startswith("{") else _scalar(setting)


def _scalar(text: str) -> str:
    """Return a text as YAML, quoted where it would be read as something else."""
    plain = re.fullmatch(r"[A-Za-z_][\w ./*-]*\w|\d+|[A-Za-z]", text) and not _MEANS_MORE.fullmatch(text)
    return text if plain else "'" + text.replace("'", "''") + "'"


_MEANS_MORE = re.compile(r"y|n|yes|no|on|off|true|false|null", re.IGNORECASE)

MEANS: Mapping[str, str] = {
    LABEL: "what the model predicts; epsilon covers it",
    CATEGORICAL: "epsilon covers the values; the rows of a table are your public statement",
    NUMERIC: "epsilon covers the values; a transform's constants are your public statement",
    OUT: "not read",
}
"""What each role means for the guarantee."""
