"""Files that others wrote end no interpreter and fill no memory."""

from __future__ import annotations

import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.runs.cards import read_cards
from pipelines.system import plain
from pipelines.system.plain import DEEPEST, control_character, json_value, visible, yaml_value


@pytest.mark.parametrize("levels", [DEEPEST + 1, 5_000, 200_000])
def test_deep_files_are_refused_and_end_no_interpreter(levels: int) -> None:
    """In a process of its own: a parser that calls itself for each level ends it."""
    code = (
        "from pipelines.system.plain import json_value, yaml_value\n"
        f"n = {levels}\n"
        "texts = ['[' * n + ']' * n, '- ' * n + '1', '{a: ' * n + '1' + '}' * n]\n"
        "for read, text in ((json_value, texts[0]), *((yaml_value, text) for text in texts)):\n"
        "    try: read(text)\n"
        "    except ValueError as error: print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(plain.__file__).parents[2]
    )
    assert ended.returncode == 0 and ended.stdout.count(f"more than {DEEPEST} levels") == 4, ended


def test_what_is_written_in_plain_words_is_read() -> None:
    nested = "[" * DEEPEST + "]" * DEEPEST
    assert json_value('{"a": [1, {"b": null}]}') == yaml_value("a: [1, {b: null}]") == {"a": [1, {"b": None}]}
    assert json_value(nested) == yaml_value(nested)
    for read, text in ((json_value, "{"), (yaml_value, "a: [1"), (yaml_value, "a: &x [1]\nb: [*x, *x]")):
        with pytest.raises(ValueError):
            read(text)


def test_a_line_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "MOST_CHARACTERS", 1_000)
    path = tmp_path / "cards.jsonl.xz"
    path.write_bytes(lzma.compress(b'{"cards": 1, "made": [' + b" " * 100_000 + b"]}"))
    cards, (damaged,) = read_cards(path)
    assert cards == [] and damaged.line == 1 and "longer than 1,000 characters" in damaged.reason
    with pytest.raises(ValueError, match=r"longer than 1,000 characters"):
        yaml_value("a: " + "b" * 1_000)


def test_control_characters_are_found_and_spelt_out() -> None:
    assert control_character({"a": ["b", {"c": "\x1b[2J"}], "d": "line\nline\ttab"}) == "a.1.c"
    assert control_character({"a\x07": 1}) == r"a\x07"
    assert control_character({"a": [1, None, "é ε"]}) is None
    assert visible("a\x1b[2Jb\x9b") == r"a\x1b[2Jb\x9b"
