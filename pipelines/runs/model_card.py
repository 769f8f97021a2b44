"""MODEL_CARD.md of a release: what was trained, under which guarantee, on which data, how well, and by which command.

A function of the other released files alone, so that it reveals nothing more; :func:`pipelines.runs.release.checked`
writes it again and compares.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.config.compose import Composer, container, override_text

_DEFAULTS = {"model": "pctr", "privacy": "rigorous", "profile": "demo"}
"""What a command line need not say."""


def model_card(config: Mapping[str, Any], ledger: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the card of a release, in Markdown.

    Args:
        config: the released settings.
        ledger: content of ``ledger.json``.
        summary: content of ``summary.json``.
    """
    sections = {
        "Guarantee": _guarantee(ledger, summary),
        "Data": _data(config, summary),
        "Utility": _utility(summary),
        "Made by": _made_by(config),
        "Use": _use(config),
    }
    lines = [f"# {summary['dataset']}: {summary['model']} trained with {summary['algorithm']}", ""]
    lines += [_first(summary)]
    for title, text in sections.items():
        lines += ["", f"## {title}", "", *text]
    return "\n".join(lines) + "\n"


def _first(summary: Mapping[str, Any]) -> str:
    utility, privacy = summary["utility"], summary["privacy"]
    cost = "no privacy" if privacy is None else f"ε = {privacy['epsilon']:.4g} at δ = {privacy['delta']:.3g}"
    return f"{_metric(utility)} {_number(utility['value'], 4)} on test rows, {cost}. Trained with dpfest."


def _metric(utility: Mapping[str, Any]) -> str:
    return {"auc": "AUC", "accuracy": "Accuracy"}.get(utility["metric"], utility["metric"])


