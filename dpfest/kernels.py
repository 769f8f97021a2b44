"""Compiled loops (``kernels.c``) for what numpy and torch can do only in many passes over memory.

Each has a reference in Python, which runs where no compiler was at hand when dpfest was installed, on GPUs, and under
``DPFEST_COMPILED=0``. Tests hold the loops to their references: bit for bit where noise is drawn.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest.compiled import load

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Whole32 = NDArray[np.int32]
Words = NDArray[np.uint64]

_VERSION = 4  # of kernels.c, as its dpfest_kernels_version() says
_POINTER, _WHOLE, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_SIGNATURES: dict[str, list[Any]] = {
    "chacha20": [_POINTER, _POINTER, ctypes.c_uint64, _POINTER, _WHOLE, _POINTER, *[_WHOLE] * 3],
    "nearest_normals": [_POINTER, _WHOLE, _REAL, _POINTER, *[_REAL] * 3, *[_POINTER] * 4],
    **{
        f"add_units_{values}_{units}": [_POINTER, _POINTER, _WHOLE, _REAL, _POINTER]
        for values in ("float", "double")
        for units in ("double", "int")
    },
    "filter_units": [_POINTER, _WHOLE, _POINTER, _WHOLE, _WHOLE, _POINTER, *[_WHOLE] * 3],
    "group_lookups": [_POINTER, _POINTER, _WHOLE, _POINTER, _WHOLE, _WHOLE, *[_POINTER] * 8],
    "clipped_map": [_POINTER, _POINTER, *[_WHOLE] * 3, _REAL, _REAL, _POINTER, _POINTER],
    "locate": [_POINTER, _WHOLE, _POINTER, _WHOLE, _POINTER],
    "add_squared_norms_float": [_POINTER] * 3,
    "add_squared_norms_double": [_POINTER] * 3,
    "add_weighted_sums_float_float": [_POINTER] * 4,
    "add_weighted_sums_float_double": [_POINTER] * 4,
    "add_weighted_sums_double_double": [_POINTER] * 4,
}
_BYTES = ctypes.c_char * 0
_NAMES = {torch.float32: "float", torch.float64: "double"}


library: Any = load(
    Path(__file__).with_name("_kernels"), _SIGNATURES, _VERSION, counts=("nearest_normals", "group_lookups")
)
"""The compiled library, or None."""


def build() -> str:
    """Describe what computes, the compiled library by its content, or Python: sums differ in their last bits."""
    if library is None:
        return "loops in Python"
    return f"compiled loops {hashlib.sha256(Path(library._name).read_bytes()).hexdigest()[:8]}"


def serve(*tensors: Tensor) -> bool:
    """Return whether there are compiled loops for these tensors: whole numbers, or reals all of one type, on a CPU."""
    types = {tensor.dtype for tensor in tensors}
    return (
        library is not None
        and len(types) == 1
        and types <= {torch.int64, *_NAMES}
        and all(tensor.device.type == "cpu" for tensor in tensors)
    )


def chacha20(
    key: bytes, counters: Words, nonce: int | Words, out: Words, *, parity: int, pair: int, block: int
) -> None:
    """Write ChaCha20's blocks to contiguous ``out [8 n]``; see :func:`dpfest.noise.chacha.blocks`.

    Args:
        key: 32 bytes.
        counters: words 12 and 13 of each block's input, contiguous ``[n]``.
        nonce: words 14 and 15, of all or of each ``[n]``.
        out: room for the words.
        parity: word w of block i goes to place ``(w % 2) parity + (w // 2) pair + i block``.
        pair: see ``parity``.
        block: see ``parity``.
    """
    words = np.frombuffer(key, dtype="<u4").astype(np.uint32)
    common, of_each = (nonce, None) if isinstance(nonce, int) else (0, np.ascontiguousarray(nonce))
    library.dpfest_chacha20(
        *(words.ctypes.data, counters.ctypes.data, common, None if of_each is None else of_each.ctypes.data),
        *(len(counters), out.ctypes.data, parity, pair, block),
    )


def nearest_normals(
    words: Whole,
    count: int,
    deviation: float | Floats,
    *,
    most: float,
    least: float,
    highest: float,
    units: Floats,
    unsure: tuple[Whole, Floats, Floats],
) -> int:
    """Write the nearest whole numbers to normal variates to ``units``; return how many are unsure.

    Args:
        words: signed words of the p radii, then of the p angles, contiguous ``[2 p]``.
        count: number of variates, 2 p or 2 p - 1.
        deviation: standard deviation of all, or of each, ``[count]``.
        most: distance from its unit beyond which a variate is unsure.
        least: bound of ln u below which a pair is unsure.
        highest: bound of ln u above which a pair is unsure.
        units: room for the p cosines, then the p sines, ``[2 p]``.
        unsure: room for the place of each unsure variate, its distance and its ln u, each ``[2 p]``.
    """
    common, of_each = _one_or_each(deviation)
    return int(
        library.dpfest_nearest_normals(
            _at(words), count, common, of_each and _at(of_each[0]), most, least, highest, *map(_at, (units, *unsure))
        )
    )


def add_units(values: NDArray[np.float32 | np.float64], units: Floats | Whole32, size: float | Floats) -> None:
    """Round contiguous ``values [n]`` to multiples of ``size``, one or one of each, and add ``units [n]`` of it."""
    types = ["float" if values.dtype == np.float32 else "double", "int" if units.dtype == np.int32 else "double"]
    function = getattr(library, "_".join(["dpfest_add_units", *types]))
    common, of_each = _one_or_each(size)
    function(_at(values), _at(units), len(values), common, of_each and _at(of_each[0]))


def filter_units(units: Floats, past: Whole32, first: int, slot: int, weights: Floats, bits: int) -> None:
    """See ``dpfest.step.correlated._filter_units``."""
    slots, count = past.shape
    library.dpfest_filter_units(_at(units), len(units), _at(past), count, first, _at(weights), slots, slot, bits)


def group_lookups(row: Tensor, example: Tensor, sizes: Sequence[int], merged: bool) -> tuple[Tensor, ...]:
    """See ``dpfest.gradients.embeddings._grouped``."""
    n, pairs = len(row), ctypes.c_int64()
    lengths = (_WHOLE * len(sizes))(*sizes)
    order, starts, example_of, row_of, rows, counts, *keys = torch.empty(8, n, dtype=torch.int64)
    row, example = row.contiguous(), example.contiguous()
    found = library.dpfest_group_lookups(
        *(row.data_ptr(), example.data_ptr(), n, lengths, len(sizes), merged),
        *(part.data_ptr() for part in (order, starts, example_of, row_of, rows, counts, keys[0])),
        ctypes.byref(pairs),
    )
    return (
        order,
        *(part[: pairs.value] for part in (starts, example_of)),
        rows[:found],
        row_of[: pairs.value],
        counts[:found],
    )


def clipped_map(example: Tensor, row_of: Tensor, examples: int, rows: int, clipping_norm: float, grid: float) -> Tensor:
    """See :meth:`dpfest.gradients.contributions.Contributions.clipped`."""
    example, row_of = example.contiguous(), row_of.contiguous()
    weight, sums = torch.empty(examples, dtype=torch.float64), torch.empty(rows, dtype=torch.float64)
    library.dpfest_clipped_map(
        *(example.data_ptr(), row_of.data_ptr(), len(example), examples, rows, clipping_norm, grid),
        *(weight.data_ptr(), sums.data_ptr()),
    )
    return sums


def locate(wanted: Tensor, rows: Tensor) -> Tensor:
    """Return the position of each of sorted ``wanted [n]`` in sorted distinct ``rows``, -1 if absent, ``[n]``."""
    wanted, rows = (one.to(torch.int64).contiguous() for one in (wanted, rows))
    position = torch.empty_like(wanted)
    library.dpfest_locate(wanted.data_ptr(), len(wanted), rows.data_ptr(), len(rows), position.data_ptr())
    return position


class _Pairs(ctypes.Structure):
    _fields_ = [
        ("tables", _WHOLE),
        *((name, _POINTER) for name in ("ends", "dims", "strides", "firsts", "bounds")),
        *((name, _POINTER) for name in ("example", "source", "row_of", "position")),
    ]


class Pairs:
    """The sorted (row, example) pairs of a micro-batch.

    Args:
        ends: end of each table's pairs.
        firsts: number that the first row of each table's gradients has.
        bounds: rank of each table's first survivor among all.
        example, source, row_of: each pair's example, row of the gradients, and row among the distinct ones, ``[p]``.
        position: of each distinct row among the survivors, -1 if it is none; None if all survive.
    """

    def __init__(
        self,
        *,
        ends: Sequence[int],
        firsts: Sequence[int],
        bounds: Sequence[int],
        example: Tensor,
        source: Tensor,
        row_of: Tensor,
        position: Tensor | None,
    ) -> None:
        self._tables = len(ends)
        self._ends, self._firsts, self._bounds = map(self._column, (ends, firsts, bounds))
        self._tensors = [one.contiguous() for one in (example, source, row_of)]
        self._position = position

    def add_squared_norms(self, gradients: Sequence[Tensor], squared_norms: Tensor) -> None:
        """See :meth:`dpfest.gradients.embeddings.MaskedLookups.add_squared_norms`.

        Args:
            gradients: of each table, ``[*, dim]``, of one type, the norms'; a row's values lie side by side.
            squared_norms: ``[b]``.
        """
        function = getattr(library, f"dpfest_add_squared_norms_{_NAMES[squared_norms.dtype]}")
        function(self._of(gradients), _pointers(gradients), squared_norms.data_ptr())

    def add_weighted_sums(self, gradients: Sequence[Tensor], weight: Tensor | None, tables: Sequence[Tensor]) -> None:
        """See :meth:`dpfest.gradients.embeddings.MaskedLookups.add_weighted_sums`.

        Args:
            gradients: as for norms, and of the weight's type.
            weight: ``[b]``, or None for 1.
            tables: each table's sums, contiguous, all of float32 or all of float64.
        """
        types = [_NAMES[one.dtype] for one in (gradients[0], tables[0])]
        function = getattr(library, "_".join(["dpfest_add_weighted_sums", *types]))
        at = None if weight is None else weight.data_ptr()
        function(self._of(gradients), _pointers(gradients), at, _pointers(tables))

    def _of(self, gradients: Sequence[Tensor]) -> Any:
        dims, strides = ([of(one) for one in gradients] for of in (lambda g: g.shape[1], lambda g: g.stride(0)))
        self._shapes = [self._column(dims), self._column(strides)]
        return ctypes.byref(
            _Pairs(
                self._tables,
                *(ctypes.addressof(one) for one in (self._ends, *self._shapes, self._firsts, self._bounds)),
                *(one.data_ptr() for one in self._tensors),
                None if self._position is None else self._position.data_ptr(),
            )
        )

    def _column(self, values: Sequence[int]) -> Any:
        return (_WHOLE * self._tables)(*values[: self._tables])


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (_POINTER * len(tensors))(*(one.data_ptr() for one in tensors))


def _at(array: NDArray[Any]) -> Any:
    """Return a writable contiguous array as an argument of the library, in a third of the time of array.ctypes.data."""
    return _BYTES.from_buffer(array.data)


def _one_or_each(value: float | Floats) -> tuple[float, tuple[Floats] | None]:
    """Return the value of all, or 1 and the contiguous ones of each."""
    return (value, None) if isinstance(value, float) else (1.0, (np.ascontiguousarray(value),))
