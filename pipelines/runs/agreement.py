"""What the three parts of a run's release must agree on, and the range of every number in them.

One check for a release before it is packed, for a run card and for a folder that a report reads: a checksum shows that
files are those that somebody wrote, not that they are one run's. It costs no composition; a release is also recounted
(:mod:`pipelines.runs.release`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from dpfest.errors import UserError
from dpfest.noise.key import AES, CHACHA
from pipelines.runs.costs import refuse_other_costs

_PRIVACY = ("epsilon", "sound_epsilon", "delta", "fidelity", "sampling")
_RUN = ("algorithm", "examples", "batch_size", "steps")
_SHARES = ("auc", "accuracy", "value", "validation")
_FINITE = ("scale", "shift")
_SIZES = ("standard_error", "validation_standard_error", "loss", "constant_loss", "calibrated_loss")


def refuse_disagreement(settings: Mapping[str, Any], ledger: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Refuse settings, a ledger and a summary that are not of one run.

    Raises:
        UserError: names the first value that is out of range, or that two of them state differently.
    """
    try:
        _names(settings, summary)
        _numbers(summary)
        _privacy(settings, ledger, summary)
    except UserError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        what = f"lack {error}" if isinstance(error, KeyError) else f"are malformed ({error})"
        raise UserError(f"the summary, the settings or the ledger {what}") from error


