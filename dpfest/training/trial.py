"""Runtime check that examples do not mix: clipped sums over parts of a batch must add up to that of the whole.

Clipping bounds an example's influence only if its gradient depends on that example alone. Gradients cannot reveal
mixing (detached batch means, in-batch negatives by index, frozen attention, padding to the batch's longest example and
rescaling hooks leave them in place), but values can: for the noiseless clipped sum S, and for the touched rows,

    S(A and B) = S(A) + S(B)

for any two parts of a batch, each collated separately; under a unit of privacy (:mod:`dpfest.gradients.units`), parts
of whole units, since only other units must not count. Sound models satisfy it up to rounding; in-batch mixing violates
it by orders of magnitude. :class:`dpfest.training.loop.PrivateTraining` runs the check on the first batch of two
examples or more, on a sample at steps 1, 8, 64, ..., and on steps drawn from the key; mixing under a condition that no
checked batch meets goes undetected. The same check compares a small part's unclipped gradient with autograd's.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from dpfest.errors import UserError
from dpfest.gradients.batch import LogicalBatch
from dpfest.gradients.capture import Recorder
from dpfest.gradients.clipped_sum import ClippedSum
from dpfest.gradients.reading import Batch, DatasetReader, MicroBatch, foreign_state, request_of
from dpfest.gradients.sites import resolved
from dpfest.gradients.tables import Survivors, Table
from dpfest.gradients.units import weighted
from dpfest.gradients.validation import StateWatch, check_training
from dpfest.noise.alone import PROCESS_STATE
from dpfest.noise.key import NoiseKey
from dpfest.step.lazy import ReadsOfTables

_WRONG_GRADIENT = 0.1  # of its norm; half precision stays a tenth of it
_WATCHED_ROWS = 1 << 10  # rows per table whose content is compared; all other tensors are compared in full

Microbatches = Sequence[MicroBatch]


def check_batch(recorder: Recorder, clipping_norm: float, batch: Batch, *, whole_tables: bool = False) -> None:
    """Refuse a model and a loss whose examples mix, or that store the batch, as far as this batch shows it.

    Args:
        recorder: of the model and the loss.
        clipping_norm: ``C2``; inf if nothing is clipped.
        batch: a batch whose first part is checked against the others, which it consists of.
        whole_tables: compare the content of all table rows, not of a sample: O(rows).

    Raises:
        UserError: the clipped sums do not add up, the look-ups differ, the gradient is not the loss's, the forward pass
            writes into the model, or it draws from numpy's or Python's generators.
    """
    parts = batch.parts
    generators = foreign_state()
    recorder.draws = None  # detect draws again: only then are the model's own generators seen
    if lazy := recorder.lazy:
        # Apply pending noise before rows are watched: to those that the step reads, in its order. Noise must not depend
        # on what is checked, or a step that is taken again would draw another.
        lazy.use(recorder.key)
        with ReadsOfTables(lazy):
            LogicalBatch(recorder, batch.microbatches, batch.step).contributions()
    watch = StateWatch(recorder.held, {} if whole_tables else _watched_rows(recorder, batch.step))
    clipping_norm = _finite(clipping_norm)
    all_sums, touched = _sums(recorder, parts, batch.step, [clipping_norm], other_norms=True)
    watch.check()
    if foreign_state() != generators:
        raise UserError(
            "loss_fn draws from numpy's or Python's random numbers, which the noise key does not cover. Draw with "
            "torch: its random numbers are then drawn by example, from the key."
        )
    if not _same_pairs(touched):
        raise UserError(
            "An example looks up other rows when it is run among others: its look-ups depend on its batch (in-batch "
            "negatives, draws shared by the batch, a collate_fn that reorders, a data set whose items depend "
            "on what was read before). Make them depend on the example alone, in the order in which it was read."
        )
    missed = {norm: sums for norm, sums in all_sums.items() if not _adds_up(sums, recorder)}
    for norm in _missed_in_double(recorder, parts, batch.step, {norm: sums[0] for norm, sums in missed.items()}):
        raise UserError(
            "The examples of a batch mix: the clipped sums of its parts miss that of the whole by "
            f"{_defect(missed[norm]) / norm:.2g} clipping norms. Each example's loss must depend on itself alone: look "
            "for statistics of the batch (a mean, a maximum, class frequencies, len(batch)), in-batch negatives (roll, "
            "flip), attention or sorting across examples (in collate_fn, too), padding that changes the result, "
            "counters that the forward pass advances, hooks that rescale gradients, items that depend on what was "
            "read before."
        )
    _check_gradient(recorder, parts[-1][:1], batch.step)


def check_alone(recorder: Recorder, batch: Batch) -> None:
    """Make the check where no step relies on what was computed before it; the same refusals."""
    resolved(lambda: check_batch(recorder, math.inf, batch, whole_tables=True))


def _sums(
    recorder: Recorder,
    parts: Sequence[Microbatches],
    step: int,
    clipping_norms: Sequence[float],
    *,
    other_norms: bool = False,
) -> tuple[dict[float, list[ClippedSum]], list[Any]]:
    """Return each part's noiseless clipped sum over the rows that the first part touches, and its look-ups.

    The sums are by clipping norm: those given and, with ``other_norms``, one at which clipping binds for most examples
    and one at which it binds for none. Clipping hides a common factor, such as a division by the batch's mean loss,
    while it binds for all, and weights change.
    """
    sums: dict[float, list[ClippedSum]] = {norm: [] for norm in clipping_norms}
    touched: list[Any] = []
    survivors = None
    for part in parts:
        logical = LogicalBatch(recorder, part, step, pads=not touched)  # the whole as steps run it, parts as they are
        pairs = logical.contributions()
        survivors = survivors or Survivors(recorder.layout, pairs.rows)
        for total in _clipped(recorder, logical, survivors, list(sums)):
            sums[total.clipping_norm].append(total)
        if other_norms and not touched:
            others = _other_norms(torch.cat(sums[clipping_norms[0]][0].example_norms), clipping_norms[0])
            sums |= {total.clipping_norm: [total] for total in _clipped(recorder, logical, survivors, others)}
        rows, example = pairs.rows.cpu().numpy()[pairs.row_of.cpu().numpy()], pairs.example.cpu().numpy()
        touched.append(np.stack([logical.identities[example], rows]))
    return sums, touched


def _other_norms(example_norms: Tensor, clipping_norm: float) -> list[float]:
    finite = example_norms[example_norms.isfinite()]
    if not len(finite):
        return []
    binding, loose = float(finite.median()) / 2, 2 * float(finite.max())
    return [*([binding] if 0 < binding < clipping_norm else []), *([loose] if loose > clipping_norm else [])]


def _check_gradient(recorder: Recorder, part: Microbatches, step: int) -> None:
    """Refuse a model whose gradient, from activations and output gradients, is not that of its loss.

    Of at most one micro-batch: the norms of several rows' gradients would not add up to that of their sum. Examples
    whose gradient overflows (weights that diverged, inputs out of range) are left out: they count as zero in every
    step, so nothing of them can be compared. That is no error, since whether a run fails must not depend on its
    examples where a private search goes on without it.

    Raises:
        UserError: says what can make it another one.
    """
    batch = LogicalBatch(recorder, part, step)
    (ours,) = _clipped(recorder, batch, Survivors(recorder.layout, batch.contributions().rows), [math.inf])
    finite = torch.cat([torch.empty(0, device=recorder.device), *ours.example_norms]).isfinite()
    layers = [layer for layer in recorder.layers.values() if isinstance(layer, Table)]
    sparse, padding = [layer.sparse for layer in layers], {id(layer.weight): layer.padding_idx for layer in layers}
    difference, total = 0.0, 0.0
    try:
        for layer in layers:
            layer.sparse = getattr(layer, "mode", "sum") != "max"  # no table-sized gradient where PyTorch has one
        for one in part:
            with recorder.drawing(step, one.examples) if recorder.draws else nullcontext():
                losses, groups = recorder.loss_fn(recorder.model, one.data), recorder.groups(one)
            counted = weighted(losses, groups)[finite if groups is None else finite[groups.of]]
            gradients = torch.autograd.grad(counted.sum(), list(recorder.trainable.values()), allow_unused=True)
            for parameter, gradient in zip(recorder.trainable.values(), gradients, strict=True):
                if gradient is None:
                    continue
                if parameter in ours.dense:
                    total += float(gradient.double().square().sum())
                    ours.dense[parameter].sub_(gradient)
                else:
                    values = (gradient.coalesce().values() if gradient.is_sparse else gradient).double()
                    if not gradient.is_sparse and (row := padding[id(parameter)]) is not None:
                        values[row] = 0  # never trained
                    total += float(values.square().sum())
                    difference -= float(values.square().sum())
    finally:
        for layer, before in zip(layers, sparse, strict=True):
            layer.sparse = before
    difference = abs(difference + float(ours.flat_rows.double().square().sum()))
    difference += float(ours.flat_dense.double().square().sum())
    if math.isfinite(total) and math.isfinite(difference) and difference > _WRONG_GRADIENT**2 * total:
        raise UserError(
            "The gradient that would be clipped is not the loss's: it misses it by "
            f"{math.sqrt(difference / total) if total else math.inf:.2g} of its norm. Look for a forward hook that "
            "changes a trainable layer's output, a replaced forward method of one, or a second derivative in the loss "
            "(gradient penalty)."
        )


def _clipped(
    recorder: Recorder, batch: LogicalBatch, survivors: Survivors, clipping_norms: Sequence[float]
) -> list[ClippedSum]:
    """Return the clipped sum at each norm, of one pass over the batch."""
    totals = [ClippedSum(recorder, survivors, norm) for norm in clipping_norms]
    for recording in batch.recordings() if totals else ():
        for total in totals:
            total.add(recording)
    return totals


def _finite(clipping_norm: float) -> float:
    return clipping_norm if math.isfinite(clipping_norm) else 1.0


def _same_pairs(touched: Sequence[Any]) -> bool:
    whole, halves = touched[0], np.concatenate(touched[1:], axis=1)
    return whole.shape == halves.shape and all(
        np.array_equal(*(pairs[:, np.lexsort(pairs)][row] for pairs in (whole, halves))) for row in (0, 1)
    )


def _defect(sums: Sequence[ClippedSum]) -> float:
    whole, *halves = ([total.flat_dense, total.flat_rows] for total in sums)
    missing = [w.double() - sum(h.double() for h in parts) for w, *parts in zip(whole, *halves, strict=True)]
    return math.sqrt(sum(float(one.square().sum()) for one in missing))


def _adds_up(sums: Sequence[ClippedSum], recorder: Recorder) -> bool:
    return _defect(sums) <= _tolerance(recorder) * max(sums[0].norms, 1e-300)


def _tolerance(recorder: Recorder) -> float:
    """Return the allowed difference of sums, relative to the sum of the norms.

    Rounding of deep models stays a hundred times below; mixed examples exceed it.
    """
    return 1e-5 if recorder.dtype == torch.float32 else 1e-9


def _missed_in_double(
    recorder: Recorder, parts: Sequence[Microbatches], step: int, wholes: Mapping[float, ClippedSum]
) -> list[float]:
    """Return the clipping norms at which the sums do not add up in float64 either: mixing is not rounding.

    A unit at the kink of its ReLU may take either side in float32. A loss function that reads another model than its
    argument has no gradients here, so the norms of ``wholes``, the sums over all parts, must be reproduced: of the
    examples whose gradient does not overflow in float32.
    """
    if not wholes or recorder.dtype == torch.float64:
        return list(wholes)
    model = copy.deepcopy(recorder.model).double()
    precise = Recorder(model, recorder.loss_fn, recorder.key, recorder.unit)
    precise.sites = recorder.sites
    wide = [[part._replace(data=tree_map(_double, part.data)) for part in each] for each in parts]
    try:
        sums = _sums(precise, wide, step, list(wholes))[0]
    except (RuntimeError, TypeError):  # the loss casts to float32 itself
        return list(wholes)
    return [norm for norm, whole in wholes.items() if not _reproduced(whole, norm, sums[norm], precise)]


def _reproduced(whole: ClippedSum, clipping_norm: float, sums: Sequence[ClippedSum], precise: Recorder) -> bool:
    finite = torch.cat(whole.example_norms).isfinite()
    norms = float(torch.cat(sums[0].example_norms).clamp_max(clipping_norm)[finite].sum())
    return _adds_up(sums, precise) and whole.norms > 0 and abs(norms / whole.norms - 1) < 0.1


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _watched_rows(recorder: Recorder, step: int) -> dict[str, Tensor]:
    """Return a sample of each table's rows, whose content is compared."""
    generator, rows = random.Random(step), {}
    for name, table in recorder.tables.items():
        size = len(table.weight)
        sample = sorted(generator.sample(range(size), min(_WATCHED_ROWS, size)))
        rows[f"{name}.weight"] = torch.tensor(sample, dtype=torch.int64, device=table.weight.device)
    return rows


