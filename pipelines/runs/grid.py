"""The runs of a sweep, from an experiment's grid or a multirun line, and their numbers of steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.config.compose import Composer, container, override_text, selected
from pipelines.config.schema import build
from pipelines.config.settings import Config, ExperimentConfig, typed
from pipelines.runs.identity import run_folder
from pipelines.runs.schedule import VALIDATION_SHARE


@dataclass(frozen=True)
class PlannedRun:
    """A run to make in one process: its overrides, configuration and folder, and its number within a private search."""

    overrides: tuple[str, ...]
    config: Config
    folder: Path
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.config.data.name}/{self.config.algorithm.name}/{self.folder.name}"


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep, each once."""

    runs: list[PlannedRun]

    def by_algorithm(self) -> dict[str, int]:
        """Return the number of runs of each algorithm."""
        counts: dict[str, int] = {}
        for run in self.runs:
            counts[run.config.algorithm.name] = counts.get(run.config.algorithm.name, 0) + 1
        return counts


def plan(composer: Composer, overrides: Sequence[str]) -> Plan:
    """Return the runs that `overrides` request: experiments' grids for the profile, or Hydra's multirun syntax.

    The command line takes precedence over the grid: a choice of a group that the grid sweeps (algorithm=adafest)
    selects that part of the grid, a value of any other key (privacy.epsilon=3) replaces the grid's values, and a key
    that the grid lacks (seed=0,1,2) multiplies it.

    Raises:
        UserError: a configuration is invalid, or the experiment has no grid for the profile.
    """
    runs: dict[Path, PlannedRun] = {}
    for line in _multiruns(composer, overrides):
        for own, cfg in composer.expand([text for text in line if not text.startswith("hydra")]):
            config = replace(typed(cfg), distributed="off")  # whatever the environment says of ranks
            folder = run_folder(config)
            runs.setdefault(folder, PlannedRun(tuple(own), config, folder))
    return Plan(list(runs.values()))


