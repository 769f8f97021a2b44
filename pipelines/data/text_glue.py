"""Labelled texts: what all have in common, and the tasks of GLUE from the folders of their official TSV files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from dpfest.errors import UserError
from pipelines.data.criteo import check_on_bad_row
from pipelines.data.source import fingerprint
from pipelines.data.text_tokens import TextTokenizer, folder_identity, folder_tokenizer
from pipelines.data.text_tsv import TsvFile, TsvFormat

TOKENIZER_OF_THE_MODEL = "${model.path}"
"""Where a model is, there is its tokenizer; Hydra puts the one in the other's place."""


@dataclass
class TextConfig:
    """What all labelled texts have.

    Attributes:
        max_length: tokens of a text, the marks at its ends among them; the rest is cut off.
        validation: share of the training file's rows that choose settings.
        split_seed: decides which.
        counted_tokens: most distinct tokens of a text, its first ones, that private row selection counts.
        on_bad_row: ``stop`` at the first malformed line, or ``skip`` such lines and count them in dataset.json.
    """

    is_stream: ClassVar[Literal[False]] = False
    task: ClassVar[str] = "text"
    columns: ClassVar[TsvFormat]

    name: str = ""
    max_length: int = 128
    validation: float = 0.05
    split_seed: int = 0
    counted_tokens: int = 16
    on_bad_row: str = "stop"

    def check(self) -> None:
        """Raise UserError where a setting has no meaning."""
        check_on_bad_row(self.on_bad_row)
        if self.max_length < 4:
            raise UserError(f"data.max_length must be 4 or more, but it is {self.max_length}.")
        if not 0 <= self.validation < 1:
            raise UserError(f"data.validation is a share of 0 or more and below 1, but it is {self.validation}.")
        if not 0 <= self.split_seed < 2**63:
            raise UserError(f"data.split_seed must be between 0 and 2**63 - 1, but it is {self.split_seed}.")
        if self.counted_tokens < 1:
            raise UserError(f"data.counted_tokens must be 1 or more, but it is {self.counted_tokens}.")

    def identity(self) -> dict[str, Any]:
        """What the rows are made from."""
        raise TypeError(f"{type(self).__name__} has no identity")

    def files(self, scratch: Path) -> dict[str, TsvFile]:
        """The file ``train``, and ``test``, whose labels are known and only reported."""
        raise TypeError(f"{type(self).__name__} has no files")

    def tokens(self) -> TextTokenizer:
        """What cuts the texts into tokens."""
        raise TypeError(f"{type(self).__name__} has no tokenizer")


@dataclass
class GlueConfig(TextConfig):
    """A task of GLUE, from the folder of its official files; dev.tsv is the test split, since test.tsv has no labels.

    Attributes:
        path: The folder of train.tsv and dev.tsv. Required.
        tokenizer: The folder of the model whose tokenizer is used.
    """

    path: str = "???"
    tokenizer: str | None = TOKENIZER_OF_THE_MODEL

    def identity(self) -> dict[str, Any]:
        """What the rows are made from."""
        files = [fingerprint(self._file(name)) for name in ("train.tsv", "dev.tsv")]
        return {"files": files, **folder_identity(self._folder())}

    def files(self, scratch: Path) -> dict[str, TsvFile]:
        """See :meth:`TextConfig.files`."""
        names = {"train": "train.tsv", "test": "dev.tsv"}
        return {part: TsvFile(self._file(name), self.columns, self.on_bad_row) for part, name in names.items()}

    def tokens(self) -> TextTokenizer:
        """See :meth:`TextConfig.tokens`."""
        return folder_tokenizer(self._folder())

    def _folder(self) -> Path:
        if self.tokenizer is None:
            raise UserError(
                f"data={self.name} is cut into tokens by the model's own tokenizer: set model.path to the folder of a "
                "model. None is fetched."
            )
        return Path(self.tokenizer)

    def _file(self, name: str) -> Path:
        path = Path(self.path) / name
        if not path.is_file():
            raise UserError(f"There is no file {path}: set data.path to the folder of GLUE's train.tsv and dev.tsv.")
        return path


@dataclass
class Sst2Config(GlueConfig):
    """The Stanford Sentiment Treebank: is a sentence of a film review positive? 67,349 of them, 872 in dev.tsv."""

    columns: ClassVar[TsvFormat] = TsvFormat(("sentence",), "label", ("0", "1"))

    name: str = "sst2"


@dataclass
class QnliConfig(GlueConfig):
    """Does the sentence answer the question?"""

    columns: ClassVar[TsvFormat] = TsvFormat(("question", "sentence"), "label", ("entailment", "not_entailment"))

    name: str = "qnli"


@dataclass
class QqpConfig(GlueConfig):
    """Do two questions ask the same?"""

    columns: ClassVar[TsvFormat] = TsvFormat(("question1", "question2"), "is_duplicate", ("0", "1"))

    name: str = "qqp"
