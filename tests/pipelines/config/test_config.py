"""The configuration tree: what is shipped, what is refused, and what names a run."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from pipelines.config.compose import Composer, override_text
from pipelines.config.schema import build, in_keys, nearest, unknown_key
from pipelines.config.settings import PLAIN_SCHEMAS, SCHEMAS, Config, typed
from pipelines.config.shipped import files
from pipelines.runs.identity import run_folder, run_hash
from pipelines.tasks.optimizers import optimizers
from pipelines.tasks.task import device_of

CONF = Path(__file__).resolve().parents[3] / "conf"
GROUP_FILES = [
    path for group in (*SCHEMAS, "privacy", "search", "optimizer") for path in sorted((CONF / group).glob("*.yaml"))
]
BY_HAND = [path for path in GROUP_FILES if str(path.relative_to(CONF)) not in files()]


@cache
def composed(*overrides: str) -> Config:
    return typed(Composer().compose(overrides))


def schema_of(path: Path) -> Any:
    group = path.parent.name
    module, _, name = (PLAIN_SCHEMAS.get(group) or SCHEMAS[group][path.stem]).partition(":")
    return getattr(importlib.import_module(module), name)


def test_the_files_of_defaults_are_as_make_conf_writes_them() -> None:
    for name, text in files().items():
        assert (CONF / name).read_text(encoding="utf-8") == text, f"{name}: run make conf"
    assert {path.parent.name for path in BY_HAND} == {"privacy", "search"}


@pytest.mark.parametrize("path", BY_HAND, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_values_written_by_hand_are_the_dataclass_defaults(path: Path) -> None:
    """With those of the files that it extends; the profile is one that changes neither data nor algorithms."""
    group = path.parent.name
    data = [] if group == "data" else ["data=criteo_synthetic"]
    cfg = Composer().compose(["profile=paper", *data, f"{group}={path.stem}"])
    defaults = dataclasses.asdict(schema_of(path)())
    if group == "privacy":
        defaults["fidelity"] = path.stem
    if group == "search":
        defaults["distribution"] = path.stem
    assert OmegaConf.to_container(cfg._get_node(group), resolve=False) == defaults  # type: ignore[arg-type]


@pytest.mark.parametrize("path", BY_HAND, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_file_repeats_nothing_of_those_that_it_extends(path: Path) -> None:
    own = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(own, dict)
    for extended in (name for name in own.pop("defaults", []) if isinstance(name, str) and name != "_self_"):
        cfg = Composer().compose(["profile=paper", "data=criteo_synthetic", f"{path.parent.name}={extended}"])
        theirs = OmegaConf.to_container(cfg._get_node(path.parent.name), resolve=False)  # type: ignore[arg-type]
        assert isinstance(theirs, dict)
        assert not own.items() & theirs.items()


def test_every_choice_has_a_file_and_every_file_a_choice() -> None:
    for group, choices in SCHEMAS.items():
        assert {path.stem for path in (CONF / group).glob("*.yaml")} == set(choices)
    assert set(SCHEMAS["algorithm"]) == {
        *ALGORITHMS,
        "nonprivate",
        "lora_embedding",
        "smaller_tables",
        "module",
    }  # two are about the model, and the last one names code
    for name, schema in ALGORITHMS.items():
        assert SCHEMAS["algorithm"][name] == f"{schema.__module__}:{schema.__name__}"


def test_without_noise_clicks_are_trained_at_rates_of_their_own() -> None:
    for asked, tables, dense in (
        (["algorithm=nonprivate"], ("adagrad", 0.1), 0.003),
        (["algorithm=nonprivate", "optimizer.tables.learning_rate=0.03"], ("adagrad", 0.03), 0.003),
        (["algorithm=dpsgd"], ("sgd", 100.0), 0.01),
        (["algorithm=nonprivate", "data=text_synthetic", "profile=paper"], ("sgd", 5.0), 0.003),
    ):
        rates = composed(*asked).optimizer
        assert ((rates.tables.name, rates.tables.learning_rate), rates.dense.learning_rate) == (tables, dense), asked


@pytest.mark.parametrize("profile", ["smoke", "demo", "paper"])
def test_profiles_compose_and_the_command_line_goes_before_them(profile: str) -> None:
    config = composed(f"profile={profile}", "data=nycflights", "train.batch_size=7")
    assert (config.profile, config.data.name, config.train.batch_size) == (profile, "nycflights", 7)


def test_the_smoke_profile_scales_its_data_alone() -> None:
    assert composed("profile=smoke").data.rows == 2000
    assert composed("profile=smoke", "data.rows=50").data.rows == 50
    assert composed("data=criteo_synthetic").data.rows > 2000


@pytest.mark.parametrize(
    "overrides",
    [
        ["paths.runs=/elsewhere", "paths.data=/x", "paths.report=y"],
        ["device=cpu"],
        ["hub.download=true"],
        ["train.log_every=3", "train.checkpoint_every=7", "train.evaluate_every=5", "train.save_model=false"],
        ["train.micro_batch_size=64"],
        ["budget.examples=9", "sweep.jobs=4", "preprocess.jobs=2", "+experiment=comparison"],
        ["privacy.epsilon=1", "train.epochs=1", "privacy.cipher=null"],
    ],
)
def test_what_cannot_change_a_result_does_not_change_the_hash(overrides: list[str]) -> None:
    overrides = [text.removeprefix("+") for text in overrides]
    assert run_hash(composed(*overrides)) == run_hash(composed())


def test_runs_with_correlated_noise_have_names_of_their_own_and_others_keep_theirs() -> None:
    names = [run_hash(composed("algorithm=dpsgd", f"algorithm.bands={bands}")) for bands in ("null", 4, 8)]
    assert names[0] == run_hash(composed("algorithm=dpsgd")) and len(set(names)) == 3
    assert run_hash(composed("algorithm=dpsgd", "privacy.noise_seed=0")) == "817c769c41bb"  # as ever
    named = ["algorithm=dpsgd", "algorithm.bands=4", "privacy.sampling=cyclic_poisson"]
    assert run_hash(composed(*named)) == names[1]
    for algorithm in ("adafest", "adafest_plus", "exponential", "threshold", "frozen"):
        with pytest.raises(UserError, match=r"no key algorithm\.bands with this algorithm: noise is .* the same rows"):
            composed(f"algorithm={algorithm}", "algorithm.bands=4")


@pytest.mark.parametrize(
    ("overrides", "mechanism"),
    [
        ([], "gaussian"),
        (["privacy=paper"], "gumbel"),
        (["privacy=paper", "algorithm.selection.mechanism=laplace"], "laplace"),
        (["privacy=paper", "data=names_stream"], "gaussian"),  # Gumbel releases no counts to sum up
        (["privacy=paper", "data=names_stream", "algorithm.selection.source=all_days"], "gumbel"),
    ],
)
def test_rows_are_selected_as_the_fidelity_does(overrides: list[str], mechanism: str) -> None:
    config = composed("algorithm=fest", *overrides)
    assert config.algorithm.selection.mechanism == mechanism
    named = [text for text in overrides if "mechanism" not in text] + [f"algorithm.selection.mechanism={mechanism}"]
    assert run_hash(config) == run_hash(composed("algorithm=fest", *named))


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "algorithm.threshold=21",
        "algorithm=dpsgd",
        "privacy.epsilon=3",
        "privacy=paper",
        "privacy.noise_seed=0",
        "privacy.cipher=chacha20/1",
        "optimizer.tables.learning_rate=0.5",
        "train.batch_size=1024",
        "train.steps=9",
        "model.hidden=[16]",
        "data.split.seed=1",
        "data=criteo_synthetic",
    ],
)
def test_what_can_change_a_result_changes_the_hash(override: str) -> None:
    assert run_hash(composed(override)) != run_hash(composed())


def test_a_run_lies_where_the_contract_says() -> None:
    config = composed("algorithm=fest", "paths.runs=/somewhere")
    assert run_folder(config) == Path("/somewhere/journey/fest") / run_hash(config)


def test_a_composed_configuration_survives_its_own_dictionary() -> None:
    config = composed("algorithm=adafest_plus", "experiment=comparison")
    assert typed(config.to_dict()) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+algorithm.selection.row=3"], "there is no key algorithm.selection"),
        (["+trian.epochs=2"], "there is no key trian; did you mean train?"),
        (["algorithm=fest", "+algorithm.selection.row=3"], "did you mean algorithm.selection.rows?"),
        (["algorithm=fest", "algorithm.selection=3"], "algorithm.selection must be a group of keys"),
        (["train.steps=1.5"], "train.steps must be a whole number from 1 to 1,000,000,000 or null, not 1.5."),
        (["train.steps=0"], "train.steps must be a whole number from 1 to 1,000,000,000 or null, not 0."),
        (["train.save_model=1"], "train.save_model must be true or false, not 1."),
        (["privacy.delta=1"], "privacy.delta must be a number from 1e-14 to 0.1 or null, not 1."),
        (["algorithm.clipping_norm=0"], "algorithm.clipping_norm=0.0 must be a finite number greater than 0"),
        (["algorithm.threshold=nan"], "algorithm.threshold must be a finite number, not nan."),
        (["algorithm=fest", "algorithm.selection.rows=0"], "algorithm.selection.rows=0 must be at least 1"),
        (["privacy.fidelity=exact"], "privacy.fidelity must be one of rigorous, paper, not 'exact'."),
        (["algorithm.name=adafset"], "did you mean algorithm=adafest?"),
        (["paths.runs=null"], "paths.runs must be text, not null."),
        (["paths.runs=2024"], "paths.runs must be text, not 2024: quote it, as in 'paths.runs=\"2024\"'."),
        (["profile=1"], "profile=1 is not a choice of profile: choose one of demo, paper, smoke."),
        (
            ["optimizer.dense.options.betas=[0.9,0.99]"],
            "there is no key optimizer.dense.options.betas; +optimizer.dense.options.betas=... adds it.",
        ),
        (["sweep.jobs=0"], "sweep.jobs must be a whole number from 1 to 4,096, not 0."),
    ],
)
def test_a_wrong_value_is_refused_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        composed(*overrides)
    assert message in str(refused.value)


@dataclass
class Inner:
    width: int = 1


@dataclass
class Outer:
    kind: str
    inner: Inner = field(default_factory=Inner)
    pair: list[float] = field(default_factory=list)
    named: dict[str, list[float]] = field(default_factory=dict)
    either: int | str | None = None


def test_nested_values_take_their_types() -> None:
    built = build(Outer, {"kind": "b", "inner": {"width": 2e1}, "pair": [3, 4], "named": {"x": [1]}, "either": "7"})
    assert built == Outer("b", Inner(20), [3.0, 4.0], {"x": [1.0]}, "7")
    assert isinstance(built.pair[1], float) and isinstance(built.inner.width, int)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "top.kind must be set: add top.kind=... to the command."),
        ({"kind": "???"}, "top.kind must be set"),
        ({"kind": 3}, "top.kind must be text, not 3: quote it, as in 'top.kind=\"3\"'."),
        ({"kind": "a", "pair": 1}, "top.pair must be a list, each item a number, not 1."),
        ({"kind": "a", "pair": [1, True]}, "top.pair[1] must be a number, not True."),
        ({"kind": "a", "named": {"x": 1}}, "top.named.x must be a list"),
        ({"kind": "a", "either": 1.5}, "top.either must be a whole number or text or null, not 1.5."),
        (
            {"kind": "a", "inner": {"wdth": 1}},
            "there is no key top.inner.wdth; did you mean top.inner.width?",
        ),
    ],
)
def test_nested_values_are_refused_by_their_dotted_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        build(Outer, values, "top")
    assert message in str(refused.value)


def test_the_nearest_key_is_found_by_its_last_part_too() -> None:
    keys = ["algorithm", "algorithm.threshold", "train.epochs", "train.steps"]
    assert nearest("treshold", keys) == "algorithm.threshold"
    assert nearest("train.epoch", keys) == "train.epochs"
    assert nearest("completely.different", keys) is None
    assert "there are train.epochs, train.steps." in str(unknown_key("train.zzz", keys))


@pytest.mark.parametrize(
    ("said", "in_words_of_the_command_line"),
    [
        ("batch_size=9 must lie between 1 and 5.", "train.batch_size=9 must lie between 1 and 5."),
        ("epsilon=1 at delta=0.1 needs more.", "privacy.epsilon=1 at privacy.delta=0.1 needs more."),
        ("Raise epsilon or selection.noise_multiplier.", "Raise epsilon or algorithm.selection.noise_multiplier."),
        ("has 3, of stream.period=2 and rows_per_step=4.", "has 3, of stream.period=2 and algorithm.rows_per_step=4."),
    ],
)
def test_arguments_of_the_library_become_keys(said: str, in_words_of_the_command_line: str) -> None:
    with pytest.raises(UserError) as refused, in_keys():
        raise UserError(said)
    assert str(refused.value) == in_words_of_the_command_line


@pytest.mark.parametrize(
    "value",
    [
        "2024",
        "null",
        "Daten/größe",
        "a[b]{c}",
        "with space",
        'quo"te',
        "back\\",
        "true",
        "1e5",
        "plain/path-1.txt",
        "~x",
        "a,b",
    ],
)
def test_text_survives_hydras_grammar(value: str) -> None:
    assert composed(f"paths.runs={override_text(value)}").paths.runs == value


def test_a_file_with_a_tag_of_yaml_is_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tagged.yaml").write_text('name: !!python/object/apply:os.system ["true"]')
    with pytest.raises(UserError, match=r"not plain YAML.*tagged\.yaml"):
        Composer(tmp_path).compose(["data=tagged"])


def test_options_that_torch_refuses_are_named() -> None:
    config = composed("+optimizer.dense.options.betas=[2,2]")
    with pytest.raises(UserError, match=r"optimizer\.dense\.options=.*betas.*adam: Invalid beta"):
        optimizers(torch.nn.Linear(1, 1), config.optimizer)


def test_a_device_without_values_is_refused() -> None:
    with pytest.raises(UserError, match="device=meta cannot be used here"):
        device_of("meta")


@pytest.mark.parametrize("override", ["data.name=[]", "model.name={}", "algorithm.name=[]"])
def test_a_name_that_is_no_text_is_none_of_the_choices(override: str) -> None:
    with pytest.raises(UserError, match=rf"{override.partition('=')[0]}=.* is none of"):
        typed(Composer().compose([override]))


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(UserError, match=r"paths\.runs is empty: name a folder"):
        typed(Composer().compose(["paths.runs="]))
