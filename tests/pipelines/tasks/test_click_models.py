"""Click models: what they compute, their initial weights, private steps against the dense reference, whole runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import DPSGD, FEST
from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey
from pipelines.bench.sections import bench
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, schema, typed
from pipelines.tasks.click_model import ClickModelConfig
from pipelines.tasks.deepfm import DeepfmConfig
from pipelines.tasks.dlrm import DlrmConfig
from pipelines.tasks.pctr import PctrConfig
from pipelines.tasks.smaller_tables import SmallerTables
from pipelines.train import make_run
from tests.dpfest.reference import reference_gradient
from tests.dpfest.steps import by_batch, clipped, engine_with

SIZES, EXAMPLES = (7, 40, 4), 17
MODELS: dict[str, ClickModelConfig] = {
    "pctr": PctrConfig(hidden=[5, 4], embedding_scale=0.5),
    "dlrm": DlrmConfig(dimension=3, bottom=[5], top=[6, 4], embedding_scale=0.5),
    "deepfm": DeepfmConfig(dimension=3, hidden=[5, 4], embedding_scale=0.5),
}
SMALLER = SmallerTables(max_rows=10, max_dimension=2)


def model_of(name: str, numeric: int = 2, smaller: SmallerTables | None = None) -> Any:
    return MODELS[name].make(SIZES, numeric, 3, smaller=smaller).double()


def batch_of(numeric: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    ids = torch.stack([torch.randint(0, size, (EXAMPLES,)) for size in SIZES], dim=1)
    return torch.randn(EXAMPLES, numeric).double(), ids, torch.randint(0, 2, (EXAMPLES,)).double()


@pytest.mark.parametrize("name", MODELS)
def test_initial_weights_are_drawn_by_one_generator_from_the_seed(name: str) -> None:
    """Tables in the order of the features, then linear layers: the bits of every earlier version's pCTR model."""
    torch.manual_seed(0)
    model = MODELS[name].make(SIZES, 2, 3)
    torch.manual_seed(99)
    again = MODELS[name].make(SIZES, 2, 3)
    generator = torch.Generator().manual_seed(3)
    for table in model.tables:  # type: ignore[union-attr]
        assert torch.equal(table.weight, torch.empty_like(table.weight).normal_(0, 0.5, generator=generator))
    for layer in (layer for layer in model.modules() if isinstance(layer, nn.Linear)):
        expected = torch.empty_like(layer.weight)
        nn.init.kaiming_uniform_(expected, nonlinearity="relu", generator=generator)
        assert torch.equal(layer.weight, expected)
        assert layer.bias is None or not layer.bias.any()
    state, other = again.state_dict(), MODELS[name].make(SIZES, 2, 4).state_dict()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(torch.equal(other[key], value) for key, value in state.items() if "bias" not in key)
    hollow = MODELS[name].make(SIZES, 2, 3, whole=False)
    assert all(table.weight.is_meta for table in hollow.tables)  # type: ignore[union-attr]


def test_dlrm_is_an_mlp_of_products_of_pairs() -> None:
    model, (numeric, ids, _) = model_of("dlrm"), batch_of(2)
    for row in range(EXAMPLES):
        vectors = [model.bottom(numeric[row]), *(t.weight[i] for t, i in zip(model.tables, ids[row], strict=True))]
        products = [vectors[one] @ vectors[two] for one in range(4) for two in range(one)]
        expected = model.top(torch.cat([vectors[0], torch.stack(products)]))
        torch.testing.assert_close(model(numeric, ids)[row], expected[0])


def test_deepfm_adds_first_order_second_order_and_an_mlp() -> None:
    model, (numeric, ids, _) = model_of("deepfm"), batch_of(2)
    for row in range(EXAMPLES):
        found = [table.weight[value] for table, value in zip(model.tables, ids[row], strict=True)]
        vectors = [one[1:] for one in found]
        expected = sum(one[0] for one in found) + model.first_order(numeric[row])[0]
        expected = expected + sum(one @ two for one, two in combinations(vectors, 2))
        expected = expected + model.deep(torch.cat([numeric[row], *vectors]))[0]
        torch.testing.assert_close(model(numeric, ids)[row], expected)


