"""A model of the user's own: a run of it, what identifies it, and every refusal before anything is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.runs.identity import run_hash
from pipelines.runs.release import checked
from pipelines.tasks.own_model import ModuleConfig
from pipelines.train import make_run, ranks

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocabularies, numeric, width=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in vocabularies)
        self.network = nn.Sequential(nn.Linear(4 * len(vocabularies) + numeric, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numeric, categorical):
        found = [table(ids) for table, ids in zip(self.tables, categorical.unbind(1))]
        return self.network(torch.cat([numeric, *found], dim=1)).squeeze(1)
"""
SIZES = [30, 50, 20]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def config(here: Path, prepared: Path, runs_in: Callable[[Path], Path]) -> Callable[..., Config]:
    runs = runs_in(here / "runs")

    def made(*more: str) -> Config:
        own = ["model=module", "model.target=parts/mine.py:Model", "profile=smoke", "data=names", "data.rows=3000"]
        return typed(Composer().compose([*own, f"paths.data={prepared}", f"paths.runs={runs}", *more]))

    return made


@pytest.mark.parametrize("rule", ["fest", "adafest", "dpsgd"])
def test_it_trains_and_its_release_names_the_class_and_its_code(config: Callable[..., Config], rule: str) -> None:
    settings = config(f"algorithm={rule}", "+model.options.width=5")
    made = make_run(settings)
    assert made.summary["model"] == "module" and made.summary["tensors"]["network.0.weight"].startswith("float32 [5, ")
    released = yaml.safe_load((made.path / "release" / "config.yaml").read_text())["model"]
    assert released == {
        "name": "module", "kind": "module", "target": "mine.py:Model", "options": {"width": 5},
        "code": settings.model.code,
    }  # fmt: skip
    Path("parts/mine.py").unlink()  # whoever checks a release need not have the code
    assert checked(made.path).config["model"] == released


def test_initial_weights_follow_the_seed_and_no_other_draw_is_disturbed(here: Path) -> None:
    def weights(seed: int) -> Any:
        return ModuleConfig(target="parts/mine.py:Model").make(SIZES, 2, seed).state_dict()

    torch.manual_seed(7)
    first, drawn = weights(1), torch.rand(3)
    torch.manual_seed(8)
    again, other = weights(1), weights(2)
    assert all(torch.equal(value, again[name]) and not torch.equal(value, other[name]) for name, value in first.items())
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)


