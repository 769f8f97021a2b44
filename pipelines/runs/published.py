"""What a released ``ledger.json`` and ``summary.json`` consist of: types to write them as, and to check them against.

``summary`` writes what is declared here, which mypy holds, and ``release`` refuses what is not. A key that is not
required is left out where it has no value.
"""

# Annotations are evaluated: of postponed ones, TypedDict does not know which are not required.
import types
import typing
from typing import Any, NotRequired, TypedDict

SUMMARY_SCHEMA = 2
APART = object()
"""The shape of what another check reads."""

Shape = None | list[Any] | dict[str, Any] | object
"""None is a plain value, [shape] a list of them, {key: shape} an object without other keys (or null), and APART."""

EventRecord = dict[str, Any]
"""A privacy event as :func:`dpfest.accounting.accountant.to_record` writes it."""
# By hand: a new field of an event is published once it stands here, and not before.
_EVENT: Shape = {
    **dict.fromkeys(
        ("kind", "what", "count", "sampling_probability", "draws", "epsilon_per_draw", "claimed_epsilon", "probability")
    ),
    **dict.fromkeys(("noise_multiplier", "map_noise_multiplier", "gradient_noise_multiplier", "steps_per_epoch")),
    **dict.fromkeys(("max_batch_size", "dataset_size", "bins", "bands")),
    "part": [None],
}


class Law(TypedDict):
    """A private search, as it is asked for."""

    distribution: str
    mean: float
    shape: float


class Search(Law):
    """A private search: how many settings, the target of all its runs, and what one run of it costs."""

    settings: int
    target_epsilon: float
    epsilon_of_run: float


class SearchCost(Search):
    """What a private search spends."""

    epsilon: float
    runs: list[list[EventRecord]]


class RunOfLedger(TypedDict):
    """The training that a ledger pays for; ``settings`` are those of the algorithm."""

    algorithm: str
    examples: int
    batch_size: int
    steps: int
    settings: Any


class Ledger(TypedDict):
    """See :meth:`dpfest.planning.ledger.Ledger.to_json`."""

    schema: int
    run: RunOfLedger
    target_epsilon: float | None
    delta: float
    fidelity: str
    sampling: str
    fixed_noise_seed: bool
    cipher: NotRequired[str]
    epsilon: float | None
    sound_epsilon: float | None
    neighbours: str
    accountant: str
    value_discretization_interval: float
    events: list[EventRecord]
    planned: list[EventRecord]
    statements: list[str]
    search: NotRequired[SearchCost]


class Platt(TypedDict):
    """The two numbers of a Platt scaling, fitted on validation rows."""

    scale: float
    shift: float


class Utility(TypedDict):
    """Utility on rows that are never trained on; ``reliability`` is the curve of the test rows."""

    metric: str
    value: float | None
    split: str
    standard_error: float | None
    validation: float | None
    validation_standard_error: float | None
    loss: float | None
    constant_loss: NotRequired[float | None]
    calibrated_loss: NotRequired[float | None]
    reliability: NotRequired[list[list[float | None]]]
    calibration: NotRequired[Platt]


class Metrics(TypedDict, total=False):
    """Utility after a period on one split."""

    auc: float | None
    accuracy: float | None
    standard_error: float | None
    loss: float | None
    constant_loss: float | None
    calibrated_loss: float | None
    scale: float | None
    shift: float | None


class PeriodResult(TypedDict):
    """A period of a stream: its days, its training examples, and the utility at its end."""

    period: int
    days: list[int]
    examples: int
    validation: NotRequired[Metrics]
    following: NotRequired[Metrics]
    test: NotRequired[Metrics]


class Table(TypedDict):
    """An embedding table, and how many of its rows have a noised gradient in a step, in the mean."""

    name: str
    rows: int
    dim: int
    rows_mean: float


class EmbeddingGradient(TypedDict):
    """The size of the embedding gradient; ``reduction`` is parameters / coordinates_mean."""

    parameters: int
    coordinates_mean: float
    reduction: float | None
    tables: list[Table]


class Noise(TypedDict):
    """Noise multipliers of a step."""

    noise_multiplier: float | None
    map_noise_multiplier: float | None
    gradient_noise_multiplier: float | None


class PeriodCost(Noise):
    """The cost of a period's steps."""

    examples: int
    steps: int
    step: EventRecord | None


class Privacy(Noise):
    """Privacy cost and noise: enough to recompute epsilon. A stream has periods and histograms, other data a step."""

    epsilon: float
    sound_epsilon: float | None
    delta: float
    fidelity: str
    sampling: str
    step: EventRecord | None
    selection: EventRecord | None
    periods: list[PeriodCost] | None
    histograms: list[EventRecord] | None
    epsilon_at_own_rates: float | None
    public_vocabulary: bool
    unit: NotRequired[str]
    search: NotRequired[Search]
    vocabulary: NotRequired[list[EventRecord]]


class Summary(TypedDict):
    """``hyperparameters`` repeat sections of the settings; ``tensors`` are type and shape of each by name."""

    schema: int
    dataset: str
    model: str
    weights: str | None
    algorithm: str
    seed: int
    profile: str
    examples: int
    batch_size: int
    steps: int
    utility: Utility
    embedding_gradient: EmbeddingGradient
    privacy: Privacy | None
    periods: list[PeriodResult] | None
    hyperparameters: Any
    tensors: Any
    vocabulary_sha256: NotRequired[str]


def shape_of(kind: Any) -> Shape:
    """Return the shape of a type's values."""
    if isinstance(kind, types.UnionType):  # of something and None
        kind = next(one for one in typing.get_args(kind) if one is not types.NoneType)
    if typing.is_typeddict(kind):
        return {name: shape_of(one) for name, one in typing.get_type_hints(kind).items()}
    if kind == EventRecord:
        return _EVENT
    if typing.get_origin(kind) is list:
        return [shape_of(typing.get_args(kind)[0])]
    return APART if kind is Any else None
