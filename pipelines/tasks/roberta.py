"""Encoders of the BERT family (BERT, RoBERTa, XLM-R) from a folder, or a tiny one of random weights.

Trained are LoRA on the query and value of every attention block, the classifier and the word embedding (or two low-rank
factors in its place); everything else is frozen.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import nn

from dpfest.errors import UserError
from pipelines.data.dataset import Dataset
from pipelines.system.checksum import fingerprint
from pipelines.system.hub import WEIGHT_FILES, HubConfig, local_folder
from pipelines.system.hub_client import INSTALL
from pipelines.system.ranges import Rate, Width, Within
from pipelines.tasks.head import FirstToken, UnitHead
from pipelines.tasks.low_rank_table import LowRankTable

ADAPTED = ("query", "value")
FAMILIES = ("bert", "roberta", "xlm-roberta")


@dataclass
class RobertaConfig:
    """The text encoder, and what is trained in it.

    Attributes:
        hub: whether files may be downloaded from the Hugging Face hub; set from the whole configuration.
        path: folder with the config.json, weights and tokenizer.json of a pretrained model, or its name on the Hugging
            Face hub; null for a random one of the shape below, with the vocabulary of the data.
        lora_rank: rank of the two LoRA factors at the query and the value of every block.
        lora_scale: factor on their product, LoRA's alpha / rank.
        head: ``unit`` for one linear layer on the first token's output at length one (:class:`UnitHead`), or ``own``
            for the classifier of the model's family; the paper does not state its own.
        head_gain: length of a class's initial weights in the unit head.
        precision: ``float32``, or ``bfloat16`` for products and activations in half precision (autocast), for GPUs.
            Weights, norms, clipped sums and noise are float32 under both.
        layers, width, heads: shape of a random model; its feed-forward layers are four times as wide.
    """

    task: ClassVar[str] = "text"
    hub: ClassVar[HubConfig] = HubConfig()

    name: str = "roberta"
    path: str | None = None
    lora_rank: Width = 16
    lora_scale: Rate = 4.0
    head: Literal["unit", "own"] = "unit"
    head_gain: Rate = 10.0
    precision: Literal["float32", "bfloat16"] = "float32"
    layers: Annotated[int, Within(1, 1000)] = 2
    width: Width = 64
    heads: Width = 4

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"model.width={self.width} must be a multiple of model.heads={self.heads}")

    def identity(self) -> dict[str, Any]:
        """Return what determines the initial model: the content of its folder, wherever it is, or its shape."""
        settings = asdict(self)
        if (folder := self.folder()) is not None:
            # If both exist, only the former are read.
            weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
            settings["path"] = [fingerprint(path) for path in (folder / "config.json", *weights)]
            for shape in ("layers", "width", "heads"):
                del settings[shape]
        return settings

    def folder(self) -> Path | None:
        """Return the folder of the pretrained model on this machine; None for a random one.

        Raises:
            UserError: it has a name on the hub, is not in the local cache, and may not or cannot be fetched.
        """
        return None if self.path is None else local_folder(self.path, WEIGHT_FILES, self.hub)


def text_classifier(config: RobertaConfig, data: Dataset, seed: int, table_rank: int | None = None) -> nn.Module:
    """Build the model; exactly LoRA, classifier and word embedding are trainable.

    Args:
        config: the model's settings.
        data: dataset whose labels, padding, vocabulary and longest text decide the rest.
        seed: seed of the weights that do not come from the folder.
        table_rank: rank of two factors trained in place of the word embedding; None for the embedding itself.

    Raises:
        UserError: a package is missing, or the folder holds no model that fits.
    """
    text, rows = data.description["text"], data.vocabulary_sizes[0]
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        folder = config.folder()
        model = _random(config, text, rows) if folder is None else _pretrained(folder, config.head, text)
        _fits(model, text, rows)
        _adapt(model, config, table_rank)
    # Without dropout, although private steps support it: clipping and noise regularise enough.
    return model.eval()


def trainable_set(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of the trainable parameters of a :func:`text_classifier`: LoRA, classifier, word embedding.

    Raises:
        UserError: other parameters are trainable.
    """
    table: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    learnt = [table.first.weight, table.second.weight] if isinstance(table, LowRankTable) else [*table.parameters()]
    named = dict(model.named_parameters())
    wanted = {
        "LoRA": [name for name in named if ".lora_A." in name or ".lora_B." in name],
        "classifier": [name for name in named if name.startswith("classifier.")],
        "word embedding": [name for name, parameter in named.items() if any(parameter is own for own in learnt)],
    }
    trained = {name for name, parameter in named.items() if parameter.requires_grad}
    shape: Any = model.config
    layers = shape.num_hidden_layers
    adapted = len(wanted["LoRA"]) == 2 * len(ADAPTED) * layers
    whole = adapted and wanted["classifier"] and len(wanted["word embedding"]) == len(learnt)
    if not whole or trained != {name for names in wanted.values() for name in names}:
        raise UserError(
            f"{type(model).__name__} cannot be trained here: it lacks query and value in each of its {layers} blocks, "
            "a classifier or a word embedding where BERT, RoBERTa and XLM-R have them."
        )
    return wanted


