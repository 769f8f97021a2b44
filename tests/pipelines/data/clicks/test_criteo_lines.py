"""The fast parser and a plain one say the same of every line, good or bad."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.clicks.criteo_lines import parse_block, parse_line
from pipelines.data.hashing import BLANK_KEY
from pipelines.data.source import BadLineError
from tests.pipelines.data.criteo_text import Fields, reference, some_lines

_counts = st.none() | st.integers(-9, 300) | st.integers(-(2**63), 2**63 - 1)
_lines = st.builds(
    Fields,
    label=st.integers(0, 1),
    integers=st.lists(_counts, min_size=13, max_size=13),
    categories=st.lists(st.none() | st.integers(0, 2**32 - 1), min_size=26, max_size=26),
).map(Fields.line)
_odd_bytes = st.sampled_from(
    [
        b"",
        b"\t",
        b"-",
        b"+",
        b"0",
        b"g",
        b"A",
        b" ",
        b'"',
        b"\r",
        b"\xff",
        b"\xc3\xa9",
        b"\xef\xbb\xbf",
        b"9" * 20,
    ]
)


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """A good line, some of its bytes replaced, removed or added."""
    line = draw(_lines)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(line)))
        stop = min(len(line), start + draw(st.integers(0, 3)))
        line = line[:start] + draw(_odd_bytes) + line[stop:]
    return line


@settings(max_examples=150, deadline=None)
@given(
    st.lists(_lines | _mutated() | st.sampled_from([b"", b"\r", b"\t" * 39, b"\t" * 40]), max_size=6),
    st.booleans(),
)
def test_fast_parser_equals_the_plain_one(lines: list[bytes], windows: bool) -> None:
    ending = b"\r\n" if windows else b"\n"
    parsed = parse_block(b"".join(line + ending for line in lines))
    # A line that ends in CR of its own has it taken for a part of the line ending.
    wanted = {i: row for i, line in enumerate(lines) if (row := reference(line + ending[:-1])) is not None}
    assert parsed.line.tolist() == sorted(wanted)
    assert [place for place, _ in parsed.bad] == [i for i in range(len(lines)) if i not in wanted]
    assert parsed.label.tolist() == [label for label, _, _ in wanted.values()]
    assert parsed.integers.tolist() == [integers for _, integers, _ in wanted.values()]
    keys = [[BLANK_KEY if key is None else key for key in keys] for _, _, keys in wanted.values()]
    assert parsed.keys.tolist() == keys


@pytest.mark.parametrize("fields", [38, 39, 41, 42])
def test_ragged_lines_that_balance_out_are_found(fields: int) -> None:
    """Tabs that a line lacks and another has too many of leave the block's total right."""
    lines = some_lines(8)
    lines[2] = b"\t".join((lines[2].split(b"\t") * 2)[:fields])
    lines[5] = b"\t".join((lines[5].split(b"\t") * 2)[: 80 - fields])
    parsed = parse_block(b"\n".join(lines) + b"\n")
    assert [(place, error.reason) for place, error in parsed.bad] == [
        (2, "wrong number of fields"),
        (5, "wrong number of fields"),
    ]
    assert parsed.line.tolist() == [0, 1, 3, 4, 6, 7]


def test_good_lines_keep_their_values_beside_bad_ones() -> None:
    lines = some_lines(2_000)
    whole = parse_block(b"\n".join(lines) + b"\n")
    lines[700] = b"nonsense"
    lines[1_400] = lines[1_400].replace(b"\t", b"\t+", 1)
    broken = parse_block(b"\n".join(lines) + b"\n")
    kept = np.delete(np.arange(2_000), [700, 1_400])
    assert broken.line.tolist() == kept.tolist()
    assert np.array_equal(broken.integers, whole.integers[kept])
    assert np.array_equal(broken.keys, whole.keys[kept])
    assert np.array_equal(broken.label, whole.label[kept])


def test_a_category_is_the_number_that_its_digits_write_in_either_case() -> None:
    lines = some_lines(200)
    upper = [
        b"\t".join([*line.split(b"\t")[:14], *(field.upper() for field in line.split(b"\t")[14:])]) for line in lines
    ]
    assert upper != lines
    lower, raised = (parse_block(b"\n".join(each) + b"\n") for each in (lines, upper))
    assert np.array_equal(lower.keys, raised.keys)


def test_the_message_says_which_field_and_what_it_held() -> None:
    fields = some_lines(1)[0].split(b"\t")
    fields[20] = b"0123zz67"
    with pytest.raises(BadLineError, match="field 21 is '0123zz67', 8 hexadecimal digits wanted"):
        parse_line(b"\t".join(fields))


@pytest.mark.parametrize(
    ("place", "texts"),
    [
        (0, [b"", b"2", b"01", b"-1", b"1.0", b"true"]),
        (
            4,
            [
                b"-0",
                b"007",
                b"-",
                b"--1",
                b"+1",
                b" 1",
                b"1 ",
                b"1.0",
                b"1e3",
                b"0x1",
                b"1_000",
                b"9" * 20,
                b"0" * 5_000,
            ],
        ),
        (
            15,
            [
                b"ABCDEF01",
                b"-1234567",
                b"+1234567",
                b"0x123456",
                b"1234567",
                b"123456789",
                b" 1234567",
                b"1234_567",
            ],
        ),
        (39, [b"", b"1234567\r", b"12345678\r", b"\r"]),
    ],
)
def test_fields_that_look_like_numbers(place: int, texts: list[bytes]) -> None:
    lines = []
    for text in texts:
        fields = some_lines(1)[0].split(b"\t")
        fields[place] = text
        lines.append(b"\t".join(fields))
    parsed = parse_block(b"".join(line + b"\n" for line in lines))
    assert parsed.line.tolist() == [i for i, line in enumerate(lines) if reference(line) is not None]
    assert len(parsed.line) > 0 or place == 0