RULES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "dpsgd": (DPSGD(clipping_norm=0.3), {}),
    "fest": (FEST(clipping_norm=0.3), {"selected": np.array([0, 2, 7, 8, 20, 33, 40, 41, 48])}),
    "adafest": (AdaFEST(clipping_norm=0.3, threshold=1.5), {"map_noise_multiplier": 0.9}),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("numeric", [0, 2])
@pytest.mark.parametrize("name", MODELS)
def test_a_private_step_is_that_of_the_dense_reference(name: str, numeric: int, rule: str) -> None:
    """Clipped by autograd, one example at a time; without noise on the sum, whose rows depend on that of the map."""
    (algorithm, settings), model, batch = RULES[rule], model_of(name, numeric), batch_of(numeric)

    def losses(batch: Any) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2], reduction="none") * 8

    key, ids = NoiseKey.from_seed(3), [[{int(value)} for value in column] for column in batch[1].T]
    given = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in settings.items()}
    engine = engine_with(
        model, algorithm, by_batch(losses), key, expected_batch_size=10.0, gradient_noise_multiplier=0.0, **given
    )
    got = clipped(engine, batch)
    want = reference_gradient(
        model, algorithm, losses, batch, ids, key, 0, divisor=10.0, gradient_noise_multiplier=0.0, **settings
    )
    assert got.keys() == want.keys() and any(bool(value.any()) for value in want.values())
    for parameter, value in want.items():
        torch.testing.assert_close(got[parameter], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_smaller_tables_share_rows_and_lose_dimensions(name: str) -> None:
    model, (numeric, ids, _) = model_of(name, smaller=SMALLER), batch_of(2)
    assert [tuple(table.weight.shape) for table in model.tables] == [(7, 2), (10, 2), (4, 2)]
    assert torch.equal(model(numeric, ids), model(numeric, ids % torch.tensor([7, 10, 4])))
    assert model_of(name, smaller=SmallerTables(max_rows=None, max_dimension=1))(numeric, ids).shape == (EXAMPLES,)


def test_one_vector_has_no_products() -> None:
    with pytest.raises(UserError, match="model=dlrm multiplies pairs of vectors, and these data have one"):
        MODELS["dlrm"].make([5], 0, 0)


def config(data: Path, runs: Path, *more: str) -> Config:
    line = ["profile=smoke", "data=names", "data.rows=3000", "privacy.noise_seed=1", "train.steps=2"]
    return typed(Composer().compose([*line, f"paths.data={data}", f"paths.runs={runs}", *more]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_a_run_of_each_model_and_rule(
    name: str, rule: str, prepared: Path, tmp_path: Path, runs_in: Callable[[Path], Path]
) -> None:
    made = config(prepared, runs_in(tmp_path / "runs"), f"model={name}", f"algorithm={rule}")
    summary = make_run(made).summary
    tables = summary["embedding_gradient"]["tables"]
    assert summary["model"] == name and 0 < summary["utility"]["value"] < 1
    assert [table["dim"] for table in tables] == [made.model.columns(table["rows"]) for table in tables]
    assert summary["embedding_gradient"]["parameters"] == sum(table["rows"] * table["dim"] for table in tables)


def test_the_recipe_of_one_model_is_not_that_of_another() -> None:
    """Data have recipes for the sizes of the pCTR model, which other models do not know."""
    for data in ("names", "journey", "nycflights"):
        assert typed(Composer().compose([f"data={data}"])).model == PctrConfig(hidden=[128, 128])
        assert typed(Composer().compose([f"data={data}", "model=dlrm"])).model == DlrmConfig()


def test_the_benchmark_of_the_papers_model_times_no_other(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="times the paper's click model, not model=dlrm"):
        bench("step", config(tmp_path, tmp_path, "model=dlrm"), repeats=1)


def test_a_model_on_the_shared_parts_is_short() -> None:
    for name in ("pctr", "dlrm", "deepfm", "sequence"):
        network = schema("model", name).network
        assert len(Path(inspect.getfile(network)).read_text(encoding="utf-8").splitlines()) <= 100, name
