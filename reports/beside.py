"""What stands beside a run's result: training without privacy, DP-SGD and frozen embeddings, on the same data.

They are the user's own finished runs where there are any, else those of the project's reference, which `controls.json`
holds (`make readme` writes it, and a test compares it with the run cards).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from reports.algorithms import label
from reports.checked import Unusable
from reports.comparison import Population
from reports.reading import read_run
from reports.runs import Run
from reports.wording import number, plural

CONTROLS = ("nonprivate", "dpsgd", "frozen")
FILE = Path(__file__).with_name("controls.json")


def beside(folder: Path) -> str | None:
    """Return a sentence on the controls of a finished run, given by its folder; None for a control without others, and
    for a run that reports cannot use."""
    try:
        run = read_run(folder)
    except Unusable:
        return None
    others = [name for name in CONTROLS if name != run.algorithm]
    own = {name: runs for name in others if (runs := _own(folder.parents[1] / name, run))}
    published = _published(run)
    found = {
        name: _best(own[name]) if name in own else f"{published[name]:.4f}"
        for name in others
        if name in own or name in published
    }
    if not found:
        return None if run.algorithm in CONTROLS else f"compare it with algorithm={', '.join(CONTROLS)}"
    source = "" if own.keys() == found.keys() else " (dpfest's own runs)" if not own else " (partly dpfest's own runs)"
    said = "beside it: " + ", ".join(f"{label(name)} {words}" for name, words in found.items()) + source
    poor = "nonprivate" in own and max(own["nonprivate"])[1] < run.test
    return said + "; training without privacy needs other learning rates, or it would not be behind" * poor


def known(data: str, epsilon: float = 1.0) -> str | None:
    """Return what the reference's controls reach on this data at an ε, in streams with the shortest period; None if the
    reference does not have the data."""
    found = [one for one in _controls() if one["data"] == data and one["question"].get("epsilon", epsilon) == epsilon]
    if not found:
        return None
    period = min(one["question"]["period"] or 0 for one in found)
    values = {one["algorithm"]: one["test"] for one in found if (one["question"]["period"] or 0) == period}
    shown = ", ".join(f"{label(name)} {values[name]:.4f}" for name in CONTROLS if name in values)
    periods = f" in periods of {plural(period, 'day')}" if period else ""
    return f"test utility at ε = {number(epsilon)}{periods}: {shown}"


def question(run: Run, name: str) -> dict[str, Any]:
    """Return what a run shares with a control that stands beside it: data and model, and with all but training without
    privacy the guarantee."""
    same = {"material": run.material, "profile": run.profile, "period": run.period}
    if name == "nonprivate":
        return same
    return same | {"epsilon": run.target_epsilon, "delta": run.delta, "fidelity": run.fidelity}


def _own(runs: Path, run: Run) -> list[tuple[float, float]]:
    """Return the utility, on validation and on test, of each of the user's runs of a control."""
    found = []
    for folder in runs.glob("*"):
        try:
            other = read_run(folder)
        except Unusable:  # it goes on, failed, or is of another version
            continue
        if question(other, runs.name) == question(run, runs.name):
            found.append((other.validation, other.test))
    return found


def _best(runs: list[tuple[float, float]]) -> str:
    """Return the test utility of the run that is best on validation, and of how many."""
    return f"{max(runs)[1]:.4f}" + f" (best of {len(runs)} on validation)" * (len(runs) > 1)


def _published(run: Run) -> dict[str, float]:
    """Return the reference's controls that answer the same question."""
    return {one["algorithm"]: one["test"] for one in _controls() if one["question"] == question(run, one["algorithm"])}


@cache
def _controls() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def controls_text(groups: Iterable[Population]) -> str:
    """Return the content of `controls.json`: the controls of each population that are best on validation, at each ε and
    period, with the question that they answer."""
    found = []
    for group in groups:
        for alone in [group.at(period) for period in group.periods] or [group]:
            for epsilon in (None, *group.epsilons):
                for name in CONTROLS:
                    best = alone.best(name, epsilon)
                    if best is not None and (name == "nonprivate") == (epsilon is None):
                        asked = question(best.runs[0], name)
                        found.append(
                            {"algorithm": name, "data": group.dataset, "question": asked, "test": round(best.test, 5)}
                        )
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
