"""Split SST-2 by sentence, so that no test row is part of a training row: ``python -m pipelines.data.text.sentences
SST-2 FOLDER`` writes the files of ``data=sst2_phrases`` and ``data=sst2_halves``.

SST-2's train.tsv holds sentences of film reviews and phrases of these sentences, in no order; its dev.tsv holds 872
whole sentences. Here 15% or, for sst2_halves, half of the sentences of train.tsv are held out with all their phrases:
9,518 test rows of 1,067 sentences, or 32,364 of 3,493. They differ from the training rows: rows that occur in both
kinds of sentences are left out (2,060 or 3,173, mostly single words), and a held-out sentence may have words that no
training row has.

Which rows are sentences depends on other rows, so this runs before dpfest reads the data, and no guarantee covers it.
As with GLUE's own dev.tsv, the test rows count as public. The guarantee is for the rows of the training file that
``data.validation`` leaves for training, the split being fixed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dpfest.errors import UserError
from pipelines.data.hashing import content_uniforms, text_key
from pipelines.system.files import write_atomically

HELD_OUT = {"phrases": 0.15, "halves": 0.5}
"""Share of the sentences that are held out, by split. Sentences held out by the first are held out by the second."""

ROWS = 67_349
"""Rows of SST-2's train.tsv."""

_HEADER = "sentence\tlabel"
_SEED = 0


def split_files(name: str) -> dict[str, str]:
    """Return the names of a split's files. No official file has these: neither kind of folder passes for the other."""
    return {part: f"{name}_{part}.tsv" for part in ("train", "test")}


def split(rows: Sequence[str], share: float) -> tuple[list[str], list[str]]:
    """Split ``rows``, each a text and a label separated by a tab, into training rows and test rows.

    A sentence is a row whose words do not occur in sequence in a longer row. Test rows occur in held-out sentences
    only; training rows occur in none of these. Rows that occur in both kinds of sentences are left out.

    Args:
        rows: in any order.
        share: of the sentences that are held out.
    """
    texts = [" ".join(row.partition("\t")[0].split()) for row in rows]
    kept, held_out = set[str](), set[str]()
    for text in sorted(set(texts), key=lambda text: (-len(text.split()), text)):
        if text not in kept and text not in held_out:
            (held_out if _is_held_out(text, share) else kept).update(_phrases(text))
    training = [row for row, text in zip(rows, texts, strict=True) if text not in held_out]
    test = [row for row, text in zip(rows, texts, strict=True) if text not in kept]
    return training, test


def _is_held_out(sentence: str, share: float) -> bool:
    return bool(content_uniforms(np.array([text_key(sentence)], np.uint64), _SEED)[0] < share)


def _phrases(sentence: str) -> set[str]:
    words = sentence.split(" ")
    return {" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}


def write(source: Path, folder: Path) -> None:
    """Write the files of both splits to ``folder`` from the train.tsv of SST-2 in ``source``.

    Raises:
        UserError: there is no such train.tsv, it is not SST-2's, or ``folder`` cannot be written.
    """
    path = source / "train.tsv"
    rows = _read(path)
    if len(rows) != ROWS:
        print(f"{path} has {len(rows):,} rows, SST-2's {ROWS:,}: is it complete?", file=sys.stderr)
    written: dict[str, list[str]] = {}
    for name, share in HELD_OUT.items():
        parts = dict(zip(("train", "test"), split(rows, share), strict=True))
        if empty := [part for part, chosen in parts.items() if not chosen]:
            raise UserError(f"{path} has too few sentences to split: no row would be left to {empty[0]} on.")
        written |= {file: parts[part] for part, file in split_files(name).items()}
    for file, chosen in written.items():
        text = "\n".join([_HEADER, *chosen, ""])
        try:
            write_atomically(folder / file, partial(Path.write_text, data=text, encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{folder / file} cannot be written ({error.strerror}): name another folder.") from error
        print(f"{folder / file}: {len(chosen):,} rows")


def _read(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): name the folder of SST-2's train.tsv.") from error
    header, *rows = (line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
    if header != _HEADER:
        raise UserError(f"{path}, line 1: {header[:40]!r}, but SST-2's first line is {_HEADER!r}.")
    for number, row in enumerate(rows, start=2):
        fields = row.split("\t")
        if len(fields) != 2 or not fields[0].strip() or fields[1] not in ("0", "1"):
            raise UserError(f"{path}, line {number}: {row[:40]!r} is not a text, a tab and a label, 0 or 1.")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Split SST-2 by sentence: write the files of data=sst2_phrases and data=sst2_halves."
    )
    parser.add_argument("source", type=Path, metavar="SST-2", help="folder of SST-2's train.tsv, which is only read")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to write to")
    arguments = parser.parse_args()
    try:
        write(arguments.source, arguments.folder)
    except UserError as error:
        sys.exit(f"error: {error}")