def asked_for(composer: Composer, overrides: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """Return the text and the values of each override by key, in order.

    Raises:
        UserError: invalid syntax, or an override without a value.
    """
    asked: dict[str, tuple[str, list[str]]] = {}
    for override in composer.parse(overrides):
        sweeps = override.is_sweep_override() and override.is_discrete_sweep()
        values = composer.values(override) if sweeps else [override.get_value_element_as_str()]
        asked[override.get_key_element()] = str(override.input_line), values
    return asked


def _multiruns(composer: Composer, overrides: Sequence[str]) -> list[list[str]]:
    asked = asked_for(composer, overrides)
    if "experiment" not in asked:
        return [[text for text, _ in asked.values()]]
    # Its grid depends on the profile alone; what else is asked may be about data or algorithms that the grid chooses.
    profile = [f"profile={name}" for name in asked.get("profile", ("", []))[1][:1]]
    lines = []
    for name in asked["experiment"][1]:
        cfg = composer.compose([*profile, f"experiment={name}"])
        experiment = build(ExperimentConfig, container(cfg["experiment"]), "experiment")
        lines += _lines(composer, experiment, str(cfg["profile"]), asked)
    return lines


def _lines(
    composer: Composer, experiment: ExperimentConfig, profile: str, asked: Mapping[str, tuple[str, list[str]]]
) -> list[list[str]]:
    """Return the multirun lines of an experiment under a profile."""
    lines = []
    for product in products(experiment, profile):
        chosen = {key: [override_text(value) for value in values] for key, values in product.items()}
        for key in chosen.keys() & asked.keys():
            values = asked[key][1]
            chosen[key] = [value for value in chosen[key] if value in values] if composer.is_group(key) else values
        if all(chosen.values()):
            # A run of an experiment is an ordinary run: its overrides do not mention the experiment.
            rest = [text for key, (text, _) in asked.items() if key not in chosen and key != "experiment"]
            lines.append([*rest, *(f"{key}={','.join(values)}" for key, values in chosen.items())])
    if not lines:
        axes: dict[str, dict[str, None]] = {}
        for product in products(experiment, profile):
            for key in product.keys() & asked.keys():
                axes.setdefault(key, {}).update(dict.fromkeys(map(override_text, product[key])))
        has = "; ".join(f"{key}={','.join(values)}" for key, values in sorted(axes.items()))
        line = " ".join(text for text, _ in asked.values())
        raise UserError(
            f"experiment={experiment.name} has no run with {line}: under profile={profile} its grid has only {has}."
        )
    return lines


def outline(composer: Composer, overrides: Sequence[str]) -> list[Config]:
    """Return a configuration for each run of an experiment's grid, with the settings that determine its length.

    Unlike :func:`plan`, this reads no source file: to fingerprint Criteo's takes minutes to hours.
    """
    composed = typed(composer.compose(overrides))
    every = products(composed.experiment, composed.profile)
    grid = [each for each in every if composed.data.name in each.get("data", [composed.data.name])]
    keys = sorted({key for product in grid for key in product} - {"data"})
    base: dict[str, tuple[Config, dict[str, Any]]] = {}
    runs: dict[tuple[Any, ...], Config] = {}
    for product in grid:
        swept = [key for key in keys if key in product]
        for values in itertools.product(*(product[key] for key in swept)):
            own = dict(zip(swept, values, strict=True))
            algorithm = own.get("algorithm", composed.algorithm.name)
            if algorithm not in base:
                cfg = composer.compose([*overrides, f"algorithm={algorithm}"])
                base[algorithm] = typed(cfg), selected(cfg, (key for key in keys if key != "algorithm"))
            config, rest = base[algorithm]
            stream = replace(config.stream, period=own.get("stream.period", config.stream.period))
            length = {key.removeprefix("train."): value for key, value in own.items() if key.startswith("train.")}
            run = replace(config, stream=stream, train=replace(config.train, **length))
            # Products overlap: one of them may leave a setting at its default that another one names.
            runs.setdefault(tuple((rest | own)[key] for key in keys), run)
    return list(runs.values())


def products(experiment: ExperimentConfig | None, profile: str) -> list[dict[str, list[Any]]]:
    """Return an experiment's products of override values under a profile.

    Raises:
        UserError: there is no experiment, or it has no grid for the profile.
    """
    if experiment is None:
        raise UserError("no experiment is named: add experiment=... to the command.")
    if profile not in experiment.grids:
        raise UserError(
            f"experiment={experiment.name} has no grid for profile={profile}; it has one for "
            f"{', '.join(experiment.grids)}."
        )
    return experiment.grids[profile]


def evaluated(config: Config) -> float | None:
    """Estimate, before the data exist, the number of examples that all evaluations of a run on click data read; None if
    the source's size or splits are unknown."""
    data, stream = config.data, config.stream
    examples = data.expected_examples(stream.train_days)
    if data.task != "clicks" or examples is None:
        return None
    rows = examples / data.split.shares["train"]
    if not data.is_stream:
        return rows - examples
    # At each period's end: the held-out rows of the next period's days, and the validation rows of the last days.
    day = rows / stream.train_days
    last = day * max(0, len(data.day_numbers()) - stream.train_days)
    periods = math.ceil(stream.train_days / stream.period)
    following = day * data.split.shares["validation"] * max(0, stream.train_days - stream.period)
    return following + last * (VALIDATION_SHARE * periods + 1 - VALIDATION_SHARE)


def steps(config: Config) -> int | None:
    """Estimate a run's steps before its data exist, to one step per period; None if the source's size is unknown."""
    if config.train.steps is not None:
        periods = math.ceil(config.stream.train_days / config.stream.period) if config.data.is_stream else 1
        return periods * config.train.steps
    examples = config.data.expected_examples(config.stream.train_days)
    return None if examples is None else math.ceil(config.train.epochs * examples / config.train.batch_size)