@PROCESS_STATE
def validate(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> None:
    """Check that a model, a loss and optimisers can be trained privately; spends and changes nothing.

    Args:
        model: see :class:`dpfest.gradients.capture.Recorder` for what it may contain.
        loss_fn: ``loss_fn(model, batch)`` runs the model and returns per-example losses ``[b]``.
        batch: the argument of ``loss_fn``, with examples along the first dimension of every tensor; with ``collate_fn``
            a list of examples, so that parts are collated (and padded) separately. At least two examples; 16 reveal
            more.
        optimizers: together they must cover all trainable parameters; None to leave them unchecked.
        collate_fn: turns a list of examples into the argument of ``loss_fn``.

    Returns:
        None for a model that is sound as far as this batch shows it.

    Raises:
        UserError: a ``ValueError`` that names every layer at fault, and the remedy of each.
    """
    check_training(model, loss_fn, optimizers)
    key = NoiseKey.fresh()
    recorder = Recorder(model, loss_fn, key)
    examples = np.arange(_count(batch) if collate_fn is None else len(batch))
    if len(examples) < 2:
        raise UserError("validate() needs a batch of two examples or more: one alone cannot show whether they mix.")
    for step in range(2):
        request = request_of(key, step, examples, check=len(examples))
        if collate_fn is not None:
            read = DatasetReader(batch, collate_fn)
            parts = [read(part, request.seed) for part in request.parts]
        else:
            parts = [[MicroBatch(part, _rows(batch, part))] for part in request.parts]
        check_alone(recorder, Batch(step, parts[0], tuple(parts)))


def _count(batch: Any) -> int:
    counts = {len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()}
    if len(counts) != 1:
        raise UserError(
            f"The tensors of the batch count {', '.join(map(str, sorted(counts))) or 'no'} examples: each must have "
            "the examples along its first dimension. Otherwise give collate_fn and a list of examples."
        )
    return counts.pop()


def _rows(batch: Any, indices: Any) -> Any:
    chosen = torch.from_numpy(indices)
    return tree_map(
        lambda leaf: leaf[chosen.to(leaf.device)] if isinstance(leaf, Tensor) and leaf.dim() else leaf, batch
    )
