"""Settings and methods that all datasets of labelled texts share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from dpfest.errors import UserError
from pipelines.data.source import DataConfig, Progress, check_on_bad_row
from pipelines.data.text.file import TextColumns, TextFile
from pipelines.data.text.tokens import TextTokenizer
from pipelines.data.text.writer import write_text_dataset
from pipelines.system.ranges import Length, Seed, Share, Within


@dataclass
class TextConfig(DataConfig):
    """What all labelled texts have.

    Attributes:
        max_length: tokens of a text, the marks at its ends among them; the rest is cut off.
        validation: share of the training file's rows that choose settings.
        split_seed: decides which.
        counted_tokens: most distinct tokens of a text, its first ones, that private row selection counts.
        on_bad_row: ``stop`` at the first malformed line, or ``skip`` such lines and count them in dataset.json.
    """

    task: ClassVar[str] = "text"
    columns: ClassVar[TextColumns]

    name: str = ""
    max_length: Annotated[int, Within(4, 100_000)] = 128
    validation: Share = 0.05
    split_seed: Seed = 0
    counted_tokens: Length = 16
    on_bad_row: str = "stop"

    def check(self) -> None:
        """Raise UserError where a setting has no meaning."""
        check_on_bad_row(self.on_bad_row)
        if self.validation == 1:
            raise UserError("data.validation must be below 1: no row would be left to train on.")

    @abstractmethod
    def files(self, scratch: Path) -> Mapping[str, TextFile[Any]]:
        """The file ``train``, and ``test``, whose labels are known and only reported; generated ones in ``scratch``."""

    @abstractmethod
    def tokens(self) -> TextTokenizer:
        """What cuts the texts into tokens."""

    def write(self, day: int, folder: Path, made_with: dict[str, Any], progress: Progress) -> None:
        write_text_dataset(folder, self, made_with, progress)

    def features(self) -> int:
        """A text is one feature."""
        return 1
