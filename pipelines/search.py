"""Private search: a random number of runs over a grid, of which the best on validation is released.

The number of runs and the setting of each are drawn once (`dpfest.planning.search`) and kept, so that a sweep that was
killed goes on with the same draw; under `privacy.noise_seed` they are a function of the configuration. A run has noise
and row selections of its own, even where its setting is drawn twice. ``<paths.runs>/.searches/<dataset>/<hash>/`` is
private (0700):

::

    draw.json       the setting of each run
    runs/           the runs, as in any folder of runs, with their logs (.sweep) and row selections (.selections)
    failures.txt    why runs failed
    outcome.json    where the release is, or that the search made none

The best run's release becomes that of ``<paths.runs>/<dataset>/<algorithm>/<hash>``, with the search's epsilon in place
of the run's. A run that diverged is the worst of all (:mod:`pipelines.tasks.diverged`); one that fails otherwise stops
the search. What fails whatever the data are is therefore refused before anything is drawn.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import yaml

from dpfest.errors import UserError
from dpfest.gradients.validation import check_training
from dpfest.noise.key import NoiseKey
from dpfest.planning.search import SearchPlan
from pipelines.budget import law_of, population, search_plan
from pipelines.config.settings import Config
from pipelines.data.identity import data_hash
from pipelines.data.stream import Stream
from pipelines.preprocess import prepared
from pipelines.runs.directory import RunDirectory
from pipelines.runs.grid import PlannedRun
from pipelines.runs.identity import run_folder, run_hash
from pipelines.runs.release import CONFIG, LEDGER, PRIVATE, RELEASE, SUMMARY, WEIGHTS
from pipelines.runs.weights import Weights
from pipelines.system.files import OWNER_ONLY, locked, private_folder, write_atomically, write_json
from pipelines.tasks.diverged import Diverged
from pipelines.tasks.optimizers import optimizers
from pipelines.tasks.task import Task, device_of, task_of

_AFTER_FAILURE = """\
This file is private, and so is the fact that the search is not finished: both can depend on the training examples.
The search releases nothing until the runs below are made: mend what stopped them (memory, disk, a machine) and give the
same command again. With another grid it is another search: its epsilon adds to that of this one, and neither covers
what you learnt from these failures.
"""


def refuse_incomparable(settings: Sequence[Config]) -> None:
    """Refuse a grid that no private search can choose from.

    Raises:
        UserError: runs of other data, of another target, or of another search; runs without a proven epsilon.
    """
    first = settings[0]
    for config in settings:
        for section in ("data", "privacy", "unit", "search"):
            one, other = asdict(getattr(first, section)), asdict(getattr(config, section))
            differing = [f"{section}.{key}" for key in one if one[key] != other.get(key)]
            if section == "data" and first.data.name != config.data.name:
                differing = ["data"]
            if differing:
                raise UserError(
                    f"A private search chooses among runs on one data set with one target, and its grid varies "
                    f"{', '.join(sorted(differing))}: give it one value, and make a search for each."
                )
        if config.stream.train_days != first.stream.train_days:
            raise UserError("A private search chooses among runs on the same days: stream.train_days must not vary.")
        if not config.algorithm.private or config.privacy.fidelity != "rigorous":
            raise UserError(
                f"algorithm={config.algorithm.name} with privacy={config.privacy.fidelity} has no proven epsilon, so a "
                "search that may choose it has none: leave it out of the grid."
            )


def refuse_untrainable(settings: Sequence[Config], stream: Stream) -> None:
    """Refuse settings whose model, optimisers or device cannot be made, whatever the examples are.

    Raises:
        UserError: a setting of the grid fails in every run that draws it.
    """

    def model_of(config: Config) -> str:
        return repr((config.model, config.algorithm))

    for _, several in groupby(sorted(settings, key=model_of), key=model_of):
        task: Task | None = None  # one model at a time
        for config in several:
            device_of(config.device)
            task = task or task_of(config, stream.days[0], torch.device("cpu"), whole=False)
            made, algorithm = optimizers(task.model, config.optimizer), config.algorithm
            check_training(task.model, task.losses, made, sparse=algorithm.sparse, lazy=algorithm.lazy)


class PrivateSearch:
    """The private search over a grid: its plan, its runs, and the release of the best.

    Args:
        grid: the runs of a plain sweep over the grid, one for each setting.

    Raises:
        UserError: a private search cannot choose among these settings.
    """

    def __init__(self, grid: Sequence[PlannedRun]) -> None:
        self.grid = list(grid)
        self._settings = [run.config for run in self.grid]
        refuse_incomparable(self._settings)
        self._first = self._settings[0]
        identity = [asdict(self._first.search) | {"run": None}, [run_hash(config) for config in self._settings]]
        self._hash = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
        runs = Path(self._first.paths.runs)
        self.folder = runs / ".searches" / self._first.data.name / self._hash
        self._outcome = self.folder / "outcome.json"

    @property
    def law(self) -> str:
        """The law of the number of runs, in words."""
        return law_of(self._first.search).law

    @property
    def is_done(self) -> bool:
        """Whether the search has ended, with or without a release."""
        return self._outcome.exists()

    def plan(self) -> SearchPlan:
        """Return the noise of each setting at which the whole search meets privacy.epsilon; makes the data if missing.

        Raises:
            UserError: a setting cannot be trained; or no noise meets the target.
        """
        stream = prepared(self._first)
        refuse_untrainable(self._settings, stream)
        return search_plan(self._settings, population(self._first, stream), stream.vocabulary_sizes)

    def runs(self, plan: SearchPlan) -> list[PlannedRun]:
        """Return the runs that the search makes: secret, and so is their number."""
        own = private_folder(private_folder(self.folder) / "runs") / ".calibration"
        with suppress(FileExistsError):  # calibrations depend on settings alone
            own.symlink_to(os.path.relpath(Path(self._first.paths.runs) / own.name, own.parent))
        with locked(self.folder / ".lock"):
            drawn = self._draw(plan)
        return [self._run(number, setting, plan) for number, setting in enumerate(drawn)]

    def _draw(self, plan: SearchPlan) -> list[int]:
        file, seed = self.folder / "draw.json", self._first.privacy.noise_seed
        if file.exists():  # another draw would be a second search
            return json.loads(file.read_text(encoding="utf-8"))["settings"]
        drawn = plan.draws(NoiseKey.fresh() if seed is None else NoiseKey.from_seed(seed, self._hash))
        write_json(file, {"settings": drawn}, OWNER_ONLY)
        return drawn

    def _run(self, number: int, setting: int, plan: SearchPlan) -> PlannedRun:
        config, target = self._settings[setting], plan.plans[setting].target_epsilon
        assert target is not None
        own = replace(
            config,
            privacy=replace(config.privacy, epsilon=target),
            paths=replace(config.paths, runs=str(self.folder / "runs")),
        )
        return PlannedRun(self.grid[setting].overrides, own, run_folder(own, number), number)

    def note_failures(self, reasons: Sequence[str]) -> Path:
        """Write why runs failed, and what may follow from it, for the owner alone; returns the file."""
        file, text = self.folder / "failures.txt", "\n".join([_AFTER_FAILURE, *reasons, ""])
        write_atomically(file, lambda partial: partial.write_text(text, encoding="utf-8"), OWNER_ONLY)
        return file

    def release(self, plan: SearchPlan, runs: Sequence[PlannedRun]) -> None:
        """Release the best of the runs, all of which have ended; of equals the first."""
        with locked(self.folder / ".lock"):
            if self.is_done:
                return
            scores = {number: score for number, run in enumerate(runs) if (score := score_of(run)) is not None}
            best = max(scores, key=lambda number: (scores[number], -number), default=None)
            released = None if best is None else self._released(plan, runs[best])
            write_json(self._outcome, {"release": None if released is None else str(released)}, OWNER_ONLY)

    def outcome(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the folder of the best run and its summary; None if the search released none."""
        where = json.loads(self._outcome.read_text(encoding="utf-8"))["release"]
        if where is None:
            return None
        summary = RunDirectory(Path(where)).summary()
        if summary is None:
            raise UserError(
                f"{where}, the release of the search, is gone: restore it. If you delete {self.folder}, the next sweep "
                "is another search, which no ledger counts."
            )
        return Path(where), summary

    def _released(self, plan: SearchPlan, best: PlannedRun) -> Path:
        """Make the release of the search from that of its best run."""
        directory = RunDirectory(
            Path(self._first.paths.runs) / best.config.data.name / best.config.algorithm.name / self._hash
        )
        source = best.folder / RELEASE
        settings, asked = (
            yaml.safe_load((best.folder / place / CONFIG).read_text(encoding="utf-8")) for place in (RELEASE, PRIVATE)
        )
        ledger, summary = (json.loads((source / name).read_text(encoding="utf-8")) for name in (LEDGER, SUMMARY))
        cost = {"epsilon": plan.epsilon, "sound_epsilon": plan.epsilon}
        for one in (settings, asked):
            one["privacy"]["epsilon"] = self._first.privacy.epsilon
        asked["paths"] = asdict(self._first.paths)
        ledger = plan.ledger(ledger)
        if summary["privacy"]["epsilon_at_own_rates"] is not None:
            summary["privacy"]["epsilon_at_own_rates"] = plan.epsilon
        summary["privacy"] |= {
            **cost,
            "search": {k: v for k, v in ledger["search"].items() if k not in ("runs", "epsilon")},
        }

        def copy(path: Path) -> None:
            shutil.copyfile(source / WEIGHTS, path)

        weights = None if summary["tensors"] is None else Weights(summary["tensors"], copy)
        timings = json.loads((best.folder / PRIVATE / "timings.json").read_text(encoding="utf-8"))
        with directory.lock(wait=True):
            directory.write_config(asked, data_hash(self._first.data))
            directory.finish(settings, ledger, summary, weights, timings)
        return directory.path


def has_diverged(run: PlannedRun) -> bool:
    """Whether a run has ended because it diverged."""
    try:
        return (run.folder / PRIVATE / "failure.txt").read_text(encoding="utf-8").startswith(f"{Diverged.__name__}:")
    except OSError:
        return False


def score_of(run: PlannedRun) -> float | None:
    """Return the validation utility of a run that has ended; None if it diverged.

    Raises:
        UserError: the run has not ended.
    """
    summary = RunDirectory(run.folder).summary()
    if summary is not None:
        return summary["utility"]["validation"]
    if has_diverged(run):
        return None
    raise UserError("The search has not made all of its runs: give the same command again.")