def test_its_code_is_part_of_the_run_and_its_place_is_not(config: Callable[..., Config], here: Path) -> None:
    before = config()
    (here / "mine.py").write_text(MODEL)
    assert run_hash(config("model.target=mine.py:Model")) == run_hash(before)
    assert run_hash(config("+model.options.width=5")) != run_hash(before)
    (here / "parts" / "mine.py").write_text(MODEL.replace("ReLU", "Tanh"))
    assert run_hash(config()) != run_hash(before)
    with pytest.raises(
        UserError, match=r"no longer the code that the settings name: its file has SHA-256 .*Restore it"
    ):
        make_run(before)  # as by a sweep, or by a released config.yaml
    assert not list((here / "runs").glob(".selections/*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("nn.ReLU()", "nn.BatchNorm1d(width)"), r"The layer network\.1 \(BatchNorm1d\) mixes the examples"),
        ((".squeeze(1)", ""), r"forward must return one logit for each example, .* returns a tensor \[32, 1\]"),
        (("found = [", "found = self.missing; found = ["), r"forward\(numeric \[32, \d\], .*\) fails \(AttributeError"),
        (("numeric, width", "width"), r"Model\(\[.*\], \d, \*\*\{\}\) fails \(TypeError"),
        (
            ("Embedding(size, 4)", "Embedding(size + 1, 4)"),
            "one trainable table for each categorical feature is needed",
        ),
        (
            ("categorical.unbind(1)", "categorical.flip(1).unbind(1)"),
            r"fails \(IndexError|does not look up categorical",
        ),
        (("numeric, *found]", "numeric - numeric.mean(0), *found]"), "The examples of a batch mix"),
        (("found = [", "self.seen = categorical; found = ["), "The forward pass changes seen"),
        (
            ("    def forward", "    def get_extra_state(self):\n        return 1\n\n    def forward"),
            "has _extra_state",
        ),
        (("(nn.Module)", "(dict)"), r"is no subclass of torch\.nn\.Module"),
        (("class Model", "class Other"), r"the module parts/mine\.py has no Model"),
        (("import torch\n", "import torch, nothing_of_this_name\n"), "cannot be imported .*nothing_of_this_name"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_rows_are_selected(
    change: tuple[str, str], message: str, config: Callable[..., Config], here: Path
) -> None:
    assert change[0] in MODEL
    (here / "parts" / "mine.py").write_text(MODEL.replace(*change))
    with pytest.raises(UserError, match=message) as refused:
        make_run(config("algorithm=fest"))
    assert "model.target=parts/mine.py:Model" in str(refused.value)
    assert not (here / "runs" / ".selections").exists() and not list((here / "runs").glob("*/*/*/private/state.pt"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["model.target=???"], r"model\.target must be set"),
        (["model.target=mine"], "must name a class, as FILE.py:CLASS or MODULE:CLASS"),
        (["model.target=nowhere.py:Model"], r"nowhere\.py cannot be read \(No such file"),
        (["model.target=nowhere_at_all:Model"], "the module nowhere_at_all cannot be imported"),
        (["+model.options.place=/home/somebody"], "holds /home/somebody, a path on this machine"),
        (["+model.option=1"], r"did you mean model\.options"),
        (["model.name=pctr"], r"model\.name=pctr is the name of other model"),
    ],
)
def test_settings_that_name_no_model_are_refused(more: list[str], message: str, config: Callable[..., Config]) -> None:
    with pytest.raises(UserError, match=message):
        config(*more)


def test_paths_that_do_not_take_it_say_so(config: Callable[..., Config]) -> None:
    with pytest.raises(UserError, match=r"algorithm=smaller_tables makes tables of dpfest's own models smaller"):
        make_run(config("algorithm=smaller_tables"))
    with pytest.raises(UserError, match=r"model=module holds its tables whole, and training over ranks divides"):
        ranks.make_run(config())


def test_a_layer_that_stays_in_eval_does_so_after_an_evaluation(config: Callable[..., Config], here: Path) -> None:
    """A frozen normalisation by constants; in training mode it would read the batch."""
    frozen = "nn.BatchNorm1d(width).requires_grad_(False).eval()"
    (here / "parts" / "mine.py").write_text(MODEL.replace("nn.ReLU()", frozen))
    assert make_run(config("algorithm=adafest", "train.evaluate_every=1")).summary["steps"] == 3


LISTS = MODEL.replace("(self, numeric, categorical):", "(self, numeric, categorical, bags):").replace(
    "        return",
    "        found += [table(ids, starts) for table, (ids, starts) in zip(self.tables[2:], bags)]\n        return",
)
BAGS = LISTS.replace(
    "for size in vocabularies)",
    "for size in vocabularies[:2])\n        self.tables.append(nn.EmbeddingBag(vocabularies[2], 4, mode='sum'))",
)


def test_a_model_of_ones_own_takes_lists_as_bags(here: Path) -> None:
    (here / "mine.py").write_text(BAGS)
    model = ModuleConfig(target="mine.py:Model").make(SIZES, 2, 0, bags=["mean"])
    rows = torch.tensor([3, 4, 5])
    logits = model(torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.int64), [(rows, torch.tensor([0, 3]))])
    assert logits.shape == (2,) and logits[0] != logits[1]  # of three values, and of none
    (here / "other.py").write_text(BAGS.replace("table(ids, starts)", "table(ids // 2, starts)"))
    with pytest.raises(UserError, match=r"the table tables\.2 does not look up bags\[0\]\[0\] as it is"):
        ModuleConfig(target="other.py:Model").make(SIZES, 2, 0, bags=["mean"])
    with pytest.raises(UserError, match=r"forward\(numeric \[32, 2\], categorical \[32, 2\], 1 bags\)"):
        ModuleConfig(target="parts/mine.py:Model").make(SIZES, 2, 0, bags=["mean"])
