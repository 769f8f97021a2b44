"""The commands that a report prints, with every setting that differs from the defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.comparison import Population

DEFAULT_PROFILE = "demo"


@dataclass(frozen=True)
class Commands:
    """The arguments of the command that builds this report.

    Attributes:
        paths: paths that differ from the defaults, by key (`paths.runs`).
        profile: profile of planned runs; existing runs have their own.
        config_dir: folder given by --config-dir.
        dataset: dataset given by --dataset.
        seed: seeds of planned runs, as on the command line (`range(3)`); existing runs have their own.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    profile: str = DEFAULT_PROFILE
    config_dir: Path | None = None
    dataset: str | None = None
    seed: str | None = None

    def sweep(self, experiment: str, population: Population | None = None) -> str:
        """Return the command that makes an experiment's runs, comparable with those of `population`."""
        chosen: dict[str, Any] = {"experiment": experiment}
        if population is not None:
            own = "kind" in population.runs[0].data  # described by a file of the user's
            if own and experiment in ("comparison", "streaming"):  # whose grids name their data
                chosen["experiment"] = "frontier"
            epsilons = ",".join(f"{epsilon:g}" for epsilon in population.epsilons)
            chosen |= {
                "profile": population.profile,
                "data": population.dataset,
                "data.path": None if own else next((run.source for run in population.runs if run.source), None),
                "model.path": next((run.weights for run in population.runs if run.weights), None),
                "privacy": population.fidelity,
                "privacy.epsilon": epsilons if population.kind == "unit" else None,  # other grids have their own
                "seed": ",".join(map(str, population.seeds)) if population.seeds != [0] else None,
            }
        elif self.profile != DEFAULT_PROFILE:
            chosen["profile"] = self.profile
        if self.seed:
            chosen["seed"] = self.seed
        return self._line(["dpfest", "sweep"], chosen, ("paths.data", "paths.runs"))

    def report(self, artifact: str, population: Population | None = None) -> str:
        """Return the command that rebuilds one artifact."""
        profile = (population.profile if population else "") or self.profile
        chosen = {"profile": profile} if profile != DEFAULT_PROFILE else {}
        words = ["dpfest", "report", "--only", artifact, *(["--dataset", self.dataset] if self.dataset else [])]
        return self._line(words, chosen, ("paths.runs", "paths.report"))

    def measured(self, command: str) -> str:
        """Return a command that measures into the report's folder."""
        return self._line(shlex.split(command), {}, ("paths.report",))

    def _line(self, words: list[str], chosen: Mapping[str, Any], paths: tuple[str, ...]) -> str:
        flags = ["--config-dir", str(self.config_dir)] if self.config_dir else []
        values = {**chosen, **{key: self.paths[key] for key in paths if key in self.paths}}
        return shlex.join([*words, *flags, *(f"{key}={quoted(value)}" for key, value in values.items() if value)])


def quoted(value: str) -> str:
    """Format text, or numbers separated by commas, in Hydra's override grammar."""
    plain = re.fullmatch(r"[\w.+/-]+|[\d.]+(,[\d.]+)+|range\([\d,]+\)", value)
    return value if plain else '"' + value.replace('"', '\\"') + '"'
