"""What leaves: one training row moves noised quantities and nothing else, and `dpfest release` packs what is listed."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.preprocess import preprocess
from pipelines.runs import agreement
from pipelines.runs.directory import RunDirectory
from pipelines.runs.model_card import model_card
from pipelines.runs.release import CARD, checked, pack
from pipelines.system.checksum import SUMS, sums_text, write_sums
from pipelines.system.files import json_text
from pipelines.train import make_run
from tests.pipelines.resealed import reseal

RunsIn = Callable[[Path], Path]

# Batches of nine tenths of the examples: the row that is changed is in most of them.
SETTINGS = {
    "clicks": ["data=criteo_synthetic", "data.rows=200", "train.batch_size=140", "train.steps=2"],
    "stream": [
        *("data=criteo_synthetic_stream", "data.days=3", "data.rows_per_day=60", "stream.train_days=2"),
        *("stream.period=1", "train.batch_size=54", "train.steps=2"),
    ],
    "text": ["data=text_synthetic", "data.rows=120", "data.test_rows=40", "train.batch_size=96", "train.steps=2"],
}
HALF = {"clicks": 70, "stream": 27, "text": 48}
"""Batches of one of two groups of examples."""
ALGORITHMS = (
    "nonprivate",
    "dpsgd",
    "lazy",
    "bands",
    "threshold",
    "fest",
    "adafest",
    "adafest_plus",
    "exponential",
    "frozen",
)
QUICK = [
    ("clicks", "adafest_plus"),
    ("clicks", "lazy"),
    ("clicks", "bands"),
    ("stream", "fest"),
]
"""A map and a selection; noise that is pending, or correlated; a selection day by day."""
SLOW = [(kind, rule) for kind in ("clicks", "stream") for rule in ALGORITHMS if (kind, rule) not in QUICK]
SLOW += [("clicks", "smaller_tables"), ("text", "lora_embedding"), ("text", "adafest_plus")]
SLOW += [("text", rule) for rule in ("nonprivate", "dpsgd", "threshold", "fest", "adafest", "exponential", "frozen")]

# Released quantities that depend on training rows through noise alone. A new one belongs here only with that argument.
SCORES = r"value|standard_error|validation|validation_standard_error|loss|calibrated_loss|calibration\.\w+"
WEIGHTS = rf"utility\.({SCORES})|utility\.reliability\[\]\[\]|periods\[\]\.\w+\.\w+"
ROWS = r"embedding_gradient\.(coordinates_mean|reduction|tables\[\]\.rows_mean)"
READS_GRADIENTS = {"exponential", "threshold"}
"""Rules whose rows follow from noised gradients, and so from labels as well."""
READS_IDS = {"nonprivate", "adafest", "adafest_plus", *READS_GRADIENTS}
"""Rules whose rows follow from the batches' ids."""


def config(kind: str, rule: str, data: Path, runs: Path, *more: str) -> Config:
    small = [] if kind == "text" else [f"data.vocabulary.sizes={[20] * 26}"]
    settings = {
        "lazy": ["algorithm=dpsgd", "algorithm.noise=lazy"],
        "bands": ["algorithm=dpsgd", "algorithm.bands=2", f"train.batch_size={HALF[kind]}", "train.steps=4"],
        "fest": ["algorithm=fest", "algorithm.selection.rows=130"],
        "adafest": ["algorithm=adafest", "algorithm.threshold=2"],
        "adafest_plus": ["algorithm=adafest_plus", "algorithm.threshold=2", "algorithm.selection.rows=130"],
        "exponential": ["algorithm=exponential", "algorithm.rows_per_step=20"],
    }.get(rule, [f"algorithm={rule}"])
    places = [f"paths.data={data}", f"paths.runs={runs}", "privacy.noise_seed=5"]
    return typed(Composer().compose([*SETTINGS[kind], "profile=smoke", *small, *settings, *places, *more]))


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """Of a kind of data three folders that differ in one processed training row: as it is, its label, its ids."""
    made: dict[str, dict[str, Path]] = {}

    def of(kind: str) -> dict[str, Path]:
        if kind not in made:
            base = tmp_path_factory.mktemp(kind)
            folder = preprocess(config(kind, "dpsgd", base / "as_it_is", base / "runs"))
            made[kind] = {"as it is": base / "as_it_is"}
            for what in ("label", "ids"):
                made[kind][what] = base / what
                shutil.copytree(base / "as_it_is", base / what)
                day = "day_01" if kind == "stream" else ""  # of the second period
                change(base / what / folder.name / day, what)
        return made[kind]

    return of


