"""A release's model card: its command makes the same settings, and nothing stands in it that is not released."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dpfest.errors import UserError
from pipelines.config.compose import Composer, container
from pipelines.config.settings import typed
from pipelines.preprocess import preprocess
from pipelines.runs.model_card import _data, overrides_of
from pipelines.runs.release import CARD, checked, released_settings
from pipelines.system.checksum import write_sums
from pipelines.train import make_run

ASKED = {
    "journey": ["algorithm=fest", "algorithm.selection.rows=3000", "privacy.epsilon=3"],
    "units": ["algorithm=adafest", "privacy.unit=household", "unit.max_examples=8", "privacy.sampling=balls_in_bins"],
    "stream": ["data=names_stream", "algorithm=dpsgd", "algorithm.noise=lazy", "stream.period=6", "seed=3"],
    "texts": ["data=text_synthetic", "algorithm=frozen", "privacy=paper", "profile=smoke"],
    "search": ["algorithm=threshold", "search=poisson", "search.mean=3"],
    "table": ["data=table", 'data.label="clicked > 0.5"', "data.categorical={item: 1024}", "algorithm=nonprivate"],
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_its_command_makes_the_same_settings(asked: list[str]) -> None:
    composer = Composer()
    settings = released_settings(container(composer.compose(asked)))
    assert released_settings(container(composer.compose(overrides_of(settings)))) == settings


def test_a_table_of_ones_own_is_named_and_its_settings_are_left_to_its_file() -> None:
    asked = ["data=table", "data.name=clicks", "data.label=clicked", "algorithm=fest", "algorithm.selection.rows=50"]
    settings = released_settings(container(Composer().compose(asked)))
    words = overrides_of(settings)
    assert words == ["data=clicks", "algorithm=fest", "algorithm.selection.rows=50"]


def test_what_it_says_of_the_data_is_how_they_were_divided() -> None:
    summary = {
        "dataset": "clicks",
        "examples": 9,
        "privacy": None,
        "periods": None,
        "embedding_gradient": {"tables": []},
    }
    shares = {"split": {"train": 0.8, "validation": 0.05, "test": 0.15}}
    divided = "- Rows are divided by a hash of each line: 80% train, 5% validation, 15% test."
    assert divided in _data({"data": shares}, summary)
    said = _data({"data": {**shares, "split_by": "part"}}, summary)
    assert divided not in said and "- Rows are divided by the column `part`." in said
    of_stream = {"data": {"split": {"held_out": 0.05}}, "stream": {"train_days": 18, "period": 6}}
    said = _data(of_stream, {**summary, "periods": [{}], "privacy": {"unit": "user", "public_vocabulary": True}})
    assert "- A stream: trained on the first 18 days, in periods of 6; later days are held out." in said
    assert said[0] == "- `clicks`: 9 units in training, by the column user."


def test_a_run_has_one_and_an_edited_one_does_not_leave(tmp_path: Path) -> None:
    small = ["profile=smoke", "data=criteo_synthetic", "data.rows=200", f"data.vocabulary.sizes={[20] * 26}"]
    places = [f"paths.data={tmp_path / 'data'}", f"paths.runs={tmp_path / 'runs'}"]
    config = typed(
        Composer().compose([*small, "train.batch_size=20", "train.steps=2", "privacy.noise_seed=5", *places])
    )
    preprocess(config)
    run = make_run(config).path
    card = run / "release" / CARD
    text = card.read_text(encoding="utf-8")
    settings = yaml.safe_load((run / "release" / "config.yaml").read_text(encoding="utf-8"))
    assert "dpfest train data=criteo_synthetic algorithm=adafest profile=smoke" in text
    assert f"ε = {checked(run).summary['privacy']['epsilon']:.6g}" in text
    assert "**outside the guarantee**" not in text and str(tmp_path) not in text and "noise_seed=" not in text
    assert all(word in text.replace("'", "") for word in overrides_of(settings))

    card.write_text(text.replace("AUC", "Auc"), encoding="utf-8")
    write_sums(run / "release")
    with pytest.raises(UserError, match=r"MODEL_CARD\.md differs from the bytes that a run writes"):
        checked(run)
    card.unlink()  # as in a run of an earlier version
    write_sums(run / "release")
    assert CARD not in [path.name for path in checked(run).files]