def _names(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    if summary.get("weights") is not None:
        _word("weights", summary["weights"], r"[0-9a-f]{8}")
    _word("utility.metric", summary["utility"]["metric"], "auc|accuracy")
    _word("utility.split", summary["utility"].get("split", "test"), "test")
    for table in summary["embedding_gradient"].get("tables") or ():
        _word("name of a table", table["name"], r"[\w.+-]{1,100}")
    _word("device of the settings", settings.get("device", "cpu"), r"[a-z]{1,20}(:[0-9]{1,3})?")
    for key, section in (("dataset", "data"), ("algorithm", "algorithm"), ("model", "model")):
        _refuse_other(f"{key} of the summary", summary[key], f"{section}.name", settings[section]["name"])
    _refuse_other("seed of the summary", summary["seed"], "that of the settings", settings["seed"])
    if isinstance(settings.get("profile"), str):
        _refuse_other("profile of the summary", summary["profile"], "that of the settings", settings["profile"])
    for name, section in (summary.get("hyperparameters") or {}).items():
        _refuse_other(f"hyperparameters.{name} of the summary", section, "those of the settings", settings.get(name))


def _numbers(summary: Mapping[str, Any]) -> None:
    for key in ("examples", "batch_size", "steps"):
        _whole(key, summary[key])
    _utility("utility", summary["utility"])
    gradient = summary["embedding_gradient"]
    _whole("embedding_gradient.parameters", gradient["parameters"])
    _between(
        "embedding_gradient.coordinates_mean", gradient["coordinates_mean"], 0, _most_coordinates(summary) * (1 + 1e-9)
    )
    if "reduction" in gradient:
        stated, mean = gradient["reduction"], gradient["coordinates_mean"]
        expected = gradient["parameters"] / mean if mean else None
        same = stated is None if expected is None else stated and math.isclose(stated, expected, rel_tol=1e-9)
        if not same:
            raise UserError(f"embedding_gradient.reduction is {stated}, and its parts give {expected}")
    for table in gradient.get("tables") or ():
        _whole("rows of a table", table["rows"])
        _whole("dim of a table", table["dim"])
        _between("rows_mean of a table", table["rows_mean"], 0, table["rows"])
    for period in summary["periods"] or ():
        _whole("period", period["period"])
        _whole("examples of a period", period["examples"])
        for split in ("validation", "following", "test"):
            _utility(f"{split} of a period", period.get(split) or {})


def _most_coordinates(summary: Mapping[str, Any]) -> float:
    """Return the most coordinates that a step can update: those of the tables, or those of LoRA's factors in their
    place, of which a high rank has more."""
    rank = ((summary.get("hyperparameters") or {}).get("algorithm") or {}).get("rank")
    parameters, tables = (summary["embedding_gradient"].get(name) for name in ("parameters", "tables"))
    if not isinstance(rank, int) or not tables:
        return parameters
    return rank * (tables[0]["rows"] + parameters / tables[0]["rows"])  # of the one table of words


def _utility(where: str, found: Mapping[str, Any]) -> None:
    for key, value in found.items():
        if value is not None and key in _SHARES:
            _between(f"{where}.{key}", value, 0, 1)
        elif value is not None and key in _SIZES:
            _between(f"{where}.{key}", value, 0, math.inf)
        elif value is not None and key in _FINITE:
            _between(f"{where}.{key}", value, -math.inf, math.inf)
    for place, group in enumerate(found.get("reliability") or ()):
        for value, most in zip(group, (math.inf, 1, 1, 1), strict=True):
            if value is not None:
                _between(f"{where}.reliability[{place}]", value, 0, most)
    if found.get("calibration"):
        _utility(f"{where}.calibration", found["calibration"])


def _privacy(settings: Mapping[str, Any], ledger: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    run = ledger["run"]
    _refuse_other("run.settings of the ledger", run["settings"], "those of the algorithm", settings["algorithm"])
    for key in _RUN:
        _refuse_other(f"run.{key} of the ledger", run[key], "that of the summary", summary[key])
    spent, target = summary["privacy"], ledger["target_epsilon"]
    if (spent is None) != (target is None) or (spent is None) != (ledger["epsilon"] is None):
        raise UserError("the ledger and the summary do not agree on whether the run is private")
    if spent is None:
        if ledger["events"] or ledger["planned"]:
            raise UserError("the ledger of a run without privacy has events")
        return
    for key in _PRIVACY:
        _refuse_other(f"privacy.{key} of the summary", spent[key], f"{key} of the ledger", ledger[key])
    asked = settings["privacy"]
    _refuse_other("fidelity of the ledger", ledger["fidelity"], "privacy.fidelity", asked["fidelity"])
    if "search" not in ledger:  # there, epsilon is that of all runs
        _refuse_other("target_epsilon of the ledger", target, "privacy.epsilon", asked["epsilon"])
    if asked["delta"] is not None:
        _refuse_other("delta of the ledger", ledger["delta"], "privacy.delta", asked["delta"])
    elif not math.isclose(ledger["delta"], 1 / summary["examples"], rel_tol=1e-9):
        raise UserError(f"delta of the ledger is {ledger['delta']}, and 1 / examples {1 / summary['examples']}")
    _between("delta", ledger["delta"], 1e-300, 1)
    _between("target_epsilon", target, 0, 1e6)
    _between("epsilon", ledger["epsilon"], 0, target * (1 + 1e-9))
    if type(ledger["fixed_noise_seed"]) is not bool:
        raise UserError("fixed_noise_seed of the ledger is neither true nor false")
    named = ledger.get("cipher", AES)
    if ledger.get("cipher") not in (None, CHACHA) or asked.get("cipher") not in (None, named):
        raise UserError(f"cipher of the ledger is {str(named)[:40]}, and privacy.cipher {asked.get('cipher')}")
    refuse_other_costs(settings, ledger, summary)


def _refuse_other(what: str, value: Any, other: str, expected: Any) -> None:
    if (type(value) is not type(expected) and not _numeric(value, expected)) or value != expected:
        raise UserError(f"{what} is {str(value)[:80]}, and {other} {str(expected)[:80]}")


def _word(what: str, value: Any, pattern: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise UserError(f"{what} is {str(value)[:80]!r}, which no run writes")


def _numeric(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _between(what: str, value: Any, least: float, most: float) -> None:
    if not _numeric(value) or not math.isfinite(value) or not least <= value <= most:
        raise UserError(f"{what} is {str(value)[:80]}, not a number from {least:g} to {most:g}")


def _whole(what: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{what} is {str(value)[:80]}, not a whole number above 0")