def change(folder: Path, what: str) -> None:
    """Change one row of the training rows, in place."""
    description = json.loads((folder / "dataset.json").read_text())
    record = np.dtype([(f["name"], f["dtype"], tuple(f["shape"])) for f in description["record"]["fields"]])
    row = np.memmap(folder / "train.rows", record, "r+")[7:8]
    if what == "label":
        row["label"] = 1 - row["label"]
    elif "categorical" in (record.names or ()):
        row["categorical"] = (row["categorical"] + 1) % 20
    else:
        inner = slice(1, int(row["length"][0]) - 1)  # between the marks
        row["ids"][0, inner] = 5 + (row["ids"][0, inner] - 5 + 1) % 400
    del row
    (folder / "histogram.npy").unlink(missing_ok=True)
    reseal(folder)


def released(run: Path, runs: Path) -> dict[str, Any]:
    """Every released thing by its name: the places of a JSON file, tensors, and other files by their bytes."""
    found: dict[str, Any] = {"status.json": (run / "status.json").read_bytes()}
    for path in sorted([*(run / "release").iterdir(), *runs.glob(".selections/*/*/release/*")]):
        if path.name == SUMS:
            assert path.read_text() == sums_text(path.parent)  # it follows from the others
        elif path.name == CARD:
            config = yaml.safe_load((path.parent / "config.yaml").read_text())
            others = (json.loads((path.parent / name).read_text()) for name in ("ledger.json", "summary.json"))
            assert path.read_text() == model_card(config, *others)  # as well
        elif path.suffix == ".json":
            value = json.loads(path.read_text())
            found |= {f"{path.name}:{place}": item for place, item in places(value)}
            found[f"{path.name}:keys"] = [place for place, _ in places(value)]
        elif path.suffix == ".safetensors":
            tensors = load_file(path)
            found |= {f"{path.name}:{name}": value.numpy().tobytes() for name, value in tensors.items()}
        else:
            found[f"{path.parts[-4] if path.suffix == '.npy' else ''}{path.name}"] = path.read_bytes()
    return found