def _number(value: float | None, digits: int = 5) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def _guarantee(ledger: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    privacy = summary["privacy"]
    if privacy is None:
        return ["None: this model was trained without privacy, and may reveal its training rows."]
    lines = [f"- ε = {privacy['epsilon']:.6g} at δ = {privacy['delta']:.3g}: {ledger['neighbours']}."]
    if privacy["sound_epsilon"] != privacy["epsilon"]:
        sound = privacy["sound_epsilon"]
        lines.append(
            "- That is the accounting of the paper, which is not proven; "
            + ("nothing proven can be said." if sound is None else f"proven is ε = {sound:.6g}.")
        )
    lines += [f"- {statement}" for statement in ledger["statements"]]
    noise = privacy["gradient_noise_multiplier"]
    steps = f"- {summary['steps']:,} steps on batches of {summary['batch_size']:,} in the mean"
    lines.append(steps + ("." if noise is None else f", noise multiplier {noise:.4g} of the gradient."))
    return [*lines, f"- Accountant: {ledger['accountant']}. `ledger.json` has every event."]


def _data(config: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    data, tables = config["data"], summary["embedding_gradient"]["tables"]
    unit = (summary["privacy"] or {}).get("unit")
    counted = "training examples" if unit is None else f"units in training, by the column {unit}"
    lines = [f"- `{summary['dataset']}`: {summary['examples']:,} {counted}."]
    if isinstance(data.get("path"), str):
        lines.append(f"- Read from `{data['path']}`.")
    if data.get("split_by"):
        lines.append(f"- Rows are divided by the column `{data['split_by']}`.")
    elif isinstance(data.get("split"), Mapping) and {"train", "validation", "test"} <= set(data["split"]):
        shares = (f"{100 * data['split'][name]:g}% {name}" for name in ("train", "validation", "test"))
        lines.append(f"- Rows are divided by a hash of each line: {', '.join(shares)}.")
    if summary["periods"]:
        stream = config["stream"]
        days = f"the first {stream['train_days']} days, in periods of {stream['period']}"
        lines.append(f"- A stream: trained on {days}; later days are held out.")
    if privacy := summary["privacy"]:
        known = (
            "are public"
            if privacy["public_vocabulary"]
            else "were learnt from training rows, **outside the guarantee**"
        )
        if "vocabulary" in privacy:
            known = "are a private release of training rows, which ε covers"
        lines.append(f"- The vocabularies {known}.")
    if tables:
        sizes = ", ".join(f"{table['name']} ({table['rows']:,} × {table['dim']})" for table in tables)
        lines.append(f"- Embedding tables, rows × dimension: {sizes}.")
    return lines


def _utility(summary: Mapping[str, Any]) -> list[str]:
    utility, gradient = summary["utility"], summary["embedding_gradient"]
    rows: list[tuple[str, ...]] = [("", "test", "validation")]
    rows += [(_metric(utility), _number(utility["value"]), _number(utility["validation"]))]
    errors = (utility["standard_error"], utility["validation_standard_error"])
    rows += [("its standard error", *map(_number, errors))]
    for name, key in (
        ("log loss", "loss"),
        ("log loss of the best constant", "constant_loss"),
        ("log loss after calibration", "calibrated_loss"),
    ):
        if utility.get(key) is not None:
            rows.append((name, _number(utility[key]), ""))
    table = [f"| {' | '.join(row)} |" for row in rows]
    lines = [table[0], "|---|---|---|", *table[1:], ""]
    if gradient["reduction"] is not None:
        cut, whole = f"{gradient['reduction']:,.3g}", f"{gradient['parameters']:,}"
        lines.append(
            f"A step changes {gradient['coordinates_mean']:,.0f} of {whole} coordinates of the embeddings, in the "
            f"mean: a gradient {cut} times smaller than dense."
        )
    if utility.get("calibrated_loss") is not None:
        lines.append(
            "Raw scores of private models are often too sure; the `probability` of `dpfest predict` is calibrated."
        )
    lines.append("Validation rows chose the calibration and may have chosen settings; ε does not cover them.")
    return lines


def _made_by(config: Mapping[str, Any]) -> list[str]:
    words, composer = ["dpfest", "sweep" if "search" in config else "train", *overrides_of(config)], Composer()
    lines = ["```sh", shlex.join(words), "```", ""]
    name = config["data"]["name"]
    if name not in composer.choices("data"):
        lines += [f"`conf/data/{name}.yaml` describes the data: the section `data` of `config.yaml`.", ""]
    if "search" in config:
        lines += ["It is the best of a private search, over a grid of settings of which these were chosen.", ""]
    return [*lines, "The noise key, and seeds of noise, are not released. Of files only the last name is told."]


def overrides_of(config: Mapping[str, Any]) -> list[str]:
    """Return what a command line adds to the defaults for released settings.

    Settings of data that are described by a file of the user's are left out.
    """
    composer = Composer()
    names = {group: config[group]["name"] for group in ("data", "model", "algorithm")}
    names |= {"privacy": config["privacy"]["fidelity"], "profile": config["profile"]}
    if "search" in config:
        names["search"] = config["search"]["distribution"]
    known = {group: name for group, name in names.items() if name in composer.choices(group)}
    own_data = "data" not in known
    if own_data:  # what describes it is in its file; other settings are as with any table
        known["data"] = config["data"].get("kind") or "table"
    base = container(composer.compose([f"{group}={name}" for group, name in known.items()]))
    always = {"data": names["data"], "algorithm": names["algorithm"]}
    chosen = {group: name for group, name in known.items() if name != _DEFAULTS.get(group) and group != "data"}
    return [
        *(f"{group}={name}" for group, name in (always | chosen).items()),
        *(
            f"{key}={override_text(value)}"
            for key, value in _changed(config, base)
            if not (own_data and (key == "data" or key.startswith("data.")))
        ),
    ]


def _changed(own: Mapping[str, Any], base: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key and the value of every setting that differs."""
    for key, value in own.items():
        name, before = f"{where}{key}", base.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping) and set(value) <= set(before):
            yield from _changed(value, before, f"{name}.")
        elif value != before:
            yield name, value


def _use(config: Mapping[str, Any]) -> list[str]:
    if not config["train"]["save_model"]:
        return ["The weights were not kept (`train.save_model=false`)."]
    return [
        "`dpfest predict FOLDER data.path=FILE -o scores.parquet` scores new rows; in Python:",
        "",
        "```python",
        "from pipelines.train.trained import load",
        "",
        'trained = load("FOLDER")',
        'scores = trained.predict("FILE")',
        "```",
    ]
