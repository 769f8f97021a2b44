"""The weights that a run releases: written whole, or in pieces where no process holds them all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pipelines.runs.release import described

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
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for piece in pieces:
            file.write(piece.numpy().tobytes())
