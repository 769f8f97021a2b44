"""Split SST-2 by sentence, so that no test row is part of a training row: ``python -m pipelines.data.text.sentences
SST-2 FOLDER`` writes the train.tsv and dev.tsv of ``data=sst2_phrases``.

SST-2's train.tsv holds sentences of film reviews and phrases of these sentences, in no order; its dev.tsv holds 872
whole sentences, too few to measure differences of a few thousandths. Here 15% of the sentences of train.tsv are held
out with all their phrases: ten times as many test rows, distributed like the training rows.

Which rows are sentences depends on other rows, so this runs before dpfest reads the data. As with GLUE's own dev.tsv,
the test rows count as public, and the guarantee is for the rows of the train.tsv that this writes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dpfest.errors import UserError
from pipelines.data.hashing import content_uniforms, text_key
from pipelines.system.files import write_atomically

HELD_OUT = 0.15
"""Share of the sentences that are held out."""

_SEED = 0


def split(rows: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split ``rows``, each a text and a label separated by a tab, into training rows and test rows.

    A sentence is a row whose words do not occur in sequence in a longer row. Test rows occur in held-out sentences
    only; training rows occur in none of these. Rows that occur in both kinds of sentences are left out.
    """
    texts = [" ".join(row.partition("\t")[0].split()) for row in rows]
    kept, held_out = set[str](), set[str]()
    for text in sorted(set(texts), key=lambda text: (-len(text.split()), text)):
        if text not in kept and text not in held_out:
            (held_out if _is_held_out(text) else kept).update(_phrases(text))
    training = [row for row, text in zip(rows, texts, strict=True) if text not in held_out]
    test = [row for row, text in zip(rows, texts, strict=True) if text not in kept]
    return training, test


def _is_held_out(sentence: str) -> bool:
    return bool(content_uniforms(np.array([text_key(sentence)], np.uint64), _SEED)[0] < HELD_OUT)


def _phrases(sentence: str) -> set[str]:
    words = sentence.split(" ")
    return {" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}


def write(source: Path, folder: Path) -> None:
    """Write train.tsv and dev.tsv to ``folder`` from the train.tsv of SST-2 in ``source``.

    Raises:
        UserError: there is no such train.tsv, it is not SST-2's, or ``folder`` is ``source``.
    """
    path = source / "train.tsv"
    if folder.resolve() == source.resolve():
        raise UserError(f"{folder} holds SST-2's own train.tsv, which this would replace: name another folder.")
    try:
        header, *rows = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): name the folder of SST-2's train.tsv.") from error
    if header.split("\t") != ["sentence", "label"]:
        raise UserError(f"{path}, line 1: {header[:40]!r}, but SST-2's first line is 'sentence\\tlabel'.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("train.tsv", "dev.tsv"), split(rows), strict=True):
        text = "\n".join([header, *part, ""])
        write_atomically(folder / name, partial(Path.write_text, data=text, encoding="utf-8"))
        print(f"{folder / name}: {len(part):,} rows")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m pipelines.data.text.sentences SST-2 FOLDER")
    try:
        write(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        sys.exit(f"error: {error}")
