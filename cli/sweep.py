"""`dpfest sweep`: plans the runs, starts them here or on a cluster, and prints each outcome."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli import tasks
from cli.launch import HydraLine, launch

if TYPE_CHECKING:
    from pipelines.runs.grid import Plan, PlannedRun
    from pipelines.sweep import Outcome


def run_sweep(arguments: Sequence[str], fail_fast: bool, dry_run: bool, cards: str | None = None) -> int:
    """Run the sweep that `arguments` ask for; returns the exit status: 1 if a run failed, 130 if interrupted.

    Runs are done that have finished in `paths.runs`, or that have a card in `cards`, a folder or a file.

    Runs have processes of their own on this machine, `sweep.jobs` at once, or on the cluster of `sweep.engine`.
    """
    from dpfest.errors import UserError
    from pipelines.config.compose import Composer
    from pipelines.runs.cards import key_of, keys_in
    from pipelines.runs.grid import plan
    from pipelines.sweep import is_done, run_all

    line = HydraLine.read(arguments)
    if line.only_shows:
        launch(tasks.nothing, arguments)
        return 0
    if any(text.startswith("hydra/launcher=") for text in line.overrides):
        raise UserError(
            "dpfest sweep starts its runs itself: in place of hydra/launcher give sweep.jobs or sweep.engine."
        )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError("Runs of a sweep are never over ranks: give `dpfest sweep` without torchrun.")
    carded = keys_in(Path(cards)) if cards is not None else set()
    planned = plan(Composer(line.config_dir), line.overrides)
    if any(run.config.search.asked for run in planned.runs):
        if cards is not None:
            raise UserError("A private search makes all runs that it draws: leave --cards out.")
        return _search(planned, fail_fast, dry_run)
    todo = [run for run in planned.runs if not (is_done(run.folder) or (carded and key_of(run.config) in carded))]
    counts = ", ".join(f"{count} {name}" for name, count in planned.by_algorithm().items())
    print(
        f"{len(planned.runs)} run{'s' * (len(planned.runs) != 1)} ({counts}): "
        f"{len(planned.runs) - len(todo)} done, {len(todo)} to do.",
        flush=True,
    )
    if dry_run:
        for run in planned.runs:
            print(f"{'to do' if run in todo else 'done '}  {run}  {shlex.join(run.overrides)}")
        return 0
    if todo:
        _refuse_unwritable(todo[0].config.paths.runs)
        try:
            return _follow(run_all(todo, fail_fast), planned.runs, len(todo))
        except KeyboardInterrupt:
            print("Interrupted. The same command goes on with what is left.", file=sys.stderr)
            return 130
    _print_best(planned.runs)
    return 0


BEST = 10


def _print_best(planned: Sequence[PlannedRun]) -> None:
    from pipelines.sweep import is_done

    for text in best_of([run for run in planned if is_done(run.folder)]):
        print(text)


def best_of(done: Sequence[PlannedRun]) -> Iterator[str]:
    """Yield a line for each of the :data:`BEST` runs of a sweep over one data set, the best on validation first: its
    utility on validation and test, reduction, and the settings in which the runs differ."""
    if len(done) < 2 or len({run.config.data.name for run in done}) > 1:
        return
    from pipelines.runs.release import RELEASE, SUMMARY

    shared = set.intersection(*(set(run.overrides) for run in done))
    lines = []
    for run in done:
        summary = json.loads((run.folder / RELEASE / SUMMARY).read_text(encoding="utf-8"))
        utility, reduction = summary["utility"], summary["embedding_gradient"]["reduction"]
        values = "  ".join(
            "unknown" if one is None else f"{one:.4f}" for one in (utility["validation"], utility["value"])
        )
        size = "not updated" if reduction is None else f"{reduction:,.1f}x"
        words = " ".join(text for text in run.overrides if text not in shared)
        lines.append((utility["validation"] or 0.0, f"{values}  {size:>11}  {words}"))
    name = summary["utility"]["metric"].upper()
    yield f"Best of {len(done)} on validation ({name} on validation and on test, reduction, settings):"
    yield from (text for _, text in sorted(lines, key=lambda line: -line[0])[:BEST])


def _refuse_unwritable(runs: str) -> None:
    """Refuse a folder of runs in which nothing can be written, before jobs start that would each fail."""
    from dpfest.errors import UserError

    try:
        Path(runs).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs):
            pass
    except OSError as error:
        raise UserError(f"paths.runs={runs} cannot be written ({error.strerror}): choose another folder.") from error


def _search(planned: Plan, fail_fast: bool, dry_run: bool) -> int:
    """Make the runs of a private search and release the best.

    Nothing that is printed depends on how many runs there are, or on any but the best.
    """
    from pipelines.search import PrivateSearch, has_diverged
    from pipelines.sweep import is_done, run_all

    search = PrivateSearch(planned.runs)
    counts = ", ".join(f"{count} {name}" for name, count in planned.by_algorithm().items())
    print(f"A private search over {len(planned.runs)} settings ({counts}), {search.law}.", flush=True)
    if dry_run:
        for run in planned.runs:
            print(f"{run}  {shlex.join(run.overrides)}")
        return 0
    if not search.is_done:
        _refuse_unwritable(planned.runs[0].config.paths.runs)
        plan = search.plan()
        print(
            f"epsilon {plan.epsilon:.4g} at delta {plan.delta:.2g} covers all of it; a run is trained at epsilon "
            f"{plan.epsilon_of_run:.4g}. Runs and logs are private: {search.folder}",
            flush=True,
        )
        runs = search.runs(plan)
        todo = [run for run in runs if not is_done(run.folder) and not has_diverged(run)]
        ended = list(run_all(todo, fail_fast))
        left = [outcome for outcome in ended if outcome.status != "done" and not has_diverged(outcome.run)]
        if left or len(ended) < len(todo):
            reasons = [f"{outcome.run}: {outcome.status}: {outcome.reason}" for outcome in left]
            print(f"Not finished: see {search.note_failures(reasons)}, and give the same command again to go on.")
            return 1 if any(outcome.status == "failed" for outcome in left) else 130
        search.release(plan, runs)
    best = search.outcome()
    if best is None:
        print("The search made no run that could be released.")
        return 0
    print(f"The best on validation: {tasks.describe(best[1])}")
    print(best[0])
    return 0


def _follow(ended: Iterator[Outcome], planned: Sequence[PlannedRun], count: int) -> int:
    """Print a line for each run that ends, then the best of all, done before as well, and the failed ones again."""
    from pipelines.sweep import log_file

    started = time.monotonic()
    outcomes: list[Outcome] = []
    for outcome in ended:
        outcomes.append(outcome)
        remaining = (time.monotonic() - started) / len(outcomes) * (count - len(outcomes))
        print(
            f"[{len(outcomes)}/{count}] {outcome.status:<11} {outcome.run}  {outcome.seconds:.0f} s"
            + (f"; about {remaining / 60:.0f} min left" if remaining >= 60 else ""),
            flush=True,
        )
    by_status = {status: [o for o in outcomes if o.status == status] for status in ("done", "failed", "interrupted")}
    not_started = count - len(outcomes)
    words = [f"{len(group)} {status}" for status, group in by_status.items() if group]
    _print_best(planned)
    print(", ".join(words + ([f"{not_started} not started"] if not_started else [])) + ".")
    if by_status["interrupted"] or not_started:
        print("The same command goes on with what is left.")
    reasons: dict[str, list[PlannedRun]] = defaultdict(list)
    for outcome in by_status["failed"]:
        reasons[outcome.reason].append(outcome.run)
    for reason, (first, *others) in reasons.items():
        print(f"failed: {first}{f' and {len(others)} more' if others else ''}: {reason}")
        print(f"        dpfest train {shlex.join(first.overrides)}    (log: {log_file(first)})")
    if by_status["failed"]:
        return 1
    return 130 if by_status["interrupted"] or not_started else 0
