"""What stands beside a run's result: training without privacy, DP-SGD and frozen embeddings, on the same data.

They are the user's own finished runs where there are any, else those of the project's reference, which `controls.json`
holds (`make readme` writes it, and a test compares it with the run cards).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.runs.release import CONFIG, RELEASE, SUMMARY
from pipelines.system.plain import json_value, yaml_value
from reports.algorithms import label
from reports.comparison import Population
from reports.runs import material

CONTROLS = ("nonprivate", "dpsgd", "frozen")
FILE = Path(__file__).with_name("controls.json")


def beside(run: Path) -> str | None:
    """Return a sentence on the controls of a finished run, given by its folder; None for a control without others."""
    settings, summary = _released(run)
    others = [name for name in CONTROLS if name != summary["algorithm"]]
    own = {name: value for name in others if (value := _own(run.parents[1] / name, settings, summary)) is not None}
    published = _published(settings, summary)
    found = {name: own.get(name, published.get(name)) for name in others if name in own or name in published}
    if not found:
        return None if summary["algorithm"] in CONTROLS else f"compare it with algorithm={', '.join(CONTROLS)}"
    source = "" if own.keys() == found.keys() else " (dpfest's own runs)" if not own else " (partly dpfest's own runs)"
    return "beside it: " + ", ".join(f"{label(name)} {value:.4f}" for name, value in found.items()) + source


def _released(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    texts = ((run / RELEASE / name).read_text(encoding="utf-8") for name in (CONFIG, SUMMARY))
    return yaml_value(next(texts)), json_value(next(texts))


def _question(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what runs must share to be compared; the last three not with training without privacy."""
    return {
        "material": material(settings, summary["weights"]),
        "profile": settings["profile"],
        "period": settings["stream"]["period"] if summary["periods"] else None,
        **{name: settings["privacy"].get(name) for name in ("epsilon", "delta", "fidelity")},
    }


def _same(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    apart = ("epsilon", "delta", "fidelity") if name == "nonprivate" else ()
    return all(one[key] == other[key] for key in one if key not in apart)


def _own(runs: Path, settings: Mapping[str, Any], summary: Mapping[str, Any]) -> float | None:
    """Return the test utility of the user's run of a control that is best on validation; None without one."""
    asked, found = _question(settings, summary), []
    for path in runs.glob(f"*/{RELEASE}/{SUMMARY}"):
        try:
            other = _released(path.parents[1])
            utility = other[1]["utility"]
            if _same(runs.name, asked, _question(*other)) and None not in (utility["validation"], utility["value"]):
                found.append((utility["validation"], utility["value"]))
        except (OSError, ValueError, KeyError, TypeError):  # one that is being written, or of another version
            continue
    return max(found)[1] if found else None


def _published(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the reference's controls that answer the same question."""
    asked, found = _question(settings, summary), dict[str, float]()
    for one in _controls():
        found |= {name: value for name, value in one["test"].items() if _same(name, one["question"], asked)}
    return found


@cache
def _controls() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def controls_text(groups: Iterable[Population]) -> str:
    """Return the content of `controls.json`: of each population and ε the controls that are best on validation."""
    found = []
    for group in groups:
        for period in (*group.periods,) or (None,):
            alone = group if period is None else group.at(period)
            for epsilon in group.epsilons:
                best = {name: alone.best(name, None if name == "nonprivate" else epsilon) for name in CONTROLS}
                test = {name: round(setting.test, 5) for name, setting in best.items() if setting is not None}
                first = group.runs[0]
                question: dict[str, Any] = {"material": first.material, "profile": first.profile, "period": period}
                question |= {"epsilon": epsilon, "delta": None, "fidelity": group.fidelity}
                found.append({"data": group.dataset, "question": question, "test": test})
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
