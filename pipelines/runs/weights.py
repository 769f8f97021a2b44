"""The weights that a run releases: written whole, or in pieces where no process holds them all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dpfest.errors import UserError
from pipelines.runs.recount import AGAIN

_NAMES = {torch.float32: "F32", torch.float64: "F64"}


@dataclass(frozen=True)
class Weights:
    """Weights to be released.

    Attributes:
        described: type and shape of each tensor by name, as in ``float32 [60, 5]``.
        write: writes them as safetensors.
    """

    described: dict[str, str]
    write: Callable[[Path], None]


def whole_weights(model: nn.Module) -> Weights:
    """Return the weights of a model in this process."""
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    return Weights(described(tensors), lambda path: save_file(tensors, path))


def write_pieces(path: Path, dtype: torch.dtype, shapes: Mapping[str, Sequence[int]], pieces: Iterable[Tensor]) -> None:
    """Write tensors of one type as safetensors, byte for byte as :func:`safetensors.torch.save_file` does.

    Args:
        path: file to write.
        dtype: float32 or float64.
        shapes: shape of each tensor by name, in ascending order of names.
        pieces: their values end to end, contiguous, in pieces of any size.
    """
    header, start = {}, 0
    for name, shape in shapes.items():
        end = start + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = _padded(json.dumps(header, separators=(",", ":")))
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for piece in pieces:
            file.write(piece.numpy().tobytes())


def refuse_other_weights(path: Path, listed: Mapping[str, str] | None) -> None:
    """Refuse weights with other tensors than the summary lists, or with metadata."""
    if (listed is None) == path.exists():
        raise UserError(f"{path} and summary.json do not agree on whether weights were kept. {AGAIN}")
    if listed is None:
        return
    if not isinstance(listed, Mapping):
        raise UserError(f"{path.with_name('summary.json')} lists no tensors by name. {AGAIN}")
    try:
        with safe_open(path, framework="pt") as weights:
            metadata = weights.metadata() or {}
            stored = {}
            for name in weights.keys():  # noqa: SIM118
                tensor = weights.get_tensor(name)
                stored[name] = _in_words(tensor)
                if not bool(tensor.isfinite().all()):
                    raise UserError(f"{path} has values in {name} that are not finite: the training diverged.")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}). {AGAIN}") from error
    _refuse_padded_header(path)
    if set(metadata) - {"format"}:
        raise UserError(f"{path} contains metadata ({', '.join(metadata)}), which may not be published.")
    for name in sorted({*stored, *listed}):
        if stored.get(name) != listed.get(name):
            raise UserError(
                f"{path} has {stored.get(name, 'no tensor')} for {name}, and summary.json has "
                f"{listed.get(name, 'none')}."
            )


def _refuse_padded_header(path: Path) -> None:
    """Refuse a header with more in it than its tensors: spaces, repeated keys."""
    with path.open("rb") as file:
        text = file.read(int.from_bytes(file.read(8), "little"))
    if text != _padded(json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)):
        raise UserError(f"{path} has a header that no run writes. {AGAIN}")


def _padded(header: str) -> bytes:
    """Return a header's bytes, filled up with spaces so that the tensors begin at a multiple of 8."""
    text = header.encode()
    return text + b" " * (-len(text) % 8)


def described(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return type and shape of each tensor by name, as in ``float32 [60, 5]``."""
    return {name: _in_words(weight) for name, weight in sorted(weights.items())}


def _in_words(weight: Tensor) -> str:
    return f"{str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}"
