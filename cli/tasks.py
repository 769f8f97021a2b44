"""The task of each command, called with the configuration that Hydra composed.

Heavy imports wait until a task runs.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dpfest.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

Task = Callable[["DictConfig"], None]


def task(function: Task) -> Task:
    """A task that turns a UserError into one line and exit status 2, in whichever process it runs."""

    @functools.wraps(function)
    def reported(cfg: DictConfig) -> None:
        try:
            function(cfg)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            _tell_torchrun(error)
            # Hydra catches every Exception of a task to print it in its own way; SystemExit passes.
            raise SystemExit(2) from None
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            print(f"error: {error.strerror or error}{where}: choose another folder with paths.*.", file=sys.stderr)
            raise SystemExit(2) from None

    return reported


def _tell_torchrun(error: UserError) -> None:
    """Have torchrun, if it started this process, print the sentence where it sums up how its processes ended."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


@task
def preprocess(cfg: DictConfig) -> None:
    """Write the dataset or stream, and print its folder."""
    from pipelines.config.settings import typed

    config = typed(cfg)
    from pipelines.preprocess import preprocess

    print(preprocess(config))


@task
def card(cfg: DictConfig) -> None:
    """Print the card of a dataset or stream, which is made if it is missing."""
    from pipelines.config.settings import typed

    config = typed(cfg)
    from pipelines.data.card import card
    from pipelines.preprocess import prepared

    print(card(prepared(config), config.data.provenance))
    from reports.beside import known

    if results := known(config.data.name):
        print(f"dpfest's reference: {results}.")


@task
def select(cfg: DictConfig) -> None:
    """Select the rows of DP-FEST and print where they are."""
    from pipelines.config.settings import typed

    config = typed(cfg)
    from pipelines.select import select

    folder = select(config)
    record = json.loads((folder / "selection.json").read_text(encoding="utf-8"))
    what = f"{record['rows']:,} rows" if "rows" in record else "noised counts, a folder like this one for each day,"
    print(f"{what} by {config.algorithm.selection.law}; `dpfest budget` prints their cost")
    print(folder)


@task
def train(cfg: DictConfig) -> None:
    """Train, and print the result."""
    from pipelines.config.settings import typed

    config = typed(cfg)
    if config.over_ranks:
        from pipelines.train import ranks

        made = ranks.make_run(config)
        if made is None:  # rank 0 reports
            return
        outcome = made
    else:
        if config.distributed == "off":
            from pipelines.train import ranks

            ranks.refuse_ranks_apart()
        from pipelines.train import make_run

        outcome = make_run(config)
    from reports.beside import beside

    print(("done before: " if outcome.skipped else "") + describe(outcome.summary))
    if controls := beside(outcome.path):
        print(f"  {controls}")
    print(outcome.path)


def describe(summary: Mapping[str, Any]) -> str:
    """Format a run's summary in one line."""
    from reports.wording import epsilon

    utility, privacy = summary["utility"], summary["privacy"]
    reduction = summary["embedding_gradient"]["reduction"]
    return "; ".join(
        [
            f"{summary['dataset']} {summary['algorithm']}: {utility['metric'].upper()} "
            f"{_number(utility['value'])} on {utility['split']} ({_number(utility['validation'])} on validation)",
            f"embedding gradient {reduction:,.1f} times smaller than dense" if reduction else "embeddings not updated",
            f"epsilon {epsilon(privacy['epsilon'])} at delta {privacy['delta']:.2g} ({privacy['fidelity']}, "
            f"{privacy['sampling']} sampling)" + _sound(privacy)
            if privacy and privacy["epsilon"] is not None
            else "no privacy",
        ]
    )


def _sound(privacy: Mapping[str, Any]) -> str:
    """Qualify an epsilon by the sound value of the paper's claim, and by a vocabulary that it does not cover."""
    uncovered = "" if privacy.get("public_vocabulary", True) else "; does not cover the vocabulary, made from the data"
    if privacy["fidelity"] != "paper":
        return uncovered
    from reports.wording import epsilon

    own = privacy.get("epsilon_at_own_rates")
    rates = f"; epsilon {epsilon(own)} at each period's own sampling rate" if own is not None else ""
    return f"{uncovered}{rates}; sound epsilon {epsilon(privacy['sound_epsilon'])}, without amplification by sampling"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"


@task
def nothing(cfg: DictConfig) -> None:
    """Do nothing: lets --cfg and the like work for commands whose work Hydra does not start."""


@task
def budget(cfg: DictConfig) -> None:
    """Print the noise multipliers that the budget requires."""
    from pipelines.config.settings import typed

    config = typed(cfg)
    from pipelines.budget import budget

    print(budget(config))


@task
def plan(cfg: DictConfig) -> None:
    """Print the batch size and steps that the budget suggests."""
    from pipelines.config.settings import typed

    config = typed(cfg)
    from pipelines.budget.planner import suggest

    print(suggest(config))