def _pretrained(folder: Path, head: str, text: dict[str, Any]) -> nn.Module:
    transformers = _package("transformers")
    from safetensors import SafetensorError

    kept = {"local_files_only": True, "trust_remote_code": False}
    try:
        family = transformers.AutoConfig.from_pretrained(folder, **kept).model_type
        if family not in FAMILIES:
            raise UserError(f"{folder} holds a model of the family {family}; supported are {', '.join(FAMILIES)}.")
        model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=len(text["labels"]),
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # allowed for a classifier of other classes, refused below for the rest
            **kept,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"model.path={folder} cannot be loaded: {str(error).splitlines()[0]}") from error
    made_here = ("classifier.", "bert.pooler.") if head == "unit" else ("classifier.",)
    for what, names in (
        ("lack", loading["missing_keys"]),
        ("contradict config.json in the shape of", [name for name, *_ in loading["mismatched_keys"]]),
    ):
        if wrong := sorted(name for name in names if not name.startswith(made_here)):
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise UserError(f"The weights in {folder} {what} {wrong[0]}{more}: they are incomplete.")
    return model


def _random(config: RobertaConfig, text: dict[str, Any], rows: int) -> nn.Module:
    transformers = _package("transformers")
    shape = transformers.RobertaConfig(
        vocab_size=rows,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        max_position_embeddings=text["max_length"] + text["padding"] + 1,
        type_vocab_size=1,
        pad_token_id=text["padding"],
        num_labels=len(text["labels"]),
    )
    return transformers.RobertaForSequenceClassification(shape)


def _fits(model: nn.Module, text: dict[str, Any], rows: int) -> None:
    """Refuse a model that does not match the tokenizer or has too few positions."""
    table = model.get_input_embeddings()  # type: ignore[operator]
    if (table.num_embeddings, table.padding_idx) != (rows, text["padding"]):
        raise UserError(
            f"The word embedding has {table.num_embeddings:,} rows, padding at {table.padding_idx}; the texts were "
            f"tokenized for {rows:,} rows, padding at {text['padding']}: model.path and data.tokenizer must be the "
            "same folder."
        )
    shape: Any = model.config
    # RoBERTa and XLM-R number positions from the one after padding's.
    first = 0 if shape.model_type == "bert" else text["padding"] + 1
    if text["max_length"] > (most := shape.max_position_embeddings - first):
        raise UserError(f"data.max_length={text['max_length']} exceeds the {most} tokens that the model accepts.")


def _adapt(model: Any, config: RobertaConfig, table_rank: int | None) -> None:
    """Freeze everything, add LoRA, and unfreeze the other trainable parameters."""
    peft = _package("peft")
    model.requires_grad_(False)
    if config.head == "unit":
        model.classifier = UnitHead(model.config.hidden_size, model.config.num_labels, config.head_gain)
        if getattr(model.base_model, "pooler", None) is not None:
            model.base_model.pooler = FirstToken()
    scale = config.lora_rank * config.lora_scale
    peft.inject_adapter_in_model(
        peft.LoraConfig(r=config.lora_rank, lora_alpha=scale, lora_dropout=0.0, target_modules=list(ADAPTED)), model
    )
    table = model.get_input_embeddings()
    if table_rank is None:
        table.requires_grad_(True)
    else:
        model.set_input_embeddings(LowRankTable(table, table_rank))
    model.classifier.requires_grad_(True)
    trained = trainable_set(model)
    named = dict(model.named_parameters())
    sizes = {part: sum(named[name].numel() for name in names) for part, names in trained.items()}
    frozen = sum(parameter.numel() for parameter in named.values()) - sum(sizes.values())
    factors = "" if table_rank is None else f", as factors of rank {table_rank}"
    print(
        f"{type(model).__name__}: trains LoRA of rank {config.lora_rank} at {' and '.join(ADAPTED)} of "
        f"{len(trained['LoRA']) // 4} blocks ({sizes['LoRA']:,} parameters), the classifier ({sizes['classifier']:,}) "
        f"and the word embedding ({table.num_embeddings:,} x {table.embedding_dim}{factors}); {frozen:,} parameters "
        "are frozen.",
        file=sys.stderr,
        flush=True,
    )


def _package(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise UserError(f"model=roberta needs the package {name}: {INSTALL}.") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the package's warnings of missing weights, which are checked and reported here."""
    logging = _package("transformers").utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
