"""The tasks of GLUE and XNLI from their official TSV files or from the Parquet files of the Hugging Face hub."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dpfest.errors import UserError
from pipelines.data.source import OnBadRow
from pipelines.data.text.config import PretrainedTextConfig
from pipelines.data.text.file import TextColumns, TextFile
from pipelines.data.text.parquet import ParquetFile
from pipelines.data.text.sentences import split_files
from pipelines.data.text.tsv import TsvFile
from pipelines.system.checksum import fingerprint
from pipelines.system.hub import Wanted, local_folder

Parts = dict[str, tuple[str, TextColumns]]
"""For ``train`` and ``test``, the file within a folder and the columns to read."""


@dataclass
class OfficialConfig(PretrainedTextConfig):
    """A task read from a folder of its official files or of the hub's files.

    Attributes:
        on_hub: name of the dataset on the Hugging Face hub.
        training_examples: number of rows of the training file.
        path: folder of the files, or name of the dataset on the hub. Required.
    """

    on_hub: ClassVar[str]
    training_examples: ClassVar[int]

    path: str = "???"

    @abstractmethod
    def official(self) -> Parts:
        """Return the official files."""

    @abstractmethod
    def converted(self) -> Parts:
        """Return the files of the dataset ``on_hub``."""

    def expected_examples(self, train_days: int) -> float:
        return self.training_examples

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        files = [fingerprint(path) for path, _ in self._found().values()]
        return {"files": files, **super().identity(day)}

    def files(self, scratch: Path) -> Mapping[str, TextFile[Any]]:
        kinds: dict[str, type[TextFile[Any]]] = {".parquet": ParquetFile, ".tsv": TsvFile}
        return {
            part: kinds[path.suffix](path, columns, self.on_bad_row) for part, (path, columns) in self._found().items()
        }

    def _found(self) -> dict[str, tuple[Path, TextColumns]]:
        """Return the files in the folder; the official ones if both kinds are there."""
        layouts = (self.official(), self.converted())
        names = [tuple(name for name, _ in parts.values()) for parts in layouts]
        folder = local_folder(self.path, Wanted("dataset", (names[1], names[0]), " ".join(names[1])), self.hub)
        for parts in layouts:
            paths = {part: (folder / name, columns) for part, (name, columns) in parts.items()}
            if all(path.is_file() for path, _ in paths.values()):
                return paths
        lacking = next(path for name in names[0] if not (path := folder / name).is_file())
        kinds = ", or of ".join(" and ".join(each) for each in names)
        raise UserError(
            f"There is no file {lacking}: set data.path to the folder of {kinds}; or to {self.on_hub}, the dataset's "
            "name on the Hugging Face hub."
        )


@dataclass
class GlueConfig(OfficialConfig):
    """A task of GLUE. Its dev.tsv (validation on the hub) is the test split, since GLUE's test split has no labels.

    On the hub the label is the column ``label`` in every task.
    """

    on_hub: ClassVar[str] = "nyu-mll/glue"

    def official(self) -> Parts:
        return {"train": ("train.tsv", self.columns), "test": ("dev.tsv", self.columns)}

    def converted(self) -> Parts:
        return _converted(self.name, "validation", dataclasses.replace(self.columns, label="label"))


@dataclass
class Sst2Config(GlueConfig):
    """The Stanford Sentiment Treebank: is a sentence or phrase of a film review positive? 67,349 rows, and 872
    sentences in dev.tsv."""

    training_examples: ClassVar[int] = 67_349
    columns: ClassVar[TextColumns] = TextColumns(("sentence",), "label", ("0", "1"))

    name: str = "sst2"


@dataclass
class Sst2PhrasesConfig(Sst2Config):
    """SST-2 split by sentence: files of the folder ``path``, which :mod:`pipelines.data.text.sentences` writes."""

    training_examples: ClassVar[int] = 55_771
    split: ClassVar[str] = "phrases"

    name: str = "sst2_phrases"

    def _found(self) -> dict[str, tuple[Path, TextColumns]]:
        paths = {part: Path(self.path) / name for part, name in split_files(self.split).items()}
        for path in paths.values():
            if not path.is_file():
                raise UserError(
                    f"There is no file {path}: write it with `python -m pipelines.data.text.sentences SST-2 FOLDER`, "
                    "where SST-2 is the folder of the official train.tsv, and set data.path to FOLDER."
                )
        return {part: (path, self.columns) for part, path in paths.items()}


@dataclass
class Sst2HalvesConfig(Sst2PhrasesConfig):
    """The same with half of the sentences held out: fewer rows to train on, and more to test on."""

    training_examples: ClassVar[int] = 31_812
    split: ClassVar[str] = "halves"

    name: str = "sst2_halves"


@dataclass
class QnliConfig(GlueConfig):
    """Does the sentence answer the question?"""

    training_examples: ClassVar[int] = 104_743
    columns: ClassVar[TextColumns] = TextColumns(("question", "sentence"), "label", ("entailment", "not_entailment"))

    name: str = "qnli"


@dataclass
class QqpConfig(GlueConfig):
    """Do two questions ask the same? A few lines of the official train.tsv are broken in two and are skipped."""

    training_examples: ClassVar[int] = 363_846
    columns: ClassVar[TextColumns] = TextColumns(("question1", "question2"), "is_duplicate", ("0", "1"))

    name: str = "qqp"
    on_bad_row: OnBadRow = "skip"


XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")


@dataclass
class XnliConfig(OfficialConfig):
    """Does the premise entail the hypothesis? Trained on 392,702 pairs of MultiNLI in one of 15 languages and tested on
    the 5,010 pairs of XNLI in that language. The folder holds both unpacked archives, XNLI-1.0 and XNLI-MT-1.0.

    Attributes:
        language: language of training and test texts; training texts are machine translations except in English.
    """

    training_examples: ClassVar[int] = 392_702
    columns: ClassVar[TextColumns] = TextColumns(
        ("premise", "hypo"), "label", ("entailment", "neutral", "contradictory")
    )

    on_hub: ClassVar[str] = "facebook/xnli"

    name: str = "xnli"
    language: str = "en"

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        super().check()
        if self.language not in XNLI_LANGUAGES:
            raise UserError(f"data.language={self.language} is none of XNLI's: {', '.join(XNLI_LANGUAGES)}.")

    def official(self) -> Parts:
        labels = (*self.columns.labels[:2], "contradiction")  # the two files name the third class differently
        test = TextColumns(("sentence1", "sentence2"), "gold_label", labels, only=("language", self.language))
        training = f"XNLI-MT-1.0/multinli/multinli.train.{self.language}.tsv"
        return {"train": (training, self.columns), "test": ("XNLI-1.0/xnli.test.tsv", test)}

    def converted(self) -> Parts:
        return _converted(self.language, "test", dataclasses.replace(self.columns, texts=("premise", "hypothesis")))


def _converted(folder: str, test: str, columns: TextColumns) -> Parts:
    files = {"train": f"{folder}/train-00000-of-00001.parquet", "test": f"{folder}/{test}-00000-of-00001.parquet"}
    return {part: (name, columns) for part, name in files.items()}
