"""What an algorithm is: its settings, which embedding rows survive a step, and the privacy cost of that choice.

A step (:mod:`dpfest.step.order`) asks an algorithm three things. ``measure`` returns what its choice of rows needs of
the batch, summed over all examples. ``survivors`` returns, shard by shard, the sorted rows that the step's gradient may
touch; all others are zeroed in every example's gradient, which is then clipped and summed, and every survivor is
noised. So an algorithm is sound if its *choice* of rows is accounted for: independent of the batch, which is enforced
(DP-SGD, DP-FEST, frozen), or made by a mechanism that ``step_event`` states (DP-AdaFEST's noisy map, exponential
selection). A choice by the *noised* gradient of rows costs nothing: ``kept``, which post-processes it. Settings are
immutable: a run is as planned.

A rule of one's own derives from :class:`PrivateAlgorithm`, whose definition refuses one that nobody accounts for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from dpfest.accounting.accountant import Event
from dpfest.errors import UserError
from dpfest.gradients.parts import Rows, RowSums, Shard
from dpfest.selection.topk import SelectionConfig

if TYPE_CHECKING:
    from dpfest.gradients.batch import LogicalBatch

INDEPENDENT = "independent of the batch"
"""The ``choice`` of an algorithm that sees no batch when it chooses rows."""
BY_EVENT = "by the event"
"""The ``choice`` of an algorithm whose ``step_event`` pays for it."""


def _depth(cls: type, name: str) -> int:
    """Return how many classes of the order of resolution come before the one that defines a name."""
    return next(number for number, each in enumerate(cls.__mro__) if name in vars(each))


@dataclass(frozen=True)
class Algorithm:
    """Interface of an algorithm: a name, a choice of rows, and its cost.

    Attributes:
        private: whether steps clip and add noise.
        clipping_norm: ``C2``, the l2 norm to which an example's masked gradient is clipped.
        selection: settings of the row selection before training, if any.
        lazy: whether the tables' noise is drawn when a row is next read (:mod:`dpfest.step.lazy`).
        sparse: whether the tables' gradients are sparse.
        bands: number of consecutive steps over which the noise of rows is correlated (:mod:`dpfest.accounting.bands`),
            of an algorithm with a fixed set of rows; None for independent noise.
        joint: whether rows are chosen from all tables at once, and not shard by shard.
        choice: :data:`INDEPENDENT` or :data:`BY_EVENT`, which are attributes, too.
        draws_untouched: whether ``kept`` draws the rows that no example touched, of an algorithm that chooses every
            row: then it is given the touched ones alone.
    """

    name: str = ""
    private: ClassVar[bool] = False
    lazy: ClassVar[bool] = False
    sparse: ClassVar[bool] = True
    bands: ClassVar[int | None] = None
    joint: ClassVar[bool] = False
    INDEPENDENT: ClassVar[str] = INDEPENDENT
    BY_EVENT: ClassVar[str] = BY_EVENT
    choice: ClassVar[str] = BY_EVENT
    draws_untouched: ClassVar[bool] = False
    clipping_norm: ClassVar[float] = math.inf
    selection: ClassVar[SelectionConfig | None] = None

    def measure(
        self, batch: LogicalBatch, rows: Rows, shards: Sequence[Shard], cost: Event | None
    ) -> Sequence[Tensor | None]:
        """Return, for each own shard, what its choice of rows needs of the batch; None for nothing.

        Args:
            batch: what this process holds of it.
            rows: how it is summed over all processes.
            shards: those of this process.
            cost: the event that is charged for the step; None without a guarantee.
        """
        return [None] * len(shards)

    def survivors(self, shard: Shard, measured: Tensor | None, cost: Event | None, step: int) -> Tensor | None:
        """Return a shard's surviving rows, numbered within it, sorted distinct int64 ``[s]``; None for every row.

        Args:
            shard: the shard, whose key has the noise of the choice; it refuses to say what the batch touches where the
                choice is independent of it.
            measured: what :meth:`measure` returned for it.
            cost: the event that is charged for the step; None without a guarantee.
            step: step number, by which noise is told apart.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say which rows survive.")

    def step_event(self, noise_multiplier: float, sampling_probability: float) -> Event | None:
        """Return the privacy event of one step, with all noise multipliers the engine uses; None without a guarantee.

        Args:
            noise_multiplier: ``sigma`` of everything the step releases from its sample, except drawn rows.
            sampling_probability: ``q``, with which each example enters the batch.
        """
        return None

    def kept(self, shard: Shard, noised: RowSums, deviation: float, step: int) -> RowSums:
        """Return the rows of a shard that the step applies, and their values: of ``noised``, all of them.

        Post-processing: the result must be a function of the noised gradient of *all* rows that the algorithm's event
        pays for, and have its law. Not called where noise is drawn after the step.

        Args:
            shard: the shard, whose key has the noise of rows that did not survive; it does not say what is touched.
            noised: the noised sums of its survivors.
            deviation: standard deviation of their noise, above 0.
            step: step number.
        """
        return noised

    def settings(self) -> dict[str, Any]:
        """Return its settings by name; none of a later version that is not used."""
        return {name: value for name, value in asdict(self).items() if name != "bands" or value is not None}

    def refuse_tables(self, rows: int) -> None:
        """Raise UserError if the settings do not fit tables of so many rows in all."""


