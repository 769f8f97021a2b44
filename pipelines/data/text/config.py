"""Settings and methods that all datasets of labelled texts share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from dpfest.errors import UserError
from pipelines.data.hashing import HASH_SPECIFICATION
from pipelines.data.source import DataConfig, OnBadRow, Progress
from pipelines.data.text.file import TextColumns, TextFile
from pipelines.data.text.tokens import TextTokenizer, folder_identity, folder_tokenizer
from pipelines.data.text.writer import write_text_dataset
from pipelines.system.hub import TOKENIZER_FILES, local_folder
from pipelines.system.ranges import Length, Seed, Share, Within

TOKENIZER_OF_THE_MODEL = "${model.path}"
"""Resolved by Hydra: the tokenizer lies in the model's folder."""


@dataclass
class TextConfig(DataConfig):
    """Settings of all datasets of labelled texts.

    Attributes:
        hash_specification: how rows are divided into splits, in words for dataset.json.
        max_length: tokens per text, special tokens included; longer texts are truncated.
        validation: share of the training file's rows on which settings are chosen.
        split_seed: seed of this split.
        counted_tokens: number of distinct tokens per text, the first ones, that private row selection counts.
        on_bad_row: ``stop`` at the first malformed line, or ``skip`` such lines and count them in dataset.json.
    """

    task: ClassVar[str] = "text"
    hash_specification: ClassVar[Mapping[str, str]] = HASH_SPECIFICATION
    columns: ClassVar[TextColumns]

    name: str = ""
    max_length: Annotated[int, Within(4, 100_000)] = 128
    validation: Share = 0.05
    split_seed: Seed = 0
    counted_tokens: Length = 16
    on_bad_row: OnBadRow = "stop"

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        if self.validation == 1:
            raise UserError("data.validation must be below 1: no row would be left to train on.")

    @abstractmethod
    def files(self, scratch: Path) -> Mapping[str, TextFile[Any]]:
        """Return the files by split. Without a file ``validation``, that split is a share of the rows of ``train``.
        Generated files are written to ``scratch``."""

    @abstractmethod
    def tokens(self) -> TextTokenizer:
        """Return the tokenizer."""

    def write(self, day: int, folder: Path, made_with: dict[str, Any], progress: Progress) -> None:
        write_text_dataset(folder, self, made_with, progress)

    def features(self) -> int:
        """Return 1: a text is one feature."""
        return 1


@dataclass
class PretrainedTextConfig(TextConfig):
    """Texts for a pretrained model, in its own tokens.

    Attributes:
        tokenizer: folder of the model whose tokenizer is used, or its name on the hub.
    """

    tokenizer: str | None = TOKENIZER_OF_THE_MODEL

    def tokens(self) -> TextTokenizer:
        return folder_tokenizer(self._folder())

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the tokens."""
        return folder_identity(self._folder())

    def _folder(self) -> Path:
        if self.tokenizer is None:
            raise UserError(
                f"data={self.name} needs the model's own tokenizer: set model.path to the folder of a model, or to its "
                "name on the Hugging Face hub."
            )
        return local_folder(self.tokenizer, TOKENIZER_FILES, self.hub)
