"""A model's own tokenizer, from the model's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.system.checksum import fingerprint
from pipelines.system.hub_client import INSTALL

_UNUSED = re.compile(r"\[unused\d+\]")


@dataclass(frozen=True)
class Tokens:
    """Token ids of texts, at most ``max_length`` each, and whether each text was truncated."""

    ids: list[list[int]]
    cut: list[bool]


class TextTokenizer:
    """Maps texts to rows of a word embedding.

    Args:
        tokenizer: the JSON that ``tokenizers.Tokenizer`` writes.
        rows: rows of the word embedding; every id is below this number.
        padding: the id of padding.

    Attributes:
        separator: id after the first text of a pair, for models with token types (BERT, not RoBERTa); else None.

    Raises:
        UserError: the package is missing, or the tokenizer has ids beyond the embedding's rows.
    """

    def __init__(self, tokenizer: dict[str, Any], rows: int, padding: int) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UserError(f"Texts need the package tokenizers: {INSTALL}.") from error
        self.rows, self.padding, self._json = rows, padding, tokenizer
        self._tokenizer = Tokenizer.from_str(json.dumps(tokenizer))
        self._tokenizer.no_padding()
        pair = self._tokenizer.encode("a", "b")
        self.separator = pair.ids[pair.type_ids.index(1) - 1] if 1 in pair.type_ids else None
        highest = max(self._tokenizer.get_vocab().values())
        if highest >= rows:
            raise UserError(
                f"The tokenizer has ids up to {highest:,}, but the model's word embedding has {rows:,} rows: use the "
                "model's own tokenizer."
            )

    def encode(self, texts: Sequence[tuple[str, ...]], max_length: int) -> Tokens:
        """Return the ids of single texts or pairs with the model's special tokens, truncated to ``max_length``."""
        self._tokenizer.enable_truncation(max_length)
        encodings = self._tokenizer.encode_batch([text[0] if len(text) == 1 else text for text in texts])
        return Tokens([one.ids for one in encodings], [bool(one.overflowing) for one in encodings])

    def prior(self) -> NDArray[np.float64]:
        """Rank tokens by the frequency that the tokenizer alone suggests: a score per row, shape [rows].

        A byte-pair encoding merges the most frequent pairs first, so a token ranks by its merge; a unigram model states
        probabilities; other vocabularies list frequent tokens first, after BERT's unused places.  The tokenizer was
        trained on other texts than the model is, so this costs no privacy.
        """
        model, counts = self._json["model"], np.full(self.rows, -np.inf)
        if model["type"] == "BPE":
            marks = {token["content"] for token in self._json["added_tokens"]}
            for token, row in self._tokenizer.get_vocab().items():
                counts[row] = 1 if token in marks or len(token) == 1 else -np.inf
            for rank, pair in enumerate(model["merges"]):
                first, second = pair.split(" ") if isinstance(pair, str) else pair
                if (row := model["vocab"].get(first + second)) is not None and counts[row] == -np.inf:
                    counts[row] = -rank
        elif model["type"] == "Unigram":
            counts[: len(model["vocab"])] = [score for _, score in model["vocab"]]
        else:
            counts = -np.arange(self.rows, dtype=np.float64)
            unused = [row for token, row in self._tokenizer.get_vocab().items() if _UNUSED.fullmatch(token)]
            counts[unused] = -np.inf
        known = counts[np.isfinite(counts)]
        return np.where(np.isfinite(counts), counts, known.min() - 1)


def folder_identity(folder: Path) -> dict[str, Any]:
    """Return everything that determines the ids of the tokenizer in a model's folder.

    Raises:
        UserError: the folder has no tokenizer or no configuration.
    """
    config = _read(folder, "config.json")
    if not (folder / "tokenizer.json").is_file():
        raise UserError(
            f"{folder} holds no tokenizer.json: save the model's tokenizer there (transformers' AutoTokenizer, "
            "save_pretrained)."
        )
    sizes = {name: config.get(name) for name in ("vocab_size", "pad_token_id")}
    if not all(isinstance(value, int) for value in sizes.values()):
        raise UserError(f"{folder / 'config.json'} lacks {' and '.join(sizes)}: it is not that of a text model.")
    return {"tokenizer": fingerprint(folder / "tokenizer.json"), **sizes}


def folder_tokenizer(folder: Path) -> TextTokenizer:
    """Return the tokenizer of a model's folder; raises UserError as :func:`folder_identity`."""
    sizes = folder_identity(folder)
    return TextTokenizer(_read(folder, "tokenizer.json"), sizes["vocab_size"], sizes["pad_token_id"])


def _read(folder: Path, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / name).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise UserError(
            f"There is no {folder / name}: model.path must be the folder of a model, with its config.json, "
            "tokenizer.json and weights, or its name on the Hugging Face hub (owner/name)."
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / name} cannot be read ({error}).") from error
