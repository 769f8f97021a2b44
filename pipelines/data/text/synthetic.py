"""Generated texts whose label some of their words indicate, and a tokenizer built in code: nothing to download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from dpfest.errors import UserError
from pipelines.data.text.config import TextConfig
from pipelines.data.text.file import TextColumns
from pipelines.data.text.tokens import TextTokenizer
from pipelines.data.text.tsv import TsvFile
from pipelines.system.ranges import Count, Seed, Share, Within

GENERATOR_VERSION = 1
MARKS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""RoBERTa's special tokens in its order: padding is row 1."""

TELLING_SHARE = 0.2  # of a text's words indicate its label
LENGTHS = (6, 24)  # fewest words of a text, and one more than the most


@dataclass
class TextSyntheticConfig(TextConfig):
    """Generated texts.

    Attributes:
        rows, test_rows: number of texts of the training file and of the test file.
        vocabulary_size: rows of the word embedding, special tokens included; 250,002 is XLM-R's.
        telling_words: number of words that indicate the label, half of them per label; the others follow Zipf's law.
        zipf_exponent: the r-th most frequent word has frequency proportional to r to minus this.
        seed: seed of all texts.
    """

    columns: ClassVar[TextColumns] = TextColumns(("sentence",), "label", ("0", "1"))

    name: str = "text_synthetic"
    max_length: Annotated[int, Within(4, 100_000)] = 32
    validation: Share = 0.1
    rows: Count = 20_000
    test_rows: Count = 2_000
    vocabulary_size: Count = 5_000
    telling_words: Count = 100
    zipf_exponent: Annotated[float, Within(0, 10)] = 1.1
    seed: Seed = 0

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        super().check()
        words = self.vocabulary_size - len(MARKS)
        if not 2 <= self.telling_words <= words // 2:
            raise UserError(
                f"data.telling_words must be between 2 and half of the words ({words:,}, data.vocabulary_size without "
                f"its {len(MARKS)} special tokens), but it is {self.telling_words}."
            )

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return {"generator": GENERATOR_VERSION}

    def expected_examples(self, train_days: int) -> float:
        return self.rows

    def files(self, scratch: Path) -> dict[str, TsvFile]:
        """See :meth:`TextConfig.files`; written into ``scratch``."""
        scratch.mkdir(exist_ok=True)
        generator, parts = np.random.default_rng(self.seed), {}
        for part, rows in (("train", self.rows), ("test", self.test_rows)):
            path = scratch / f"{part}.tsv"
            path.write_text("\n".join(["sentence\tlabel", *self._lines(generator, rows), ""]), encoding="utf-8")
            parts[part] = TsvFile(path, self.columns, "stop")
        return parts

    def tokens(self) -> TextTokenizer:
        """Return a tokenizer in which each word is a token."""
        vocabulary = {word: row for row, word in enumerate([*MARKS, *self._words()])}
        marks = [
            {"id": row, "content": mark, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for row, mark in enumerate(MARKS)
        ]
        ends = {"sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
        tokenizer = {
            "version": "1.0",
            "added_tokens": marks,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": {"type": "RobertaProcessing", **ends},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        }
        unused = dict.fromkeys(("truncation", "padding", "normalizer", "decoder"))
        return TextTokenizer({**tokenizer, **unused}, self.vocabulary_size, padding=1)

    def _words(self) -> list[str]:
        return [f"w{number}" for number in range(self.vocabulary_size - len(MARKS))]

    def _lines(self, generator: np.random.Generator, rows: int) -> list[str]:
        words = np.array(self._words())
        telling, others = words[: self.telling_words], words[self.telling_words :]
        popularity = np.arange(1, len(others) + 1) ** -self.zipf_exponent
        popularity = np.cumsum(popularity / popularity.sum())
        lines = []
        for label in generator.integers(0, 2, rows).tolist():
            length = int(generator.integers(*LENGTHS))
            place = np.searchsorted(popularity, generator.random(length)).clip(max=len(others) - 1)
            tells = generator.random(length) < TELLING_SHARE
            text = np.where(tells, generator.choice(telling[label::2], length), others[place])
            lines.append(f"{' '.join(text)}\t{label}")
        return lines
