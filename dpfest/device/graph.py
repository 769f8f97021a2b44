"""Passes over padded batches as graphs: a GPU is given a model's operations by one launch, in place of one for each.

A graph holds the forward pass, and the backward pass to the outputs of trainable layers, as a
:class:`~dpfest.gradients.recording.Recording` makes them; it reads weights where they lie, and a batch where the graph
was made. To start it again takes a copy of the batch's tensors into that place; padding then holds rows of earlier
batches. What follows (look-ups, norms, sums, noise, updates) is launched as ever, on the rows of the batch's own
examples.

Python runs while a graph is made, and so do the checks of :class:`~dpfest.gradients.validation.StateWatch`: operations
on a GPU that wrote into the model would have been seen then. Every 64th step runs eagerly, with its checks, and must
give the graph's bits. A pass that cannot be a graph (it waits for the GPU, its shapes depend on values) runs eagerly;
so do those that draw random numbers, those of lazy noise, which look-ups draw, and all under DPFEST_DEVICE_GRAPHS=0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

from dpfest.errors import UserError
from dpfest.gradients.capture import Recorder
from dpfest.gradients.padding import first_of, held_at
from dpfest.gradients.recording import Recording

_CHECK_EVERY = 64  # steps


class Graphs:
    """The graphs of a model's passes, one for each shape of a padded batch.

    Args:
        recorder: of the model.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._passes: dict[Hashable, _Pass | None] = {}
        self._refused = False

    def record(self, batch: Any, examples: np.ndarray, step: int, capacity: int) -> Recording | None:
        """Return the recording of a padded micro-batch by a graph; None where it has to run eagerly.

        The first pass of a shape does: it shows whether the model draws, and readies what a graph must find ready.

        Args:
            batch: of tensors that count the examples.
            examples: their identities.
            step: step number.
            capacity: number of examples to which it is padded.

        Raises:
            UserError: a step that is checked gives other bits than the graph.
        """
        recorder, leaves = self._recorder, tree_leaves(batch)
        if self._refused or recorder.draws is not False or recorder.lazy is not None:
            return None
        key = (capacity, *((one.shape[1:], one.dtype) for one in leaves), str(tree_flatten(batch)[1]))
        if key not in self._passes:
            self._passes[key] = None
            return None
        made = self._passes[key]
        if made is None or made.state != _state_of(recorder):
            made = self._passes[key] = self._made(batch, examples, step, capacity)
        if made is None:
            return None
        recording = made.start(batch, examples, step)
        if step % _CHECK_EVERY == 0:
            self._check(recording, batch, examples, step, capacity)
        return recording

    def _made(self, batch: Any, examples: np.ndarray, step: int, capacity: int) -> _Pass | None:
        try:
            return _Pass(self._recorder, batch, examples, step, capacity)
        except RuntimeError as error:
            warnings.warn(
                f"The model's passes cannot be made a graph, so each operation is launched by itself: {error}",
                stacklevel=2,
            )
            self._refused = True
            return None

    def _check(self, recording: Recording, batch: Any, examples: np.ndarray, step: int, capacity: int) -> None:
        eager = _run(self._recorder, batch, examples, step, held_at(batch, examples, capacity))
        if not all(torch.equal(*both) for both in zip(results(recording), results(eager), strict=True)):
            raise UserError(
                "The model computes something else than when its passes were made a graph: they depend on Python "
                "values that change between steps. Keep these in tensors, or set DPFEST_DEVICE_GRAPHS=0."
            )


class _Pass:
    """One shape's graph.

    Attributes:
        state: what the model was when it was made.
    """

    def __init__(self, recorder: Recorder, batch: Any, examples: np.ndarray, step: int, capacity: int) -> None:
        self.state = _state_of(recorder)
        held = held_at(batch, examples, capacity)
        self._batch, _ = held
        self._recording, self._start = captured(lambda: _run(recorder, batch, examples, step, held))

    def start(self, batch: Any, examples: np.ndarray, step: int) -> Recording:
        """Return a recording of another batch, whose tensors the next start overwrites."""
        for held, now in zip(tree_leaves(self._batch), tree_leaves(batch), strict=True):
            held[: len(examples)].copy_(now)
        self._start()
        return self._recording.of_another(batch, examples, step)


def captured(run: Callable[[], Recording]) -> tuple[Recording, Callable[[], None]]:
    """Return a recording, and what computes its tensors again from the same places.

    Raises:
        RuntimeError: it cannot be a graph.
    """
    run()  # what kernels read besides tensors is on the GPU after it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads read batches meanwhile
        made = run()
    return made, graph.replay


def results(recording: Recording) -> Iterator[Tensor]:
    """Yield what passes computed of a batch's own examples: losses, what each call took and gave, and its gradient."""
    yield recording.losses
    for call in recording.calls():
        own = first_of(call, len(recording))
        yield from (own.input, own.output, own.gradient)


def _run(recorder: Recorder, batch: Any, examples: np.ndarray, step: int, held: tuple[Any, np.ndarray]) -> Recording:
    recording = Recording(recorder, backward=True)
    recording.in_graph = True
    recording.forward(batch, examples, step, held)
    recording.check()
    recording.propagate()
    return recording


def _state_of(recorder: Recorder) -> tuple[Any, ...]:
    """Return where the model's tensors lie, and whether its modules train."""
    held = recorder.held.look().by_name.items()
    places = [(name, one.data_ptr()) for name, one in held if one.layout is torch.strided]
    return (*places, *(module.training for module in recorder.model.modules()))
