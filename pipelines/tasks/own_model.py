"""A click model of the user's own: any module that takes numbers and categories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

import dpfest
from dpfest.errors import UserError
from dpfest.gradients.validation import model_faults, refuse
from pipelines.config.schema import MISSING
from pipelines.system.code import CHOICE, code_of, load, refuse_places, without_folder
from pipelines.tasks.click_model import ClickModelConfig
from pipelines.tasks.smaller_tables import SmallerTables

_ROWS = 32  # of the made-up batch


@dataclass
class ModuleConfig(ClickModelConfig):
    """A model of the user's own, any torch.nn.Module that takes numbers and categories.

    Attributes:
        kind: module, in a file of settings with a name of its own.
        target: the class, as FILE.py:CLASS or MODULE:CLASS; it is called with the vocabulary sizes (of bags last),
            the number of numeric features and the options.
        options: keyword arguments of the class.
        code: SHA-256 of the file that defines it, found if null; give it to refuse any other.
    """

    name: str = CHOICE
    kind: Literal["module"] = CHOICE
    target: str = MISSING
    options: dict[str, Any] = field(default_factory=dict)
    code: str | None = None

    def __post_init__(self) -> None:
        if self.target == MISSING:
            return
        refuse_places(self.options, "model.options")
        if self.code is None:
            self.code = code_of(self.target, "model.target")

    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "target": without_folder(self.target), "code": self.code, "options": self.options}

    def make(
        self,
        vocabularies: Sequence[int],
        numeric: int,
        seed: int,
        *,
        smaller: SmallerTables | None = None,
        whole: bool = True,
        bags: Sequence[str] = (),
    ) -> nn.Module:
        """Return the model, in memory even if not ``whole``; private training was tried on made-up rows.

        Raises:
            UserError: the class cannot be called, its tables are not those of the features, or it cannot be trained
                privately; nothing is spent.
        """
        if smaller:
            raise UserError(
                f"algorithm={smaller.name} makes tables of dpfest's own models smaller, and model={self.name} makes "
                "its own: give it an option for that, and choose algorithm=dpsgd."
            )
        kind = load(self.target, "model.target", nn.Module, "torch.nn.Module", self.code)
        with _seeded(seed):
            with _named(f"{kind.__name__}({list(vocabularies)}, {numeric}, **{self.options})", self.target):
                model = kind(list(vocabularies), numeric, **self.options)
            try:
                _refuse_untrainable(model, vocabularies, numeric, len(bags), self.target)
            except UserError as error:
                raise UserError(f"model.target={self.target}: {error}") from error
        return model


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Give torch's own generators a seed, and their state back."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


@contextmanager
def _named(call: str, target: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"model.target={target}: {call} fails ({type(error).__name__}: {error}).") from error


def _refuse_untrainable(model: nn.Module, vocabularies: Sequence[int], numeric: int, bags: int, target: str) -> None:
    """Refuse a model that is not of these features, or that the library cannot train.

    The rows of a selection are counted by feature: table k must hold the rows of feature k. Made-up rows show which
    column a table looks up, and that examples do not mix.

    Raises:
        UserError: says what to change.
    """
    refuse(model_faults(model))
    _refuse_unsavable(model)
    tables = _tables(model)
    if [table.num_embeddings for table in tables.values()] != list(vocabularies):
        has = ", ".join(f"{name} of {table.num_embeddings:,}" for name, table in tables.items()) or "none"
        raise UserError(
            "one trainable table for each categorical feature is needed, in the order of the features, of "
            f"{', '.join(f'{size:,}' for size in vocabularies)} rows; there are {has}. A feature with two tables needs "
            "one of more columns: a row of it is counted, selected and noised once."
        )
    made_up = _MadeUp(vocabularies, numeric, bags)
    *features, _ = made_up(range(_ROWS))
    singles = len(vocabularies) - bags
    columns = {f"categorical[:, {place}]": column for place, column in enumerate(features[1].unbind(1))}
    columns |= {f"bags[{place}][0]": ids for place, (ids, _) in enumerate(features[2] if bags else ())}
    seen: dict[str, list[Tensor]] = {name: [] for name in tables}

    def look(name: str) -> Any:
        return lambda layer, args, kwargs: seen[name].append(args[0] if args else kwargs["input"])

    hooks = [table.register_forward_pre_hook(look(name), with_kwargs=True) for name, table in tables.items()]
    try:
        of_bags = f", {bags} bags" if bags else ""
        with _named(f"forward(numeric [{_ROWS}, {numeric}], categorical [{_ROWS}, {singles}]{of_bags})", target):
            logits = model(*features)
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.shape != (_ROWS,) or not logits.is_floating_point():
        what = f"a tensor {list(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UserError(f"forward must return one logit for each example, a tensor [{_ROWS}] here, and returns {what}.")
    for (name, ids), (column, values) in zip(seen.items(), columns.items(), strict=True):
        if not ids or not all(torch.equal(one.flatten(), values) for one in ids):
            raise UserError(
                f"the table {name} does not look up {column} as it is, and DP-FEST selects its rows by "
                "how often that feature has each value: give every feature its table, in the order of the features."
            )

    def losses(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(*batch[:-1]), batch[-1], reduction="none")

    dpfest.validate(model, losses, list(range(_ROWS)), collate_fn=made_up)


def _refuse_unsavable(model: nn.Module) -> None:
    """Refuse weights that are not, each once, the model's own parameters and buffers: all of them are released."""
    state, own = model.state_dict(), {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in state.items():
        if name not in own or not isinstance(value, Tensor) or value.data_ptr() != own[name].data_ptr():
            raise UserError(
                f"its state_dict() has {name}, which is no parameter or buffer of it: extra state and hooks would be "
                "released as weights are. Leave them out."
            )
    places = [value.data_ptr() for value in state.values() if value.numel()]
    if len(set(places)) < len(places):
        raise UserError("its state_dict() has two names for one tensor, and weights are written once: untie them.")


def _tables(model: nn.Module) -> dict[str, Any]:
    """Return the trainable tables by name, each weight once, in the order in which the library numbers their rows."""
    found: dict[int, tuple[str, nn.Module]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.weight.requires_grad:
            found.setdefault(id(layer.weight), (name, layer))
    return dict(found.values())


class _MadeUp:
    """Examples that no data decide, by their numbers."""

    def __init__(self, vocabularies: Sequence[int], numeric: int, bags: int) -> None:
        generator = torch.Generator().manual_seed(0)
        held = [torch.randint(size, (_ROWS, 2), generator=generator) for size in vocabularies]
        singles = len(vocabularies) - bags
        self._columns, self._bags = [values[:, 0] for values in held[:singles]], held[singles:]
        self._numbers = torch.randn(_ROWS, numeric, generator=generator)

    def __call__(self, examples: Sequence[int]) -> tuple[Any, ...]:
        """Return a batch of these examples: see ``clicks.Batch``. Bags hold one value and two, in turns."""
        chosen = torch.tensor(examples)
        columns = [column[chosen] for column in self._columns]
        categorical = torch.stack(columns, 1) if columns else torch.empty(len(chosen), 0, dtype=torch.int64)
        sizes = 1 + chosen % 2
        starts, filled = sizes.cumsum(0) - sizes, torch.stack([torch.ones_like(sizes), sizes - 1], 1).bool()
        bags = [(values[chosen][filled], starts) for values in self._bags]
        return self._numbers[chosen], categorical, *([bags] if bags else []), chosen % 2.0
