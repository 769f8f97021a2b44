"""Write a dataset of tokenized texts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.dataset import SCHEMA, SPLITS, sealed_text
from pipelines.data.hashing import content_uniforms, line_content, text_key
from pipelines.data.rows import fields_of, text_record
from pipelines.data.source import SCRATCH, Progress, RefusedRows
from pipelines.data.text.file import LabelledText
from pipelines.data.text.tokens import TextTokenizer
from pipelines.system.files import HashedFile, write_array

if TYPE_CHECKING:
    from pipelines.data.text.config import TextConfig

PRIOR_FILE = "tokenizer_prior.npy"
"""The tokens ranked by the tokenizer alone: see :meth:`TextTokenizer.prior`."""

_BLOCK = 1000  # texts that are tokenized together


def write_text_dataset(folder: Path, data: TextConfig, made_with: dict[str, Any], progress: Progress) -> None:
    """Write the texts that ``data`` describes into ``folder``.

    Args:
        folder: An empty folder.
        data: Configuration of the texts.
        made_with: The data configuration to record in dataset.json.
        progress: Receives the progress of reading.

    Raises:
        UserError: a file is missing or malformed, a split has no rows, or the tokenizer cannot be used.
    """
    tokenizer, files = data.tokens(), data.files(folder / SCRATCH)
    record = text_record(data.max_length)
    tallies = {part: _Tally(data.columns.labels) for part in SPLITS}
    with contextlib.ExitStack() as stack:
        streams = {part: HashedFile(stack.enter_context((folder / f"{part}.rows").open("wb"))) for part in SPLITS}
        for source, file in files.items():
            examples = file.examples(progress)
            while block := list(itertools.islice(examples, _BLOCK)):
                records, cut = _records(block, tokenizer, data.max_length)
                whole = source != "train" or "validation" in files
                parts = np.full(len(block), source) if whole else _parts(block, data)
                for part in SPLITS:
                    mine = parts == part
                    streams[part].write(records[mine].tobytes())
                    tallies[part].add(records[mine], cut[mine])
    rejected = RefusedRows()
    for file in files.values():
        rejected.merge(file.rejected)
    for part, what in (("train", "train on"), ("test", "report on")):
        if not tallies[part].rows:
            bad = files[part].rejected.as_json()["total"]
            raise UserError(f"{files[part].path} has no row to {what} ({bad:,} malformed ones left out).")
    write_array(folder / PRIOR_FILE, tokenizer.prior())
    description = {
        "schema": SCHEMA,
        "name": data.name,
        "record": {"bytes": record.itemsize, "fields": fields_of(record)},
        "numeric_features": [],
        "categorical_features": [{"name": "word_embeddings", "vocabulary_size": tokenizer.rows}],
        "rows_per_example": min(data.counted_tokens, data.max_length),
        "text": {
            "max_length": data.max_length,
            "padding": tokenizer.padding,
            "separator": tokenizer.separator if len(data.columns.texts) > 1 else None,
            "labels": list(data.columns.labels),
        },
        "vocabulary": {
            "policy": "tokenizer",
            "data_dependent_vocabulary": False,
            "note": "The tokenizer comes with the model: the vocabulary depends on no row of the data.",
            "hash": dict(data.hash_specification),
        },
        "splits": {
            part: {**tally.as_json(), "sha256": streams[part].sha256.hexdigest()} for part, tally in tallies.items()
        },
        "rejected_rows": rejected.as_json(),
        "excluded_rows": RefusedRows().as_json(),
        "sources": [file.read for file in files.values()],
        "made_from": data.identity(0),
        "made_with": made_with,
    }
    (folder / "dataset.json").write_text(sealed_text(description), encoding="utf-8")


class _Tally:
    """Statistics of a split for dataset.json: rows, labels, and lengths of texts."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels, self._counts = labels, np.zeros(len(labels), np.int64)
        self._tokens, self._longest, self._cut = 0, 0, 0

    @property
    def rows(self) -> int:
        return int(self._counts.sum())

    def add(self, records: NDArray[Any], cut: NDArray[np.bool_]) -> None:
        self._counts += np.bincount(records["label"], minlength=len(self._counts))
        self._tokens += int(records["length"].sum())
        self._longest = max(self._longest, int(records["length"].max(initial=0)))
        self._cut += int(cut.sum())

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "rows_per_label": dict(zip(self._labels, self._counts.tolist(), strict=True)),
            "tokens_mean": self._tokens / self.rows if self.rows else None,
            "tokens_most": self._longest,
            "cut": self._cut,
        }


def _records(
    block: Sequence[LabelledText], tokenizer: TextTokenizer, max_length: int
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the records of texts, and which texts were truncated."""
    tokens = tokenizer.encode([example.texts for example in block], max_length)
    records = np.empty(len(block), text_record(max_length))
    records["label"] = [example.label for example in block]
    records["length"] = [len(ids) for ids in tokens.ids]
    records["ids"] = tokenizer.padding
    for row, ids in zip(records["ids"], tokens.ids, strict=True):
        row[: len(ids)] = ids
    return records, np.array(tokens.cut)


def _parts(block: Sequence[LabelledText], data: TextConfig) -> NDArray[np.str_]:
    """Return the split of each text of the training file, a function of its content and label; shape [n]."""
    labels = np.array([example.label for example in block], np.int64)
    texts = np.array([[text_key(text) for text in example.texts] for example in block], np.uint64)
    uniforms = content_uniforms(line_content([labels, *texts.T]), data.split_seed)
    return np.where(uniforms < 1 - data.validation, "train", "validation")
