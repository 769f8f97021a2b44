"""Labelled texts: what all have in common, and the tasks of GLUE and XNLI from their official TSV files or from the
Parquet files of the Hugging Face hub."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from dpfest.errors import UserError
from pipelines.config.schema import Length, Seed, Share
from pipelines.data.clicks.criteo import check_on_bad_row
from pipelines.data.text.file import TextColumns, TextFile
from pipelines.data.text.parquet import ParquetFile
from pipelines.data.text.tokens import TextTokenizer, folder_identity, folder_tokenizer
from pipelines.data.text.tsv import TsvFile
from pipelines.system.checksum import fingerprint
from pipelines.system.hub import TOKENIZER, HubConfig, Wanted, local_folder

Parts = dict[str, tuple[str, TextColumns]]
"""Of ``train`` and ``test``, the file within a folder, and what is read of it."""

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
    columns: ClassVar[TextColumns]

    name: str = ""
    max_length: Length = 128
    validation: Share = 0.05
    split_seed: Seed = 0
    counted_tokens: Length = 16
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

    def files(self, scratch: Path) -> Mapping[str, TextFile[Any]]:
        """The file ``train``, and ``test``, whose labels are known and only reported."""
        raise TypeError(f"{type(self).__name__} has no files")

    def tokens(self) -> TextTokenizer:
        """What cuts the texts into tokens."""
        raise TypeError(f"{type(self).__name__} has no tokenizer")


@dataclass
class OfficialConfig(TextConfig):
    """A task from a folder of its official files, or of the hub's.

    Attributes:
        on_hub: Name of the dataset on the Hugging Face hub.
        hub: What may be fetched: nothing, unless the whole configuration says so.
        path: The folder, or a name on the hub. Required.
        tokenizer: The folder of the model whose tokenizer is used, or its name on the hub.
    """

    on_hub: ClassVar[str]

    hub: ClassVar[HubConfig] = HubConfig()

    path: str = "???"
    tokenizer: str | None = TOKENIZER_OF_THE_MODEL

    def official(self) -> Parts:
        """The official files."""
        raise TypeError(f"{type(self).__name__} names no files")

    def converted(self) -> Parts:
        """The files of the dataset ``on_hub``."""
        raise TypeError(f"{type(self).__name__} names no files")

    def identity(self) -> dict[str, Any]:
        """What the rows are made from."""
        files = [fingerprint(path) for path, _ in self._found().values()]
        return {"files": files, **folder_identity(self._folder())}

    def files(self, scratch: Path) -> Mapping[str, TextFile[Any]]:
        """See :meth:`TextConfig.files`."""
        kinds: dict[str, type[TextFile[Any]]] = {".parquet": ParquetFile, ".tsv": TsvFile}
        return {
            part: kinds[path.suffix](path, columns, self.on_bad_row) for part, (path, columns) in self._found().items()
        }

    def tokens(self) -> TextTokenizer:
        """See :meth:`TextConfig.tokens`."""
        return folder_tokenizer(self._folder())

    def _folder(self) -> Path:
        if self.tokenizer is None:
            raise UserError(
                f"data={self.name} is cut into tokens by the model's own tokenizer: set model.path to the folder of a "
                "model, or to its name on the Hugging Face hub."
            )
        return local_folder(self.tokenizer, TOKENIZER, self.hub)

    def _found(self) -> dict[str, tuple[Path, TextColumns]]:
        """The files that the folder holds, the official ones where it holds both kinds."""
        layouts = (self.official(), self.converted())
        names = [tuple(name for name, _ in parts.values()) for parts in layouts]
        folder = local_folder(self.path, Wanted("dataset", (names[1], names[0]), " ".join(names[1])), self.hub)
        for parts in layouts:
            found = {part: (folder / name, columns) for part, (name, columns) in parts.items()}
            if all(path.is_file() for path, _ in found.values()):
                return found
        lacking = next(path for name in names[0] if not (path := folder / name).is_file())
        kinds = ", or of ".join(" and ".join(each) for each in names)
        raise UserError(
            f"There is no file {lacking}: set data.path to the folder of {kinds}; or to {self.on_hub}, its name on the "
            "Hugging Face hub."
        )


@dataclass
class GlueConfig(OfficialConfig):
    """A task of GLUE; dev.tsv (validation, on the hub) is the test split, since that of GLUE has no labels.

    On the hub the label is the column ``label`` in every task.
    """

    on_hub: ClassVar[str] = "nyu-mll/glue"

    def official(self) -> Parts:
        """See :meth:`OfficialConfig.official`."""
        return {"train": ("train.tsv", self.columns), "test": ("dev.tsv", self.columns)}

    def converted(self) -> Parts:
        """See :meth:`OfficialConfig.converted`."""
        return _converted(self.name, "validation", dataclasses.replace(self.columns, label="label"))


@dataclass
class Sst2Config(GlueConfig):
    """The Stanford Sentiment Treebank: is a sentence of a film review positive? 67,349 of them, 872 in dev.tsv."""

    columns: ClassVar[TextColumns] = TextColumns(("sentence",), "label", ("0", "1"))

    name: str = "sst2"


@dataclass
class QnliConfig(GlueConfig):
    """Does the sentence answer the question?"""

    columns: ClassVar[TextColumns] = TextColumns(("question", "sentence"), "label", ("entailment", "not_entailment"))

    name: str = "qnli"


@dataclass
class QqpConfig(GlueConfig):
    """Do two questions ask the same?  A few lines of the official train.tsv are broken in two: they are left out."""

    columns: ClassVar[TextColumns] = TextColumns(("question1", "question2"), "is_duplicate", ("0", "1"))

    name: str = "qqp"
    on_bad_row: str = "skip"


XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")


@dataclass
class XnliConfig(OfficialConfig):
    """Does the premise entail the hypothesis? 392,702 pairs of MultiNLI in one of 15 languages, and the 5,010 of XNLI
    in it to be reported. The folder holds both archives as they unpack, XNLI-1.0 and XNLI-MT-1.0.

    Attributes:
        language: In which it is trained and judged; all but English are machine translations in training.
    """

    columns: ClassVar[TextColumns] = TextColumns(
        ("premise", "hypo"), "label", ("entailment", "neutral", "contradictory")
    )

    on_hub: ClassVar[str] = "facebook/xnli"

    name: str = "xnli"
    language: str = "en"

    def check(self) -> None:
        """Raise UserError where a setting has no meaning."""
        super().check()
        if self.language not in XNLI_LANGUAGES:
            raise UserError(f"data.language={self.language} is none of XNLI's: {', '.join(XNLI_LANGUAGES)}.")

    def official(self) -> Parts:
        """See :meth:`OfficialConfig.official`."""
        labels = (*self.columns.labels[:2], "contradiction")  # the two files name the third class differently
        judged = TextColumns(("sentence1", "sentence2"), "gold_label", labels, only=("language", self.language))
        training = f"XNLI-MT-1.0/multinli/multinli.train.{self.language}.tsv"
        return {"train": (training, self.columns), "test": ("XNLI-1.0/xnli.test.tsv", judged)}

    def converted(self) -> Parts:
        """See :meth:`OfficialConfig.converted`."""
        return _converted(self.language, "test", dataclasses.replace(self.columns, texts=("premise", "hypothesis")))


def _converted(folder: str, test: str, columns: TextColumns) -> Parts:
    files = {"train": f"{folder}/train-00000-of-00001.parquet", "test": f"{folder}/{test}-00000-of-00001.parquet"}
    return {part: (name, columns) for part, name in files.items()}
