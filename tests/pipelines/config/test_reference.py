"""`dpfest config`: complete, documented, and true to what is composed."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest
from omegaconf import OmegaConf

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.reference import PRESETS, keys, overview, reference, sections, sentences
from pipelines.config.schema import dotted_keys
from pipelines.config.settings import SCHEMAS, Config

CHOICES = [f"{group}={choice}" for group, choices in SCHEMAS.items() for choice in choices]


def shown(text: str) -> dict[str, str]:
    """Each key of a reference with the value beside it."""
    lines = [line.split("  (")[0].strip() for line in text.splitlines() if line.startswith("  ") and "=" in line]
    return dict(line.split("=", 1) for line in lines if " " not in line.split("=")[0])


@pytest.mark.parametrize("name", [*CHOICES, *sections()])
def test_it_lists_exactly_the_keys_that_are_composed(name: str) -> None:
    group, _, choice = name.partition("=")
    of_texts = name in ("algorithm=lora_embedding", "model=roberta")
    cfg = Composer().compose([*(["data=text_synthetic"] if of_texts else []), *([name] if choice else [])])
    every = dotted_keys({group: OmegaConf.to_container(cfg._get_node(group), resolve=False)})  # type: ignore[arg-type]
    leaves = {key for key in every if not any(other.startswith(f"{key}.") for other in every)}
    assert set(shown(reference(name))) == leaves - ({f"{group}.name"} if choice else set())


@pytest.mark.parametrize("name", [*CHOICES, *sections()])
def test_no_key_lacks_its_sentence(name: str) -> None:
    group, _, choice = name.partition("=")
    schema = resolve_name(SCHEMAS[group][choice]) if choice else sections()[name]
    assert [key.name for key in keys(schema, group) if len(key.sentence.split()) < 2] == []


def test_what_is_shown_can_be_typed() -> None:
    composer = Composer()
    for name in ("train", "optimizer", "algorithm=fest", "model=pctr"):
        chosen = ["data=criteo_synthetic", *([name] if "=" in name else [])]  # no recipe changes its defaults
        typed = [f"{key}={value}" for key, value in shown(reference(name)).items()]
        assert composer.compose([*chosen, *typed]) == composer.compose(chosen)


def test_the_overview_names_every_group_section_and_other_key() -> None:
    text = overview()
    for name in (*SCHEMAS, *sections(), *(choice.partition("=")[2] for choice in CHOICES), "seed", "device", "profile"):
        assert name in text
    for group in PRESETS:
        assert f"  {group:<12}{Composer().choices(group)[0]}" in text
    assert all(sentences(Config)[name] for name in ("seed", "device", "profile", "experiment"))


@pytest.mark.parametrize("name", ["experiment", "profile=demo", "privacy=paper", "search=none"])
def test_a_choice_without_keys_of_its_own_says_how_to_see_what_it_sets(name: str) -> None:
    with pytest.raises(UserError, match=rf"`dpfest train {name.partition('=')[0]}=\w+ --cfg job` prints"):
        reference(name)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean optimizer"):
        reference("optimiser")
    with pytest.raises(UserError, match="there are data, model, algorithm"):
        reference("zzz")