def places(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Plain values and where they stand: `privacy.periods[2].steps`."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, f"{where}[{number}]")
    else:
        yield where, value


def moved(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """Names of what differs, places in lists without their number."""
    assert list(one) == list(other)
    return {re.sub(r"\[\d+\]", "[]", name) for name in one if one[name] != other[name]}


def permitted(names: set[str], *patterns: str) -> set[str]:
    """Those of the names that are none of the noised quantities."""
    noised = re.compile("|".join(f"({pattern})" for pattern in patterns) or "(?!)")
    return {name for name in names if not noised.fullmatch(name)}


@pytest.mark.parametrize(("kind", "rule"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_one_training_row_moves_noised_quantities_alone(
    tmp_path: Path, neighbours: Callable[[str], dict[str, Path]], runs_in: RunsIn, kind: str, rule: str
) -> None:
    """Under one noise key, on data of as many rows; without a learning rate the weights cannot move, and nothing may.

    No chance enters: with the fixed key every released byte is a function of the data. Slow for the most part: six
    trainings a case.
    """
    if kind == "text":
        pytest.importorskip("transformers")
        pytest.importorskip("peft")
    still = ("optimizer.dense.learning_rate=1e-300", "optimizer.tables.learning_rate=1e-300")
    found: dict[tuple[str, bool], dict[str, Any]] = {}
    for what, data in neighbours(kind).items():
        runs = runs_in(tmp_path / what.replace(" ", "_"))
        for moves in (True, False):
            run = make_run(config(kind, rule, data, runs, *(() if moves else still)))
            found[what, moves] = released(run.path, runs)
            checked(run.path)
    for what in ("label", "ids"):
        rows = rule in READS_IDS and (what == "ids" or rule in READS_GRADIENTS)
        noised = [f"summary.json:{ROWS}"] if rows else []
        noised += [r"\w+rows\.npy", r"\w+counts\.npy"] if what == "ids" else []
        at_rest = moved(found["as it is", False], found[what, False])
        assert permitted(at_rest, *noised) == set(), f"{what}, weights at rest"
        noised += [r"model\.safetensors:.+", f"summary.json:({WEIGHTS})"]
        noised += [f"summary.json:{ROWS}"] if rule in READS_IDS else []  # weights that moved draw other rows
        in_motion = moved(found["as it is", True], found[what, True])
        assert permitted(in_motion, *noised) == set(), f"{what}, weights in motion"
        assert any(name.startswith("model.safetensors") for name in in_motion), "the row was in no batch"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, prepared: Path, runs_in: RunsIn) -> Path:
    """A finished run."""
    runs = runs_in(tmp_path_factory.mktemp("release") / "runs")
    return make_run(config("clicks", "adafest", prepared, runs)).path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    copy = tmp_path / made.name
    shutil.copytree(made, copy)
    return copy


def test_a_release_tells_no_seed_no_place_no_time_and_no_machine(made: Path, prepared: Path) -> None:
    settings = yaml.safe_load((made / "release" / "config.yaml").read_text())
    assert "noise_seed" not in settings["privacy"] and "paths" not in settings
    assert typed(settings).privacy.noise_seed is None  # it reads as a configuration
    asked = yaml.safe_load((made / "private" / "config.yaml").read_text())
    assert asked["privacy"]["noise_seed"] == 5
    assert json.loads((made / "status.json").read_text()) == {"status": "done", "reason": None}
    whole = "".join((made / "release" / name).read_text() for name in ("config.yaml", "ledger.json", "summary.json"))
    for word in (
        str(made.parents[3]),
        str(prepared),
        made.name,
        "noise_seed:",
        '"noise_seed"',
        "seconds",
        "pid",
        "throughput",
    ):
        assert word not in whole, word


def test_places_of_files_lose_all_but_their_name(tmp_path: Path, prepared: Path, runs_in: RunsIn) -> None:
    np.save(tmp_path / "prior.npy", np.ones(26 * 20))
    public = ("algorithm.selection.mechanism=public", f"algorithm.selection.prior={tmp_path}/prior.npy")
    path = make_run(config("clicks", "fest", prepared, runs_in(tmp_path / "runs"), *public)).path
    summary = json.loads((path / "release" / "summary.json").read_text())
    assert summary["hyperparameters"]["algorithm"]["selection"]["prior"] == "prior.npy"
    assert checked(path).summary == summary
    (selection,) = (tmp_path / "runs" / ".selections" / "criteo_synthetic").iterdir()
    assert {file.name for file in (selection / "release").iterdir()} == {SUMS, "rows.npy", "selection.json"}
    told = json.loads((selection / "release" / "selection.json").read_text())
    assert told.keys() == {"selection", "rows", "rows_per_feature", "spent"}
    kept = selection / "private" / "request.json"
    assert json.loads(kept.read_text()).keys() == {"data", "selection", "noise_seed"}
    assert kept.parent.stat().st_mode & 0o077 == 0 == kept.stat().st_mode & 0o077


def edit_json(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def edit_within(path: Path, section: str, **changes: Any) -> None:
    edit_json(path, **{section: json.loads(path.read_text())[section] | changes})


def edit_config(path: Path, section: str, **changes: Any) -> None:
    heading, _, rest = path.read_text().partition("\n")
    settings = yaml.safe_load(rest)
    if section:
        settings[section] |= changes
    else:
        settings |= changes
    path.write_text(heading + "\n" + yaml.safe_dump(settings, sort_keys=False))


def add_tensor(path: Path) -> None:
    save_file(load_file(path) | {"example_7": load_file(path)["tables.0.weight"]}, path)


def replace_by_link(path: Path) -> None:
    target = path.rename(path.parents[1] / "private" / path.name)
    target.chmod(0o600)
    path.symlink_to(target)


def repeat_a_key(path: Path) -> None:
    path.write_text(path.read_text().replace("{", '{\n  "seed": "of an example",', 1))


def keep_the_key(path: Path) -> None:
    path.write_bytes(b"key")
    path.chmod(0o600)


SUMMARY, LEDGER, CONFIG = "release/summary.json", "release/ledger.json", "release/config.yaml"
MODEL = "release/model.safetensors"


@pytest.mark.parametrize(
    ("name", "harm", "message"),
    [
        ("release/metrics.jsonl", lambda f: f.write_text("{}"), "metrics.jsonl is not on the list of what a release"),
        ("notes.txt", lambda f: f.write_text("mine"), "notes.txt is not on the list of what a run's folder"),
        (".release.7.partial", lambda f: f.mkdir(), ".release.7.partial is not on the list"),
        ("release/.summary.json.7.partial", lambda f: f.touch(), "partial is not on the list"),
        (SUMMARY, lambda f: f.unlink(), "summary.json is missing"),
        (MODEL, lambda f: f.unlink(), "model.safetensors is missing"),
        (SUMMARY, replace_by_link, "summary.json is a link or no plain file"),
        (MODEL, replace_by_link, "model.safetensors is a link or no plain file"),
        (LEDGER, lambda f: f.write_text(""), "ledger.json is empty"),
        (LEDGER, lambda f: f.write_text('{"schema": 2'), "ledger.json is damaged"),
        (LEDGER, lambda f: f.write_text("[]"), "ledger.json is damaged"),
        (CONFIG, lambda f: f.write_text("a: [1"), "config.yaml is damaged"),
        (SUMMARY, lambda f: edit_within(f, "utility", loss=float("nan")), "summary.json is damaged"),
        (
            SUMMARY,
            lambda f: edit_json(f, throughput={"wall_seconds": 3}),
            "contains throughput, which is not on the list",
        ),
        (SUMMARY, lambda f: edit_within(f, "utility", train_loss=1), "contains utility.train_loss, which is not on"),
        (SUMMARY, lambda f: edit_json(f, seed={"x": 1}), "has at seed a value that may not be published"),
        (SUMMARY, lambda f: edit_json(f, schema=1), "has schema 1, and this version packs 2"),
        (SUMMARY, lambda f: edit_json(f, model="/home/me/x"), "contains /home/me/x, a path on a machine"),
        (SUMMARY, lambda f: edit_json(f, hyperparameters={"seed": 3}), "hyperparameters.seed of the summary is 3"),
        (SUMMARY, lambda f: edit_json(f, steps=9), "are not from one run"),
        (
            SUMMARY,
            lambda f: edit_json(f, dataset="../../evil"),
            "'../../evil' as its dataset, which is no name",
        ),
        (SUMMARY, lambda f: edit_json(f, dataset="journey"), "dataset of the summary is journey, and data.name"),
        (SUMMARY, lambda f: edit_json(f, algorithm="fest"), "algorithm of the summary is fest, and algorithm.name"),
        (SUMMARY, lambda f: edit_json(f, seed=7), "seed of the summary is 7"),
        (SUMMARY, lambda f: edit_json(f, privacy=None), "do not agree on whether the run is private"),
        (SUMMARY, lambda f: edit_within(f, "utility", value=5.0), "utility.value is 5.0, not a number from 0 to 1"),
        (SUMMARY, lambda f: edit_within(f, "utility", loss=-1.0), "utility.loss is -1.0"),
        (SUMMARY, lambda f: edit_within(f, "utility", calibrated_loss="low"), "utility.calibrated_loss is low"),
        (
            SUMMARY,
            lambda f: edit_within(f, "utility", reliability=[[9, 2.0, 0.5, 0.5]]),
            "utility.reliability[0] is 2.0",
        ),
        (
            SUMMARY,
            lambda f: edit_within(f, "utility", calibration={"scale": math.inf, "shift": 0.0}),
            "is damaged (Infinity is not JSON)",
        ),
        (SUMMARY, lambda f: edit_within(f, "embedding_gradient", reduction=1e9), "embedding_gradient.reduction is"),
        (SUMMARY, lambda f: edit_within(f, "privacy", delta=1e-30), "privacy.delta of the summary is 1e-30"),
        (SUMMARY, lambda f: edit_within(f, "privacy", noise_multiplier=9.9), "privacy.noise_multiplier is 9.9, where"),
        (
            SUMMARY,
            lambda f: edit_within(f, "privacy", step={"what": "Alice bought milk"}),
            "privacy.step is {'what': 'Alice bought milk'}, where",
        ),
        (SUMMARY, lambda f: edit_within(f, "privacy", public_vocabulary=False), "privacy.public_vocabulary is False"),
        (SUMMARY, lambda f: edit_within(f, "privacy", epsilon_at_own_rates="0.1"), "privacy.epsilon_at_own_rates of"),
        (SUMMARY, lambda f: edit_within(f, "privacy", unit="household"), "privacy.unit is household, where None"),
        (SUMMARY, lambda f: edit_within(f, "privacy", search={"mean": 1.0}), "on whether a private search chose"),
        (SUMMARY, lambda f: edit_within(f, "utility", metric="my mood"), "utility.metric is 'my mood'"),
        (SUMMARY, lambda f: edit_within(f, "utility", split="train"), "utility.split is 'train'"),
        (SUMMARY, lambda f: edit_json(f, weights="a secret"), "weights is 'a secret', which no run writes"),
        (LEDGER, lambda f: edit_json(f, target_epsilon=None), "do not agree on whether the run is private"),
        (LEDGER, lambda f: edit_json(f, target_epsilon=50.0), "target_epsilon of the ledger is 50.0"),
        (LEDGER, lambda f: edit_json(f, fixed_noise_seed=0), "fixed_noise_seed of the ledger is neither"),
        (LEDGER, lambda f: edit_json(f, cipher="Alice"), "cipher of the ledger is Alice, and privacy.cipher None"),
        (LEDGER, lambda f: edit_json(f, cipher="aes256-ctr"), "cipher of the ledger is aes256-ctr"),
        (SUMMARY, lambda f: f.write_text(f.read_text() + " "), "summary.json differs from the bytes that a run writes"),
        (SUMMARY, repeat_a_key, "summary.json differs from the bytes that a run writes"),
        (LEDGER, lambda f: edit_json(f, batch_sizes=[7]), "ledger.json contains batch_sizes, which is not on the list"),
        (LEDGER, lambda f: edit_within(f, "run", data="a1"), "ledger.json contains run.data, which is not on the list"),
        (LEDGER, lambda f: edit_within(f, "run", settings={}), "run.settings of the ledger is {}"),
        (LEDGER, lambda f: edit_within(f, "run", steps=9), "are not from one run"),
        (LEDGER, lambda f: edit_json(f, run=None), "ledger.json lacks algorithm"),
        (CONFIG, lambda f: edit_config(f, "privacy", noise_seed=5), "contains privacy.noise_seed"),
        (CONFIG, lambda f: edit_config(f, "data", secret=5), "there is no key data.secret"),
        (CONFIG, lambda f: edit_config(f, "", paths={"data": "x"}), "config.yaml contains paths, which is not on the"),
        (CONFIG, lambda f: edit_config(f, "", device="/home/me"), "contains /home/me, a path on a machine"),
        (CONFIG, lambda f: f.write_text(f.read_text() + "# seed 5\n"), "config.yaml differs from the bytes"),
        (MODEL, add_tensor, "has float32 [20, 4] for example_7, and summary.json has none"),
        (MODEL, lambda f: save_file(load_file(f), f, {"loss": "0.3"}), "contains metadata (loss)"),
        (MODEL, lambda f: f.write_bytes(f.read_bytes()[:-4]), "model.safetensors is damaged"),
        (MODEL, lambda f: f.chmod(0o666), "is writable by every user"),
        ("private", lambda f: f.chmod(0o755), "is private, and other users can open it"),
        ("private/metrics.jsonl", lambda f: f.chmod(0o644), "metrics.jsonl is private, and other users"),
        ("private/state.pt", keep_the_key, "still holds the noise key"),
        ("status.json", lambda f: edit_json(f, status="running"), "its status is running"),
        ("status.json", lambda f: f.unlink(), "is not the folder of a run"),
        ("release", lambda f: shutil.rmtree(f), "release is not a folder"),
    ],
)
def test_what_is_not_on_the_list_is_refused_by_name(
    run: Path, name: str, harm: Callable[[Path], object], message: str
) -> None:
    checked(run)
    harm(run / name)
    with pytest.raises(UserError) as refused:
        checked(run)
    assert message in str(refused.value), refused.value


def test_a_run_whose_private_folder_is_gone_may_leave(run: Path) -> None:
    shutil.rmtree(run / "private")
    assert len(checked(run).files) == 6


def test_an_archive_holds_the_release_and_is_the_same_bytes_again(run: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    pack([checked(run)], first)
    for path in run.rglob("*"):
        os.utime(path, (1, 1))
    moved_run = run.rename(tmp_path / "elsewhere")
    pack([checked(moved_run)], second)
    assert first.read_bytes() == second.read_bytes()
    assert run.name.encode() not in first.read_bytes()  # it covers a fingerprint of the data
    with zipfile.ZipFile(first) as archive:
        name = checked(moved_run).name
        files = (CARD, SUMS, "config.yaml", "ledger.json", "model.safetensors", "summary.json")
        assert archive.namelist() == [f"{name}/{file}" for file in files]
        for file in files:
            assert archive.read(f"{name}/{file}") == (moved_run / "release" / file).read_bytes()
    with pytest.raises(UserError, match=r"first\.zip already"):
        pack([checked(moved_run)], first)


def test_a_ledger_is_recounted_before_it_leaves(run: Path) -> None:
    path = run / "release" / "ledger.json"
    ledger = json.loads(path.read_text())
    summary = json.loads((run / "release" / "summary.json").read_text())
    ledger["epsilon"] = summary["privacy"]["epsilon"] = ledger["epsilon"] / 2
    path.write_text(json_text(ledger))
    (run / "release" / "summary.json").write_text(json_text(summary))
    write_sums(run / "release")
    with pytest.raises(UserError, match=r"ledger\.json states epsilon .*, but its events cost"):
        checked(run)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sound_epsilon": 0.1}, r"states sound_epsilon 0\.1, but its events cost"),
        ({"statements": ["Nothing can be learnt."]}, "lacks the statement: Epsilon holds at delta"),
        ({"more": "Call 555 0199."}, "states what nothing in it gives: Call 555 0199"),
        ({"fixed_noise_seed": False}, "lacks the statement|states what nothing"),
        ({"sampling": "balls_in_bins"}, "cannot be recomputed|states sampling"),
        ({"neighbours": "add or remove one byte"}, "lacks the statement"),
        ({"accountant": "a friend"}, "names an accountant that did not count it"),
        ({"value_discretization_interval": 1e-9}, "states value_discretization_interval"),
        ({"planned": []}, "privacy.step is .*, where None is due"),
    ],
)
def test_a_ledger_that_says_more_or_less_than_its_events_give_is_refused(
    run: Path, changed: dict[str, Any], message: str
) -> None:
    """Sums regenerated, and the summary changed along, as an editor would."""
    ledger, summary = (json.loads((run / "release" / name).read_text()) for name in ("ledger.json", "summary.json"))
    if more := changed.get("more"):
        changed = {"statements": [*ledger["statements"], more]}
    ledger |= changed
    summary["privacy"] |= {name: value for name, value in changed.items() if name in summary["privacy"]}
    for name, value in (("ledger.json", ledger), ("summary.json", summary)):
        (run / "release" / name).write_text(json_text(value))
    write_sums(run / "release")
    with pytest.raises(UserError, match=message):
        checked(run)


def _without_a_number(path: Path) -> None:
    weights = load_file(path)
    name = sorted(weights)[0]
    weights[name].view(-1)[3] = float("nan")
    save_file(weights, path)


def _padded(path: Path) -> None:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    path.write_bytes((size + 4096).to_bytes(8, "little") + data[8 : 8 + size] + b" " * 4096 + data[8 + size :])


@pytest.mark.parametrize(
    ("harm", "message"), [(_without_a_number, "are not finite"), (_padded, "has a header that no run writes")]
)
def test_weights_that_carry_something_else_are_refused(run: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(run / "release" / "model.safetensors")
    write_sums(run / "release")
    with pytest.raises(UserError, match=message):
        checked(run)


@pytest.mark.parametrize("name", ["config.yaml", "ledger.json", "summary.json", "model.safetensors"])
def test_a_flipped_byte_or_a_missing_file_of_a_finished_run_is_named(run: Path, name: str) -> None:
    path, directory = run / "release" / name, RunDirectory(run)
    assert directory.summary() is not None
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes(bytes(flipped))
    with pytest.raises(UserError, match=rf"{name} is damaged: its SHA-256 .* Restore it, or delete"):
        directory.summary()
    path.unlink()
    with pytest.raises(UserError, match=rf"{name} is missing"):
        directory.summary()


def test_a_flipped_byte_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.save_state({"weights": torch.arange(1000.0), "step": 3})
    assert directory.load_state()["step"] == 3  # type: ignore[index]
    path = tmp_path / "run" / "private" / "state.pt"
    place = path.read_bytes().index(torch.arange(400.0, 404.0).numpy().tobytes())
    flipped = bytearray(path.read_bytes())
    flipped[place] ^= 1
    path.write_bytes(bytes(flipped))
    with pytest.raises(UserError, match=r"state\.pt cannot be read .*checksum.*delete"):
        directory.load_state()


def test_lora_may_train_as_many_coordinates_as_its_factors_have() -> None:
    """At rank 64 more than the table that they stand for: 64 (5,000 + 64) = 324,096, of 5,000 rows of 64."""
    table = {"name": "words", "rows": 5_000, "dim": 65, "rows_mean": 5_000.0}
    gradient = {"parameters": 320_000, "coordinates_mean": 324_096.0, "tables": [table]}
    summary: dict[str, Any] = {
        "examples": 9, "batch_size": 3, "steps": 3, "utility": {"value": 0.5}, "periods": None,
        "embedding_gradient": gradient, "hyperparameters": {"algorithm": {"rank": 64}},
    }  # fmt: skip
    agreement._numbers(summary)
    for settings, size in (({"rank": 64}, 324_097.0), ({"rank": 63}, 324_096.0), ({}, 324_096.0)):
        gradient["coordinates_mean"] = size
        with pytest.raises(UserError, match=f"coordinates_mean is {size}"):
            agreement._numbers(summary | {"hyperparameters": {"algorithm": settings}})
