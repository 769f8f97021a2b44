"""What the passes so far have shown of a model's calls: which count examples, and which parameters are used elsewhere.

A tensor counts the examples if its first dimension is as long as the batch. Another length can coincide with the
batch's once, and booking what all examples share on single examples would break the guarantee. So a place in the model
is remembered: where the lengths differed in any pass, the tensor is one that examples share, for good. The first step
runs a batch and its parts (:mod:`dpfest.training.trial`), of different sizes, before anything is released.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from dpfest.errors import UserError

_MOST = 100


class Again(BaseException):
    """Ends a pass that has to be run again, now that more is known; no model's ``except`` catches it."""


class Ambiguous(UserError):
    """A place was taken to count examples, and does not; what was computed with it must not be used."""


class Sites:
    """What is known of the places in a model where tensors are used; shared by all passes over it.

    Attributes:
        tracking: whether passes must follow parameters outside of the calls of their layers.
        open: names of the parameters that are used outside of recorded calls.
        complete: whether a first pass was made, forward and back.
        by_function: whether rows are looked up by functions, which passes must then follow to see them.
        drawn_once: numbers of the random operations that draw once for all examples.
        in_graph: names of the layers whose parameters autograd follows, as some call of theirs is not an example's own.
        slow: what takes a backward pass for each example; a warning has named it.
        plain: places of functions that cannot be run again example by example.
    """

    def __init__(self) -> None:
        self.tracking, self.complete = True, False
        self.by_function = False
        self.drawn_once: set[int] = set()
        self.open: set[str] = set()
        self.in_graph: set[str] = set()
        self.slow: set[str] = set()
        self.plain: set[Hashable] = set()
        self._shared: set[Hashable] = set()
        self._counted: set[Hashable] = set()

    def counts(self, site: Hashable, length: int, examples: int) -> bool:
        """Return whether a dimension of this length, at this place, counts the examples.

        Raises:
            Ambiguous: in another pass it seemed to, and here it does not. Asked again, the answer is that it does not.
        """
        if site in self._shared:
            return False
        if length == examples:
            if examples > 1:  # of a single example all that is shared is its own
                self._counted.add(site)
            return True
        self._shared.add(site)
        if site in self._counted:
            raise Ambiguous(
                f"What {_place(site)} takes has as many entries as one batch has examples, and {length} in a batch of "
                f"{examples}: examples share it. Expand it to the batch, as positions.expand(len(ids), -1)."
            )
        return False

    def settle(self) -> None:
        """Take a first pass for complete: later ones follow parameters only where it found any use outside of calls."""
        self.complete, self.tracking = True, self.others

    @property
    def others(self) -> bool:
        """Whether passes have found more than calls of layers that count the examples."""
        return bool(self.open or self.in_graph or self._shared)

    def open_layer(self, name: str) -> None:
        """Let autograd follow a layer's parameters from now on, and run the pass again."""
        self.in_graph.add(name)
        self.tracking = True
        raise Again


def resolved(run: Callable[[], Any]) -> Any:
    """Return the result of ``run``, made again as long as it shows what was taken to count examples, and does not."""
    for _ in range(_MOST):
        try:
            return run()
        except Ambiguous:  # each time another place, which is then known
            continue
    return run()


def _place(site: Hashable) -> str:
    name = site[0] if isinstance(site, tuple) else site
    return f"the layer {name}" if name else "the model itself"