@dataclass(frozen=True)
class PrivateAlgorithm(Algorithm):
    """An algorithm that clips and adds noise: by default, one Gaussian release of the gradient per step.

    A subclass that redefines ``measure``, ``survivors`` or ``draws_untouched`` must define ``step_event`` as well, to
    state what its choice of rows costs, or declare ``choice = INDEPENDENT``: it is then not told what a batch touches.

    Raises:
        UserError: where the subclass is defined, if it does neither.
        ValueError: a numeric setting other than the threshold is not finite and greater than zero.
    """

    private: ClassVar[bool] = True
    clipping_norm: float = 1.0  # type: ignore[misc]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        paid = _depth(cls, "step_event")
        declared = _depth(cls, "choice") if cls.choice == INDEPENDENT else len(cls.__mro__)
        for part in ("measure", "survivors", "draws_untouched"):
            free = part == "survivors" and declared <= _depth(cls, part)
            if _depth(cls, part) < paid and not free:
                raise UserError(
                    f"{cls.__name__} redefines {part}, and inherits the step_event of another choice of rows, which "
                    "would be charged for its own. Define step_event as well, to state what the choice costs, or "
                    "declare choice = dpfest.Algorithm.INDEPENDENT, for one that does not look at the batch."
                )

    def __post_init__(self) -> None:
        for setting in fields(self):
            if isinstance(setting.default, int | float) and setting.name != "threshold":
                # Squares of smaller gradients lose digits in float32, then vanish: they would pass unclipped.
                least = 1e-9 if setting.name.endswith("clipping_norm") else 1e-30
                positive(setting.name, getattr(self, setting.name), isinstance(setting.default, int), least)

    def step_event(self, noise_multiplier: float, sampling_probability: float) -> Event:
        """Return one Gaussian release of a Poisson sample, of sensitivity ``C2``."""
        return Event(
            kind="gaussian",
            what="training step",
            noise_multiplier=noise_multiplier,
            gradient_noise_multiplier=noise_multiplier,
            sampling_probability=sampling_probability,
        )


def positive(name: str, value: object, whole: bool = False, least: float = 1e-30) -> None:
    """Raise ValueError unless the setting is a number (a whole one) above zero and far from under- and overflow."""
    if not (isinstance(value, Integral if whole else Real) and least <= float(value) <= 1e30):
        raise ValueError(
            f"{name}={value} must be a {'whole' if whole else 'finite'} number greater than 0 ({least:.0e} to 1e30)"
        )


def stated(algorithm: Algorithm, cost: Event | None, name: str) -> float:
    """Return what the event of a step must state for the algorithm's choice of rows."""
    if (value := getattr(cost, name, None)) is None:
        raise UserError(f"{algorithm.name} chooses rows with {name}=, which its step's event must state.")
    return float(value)
