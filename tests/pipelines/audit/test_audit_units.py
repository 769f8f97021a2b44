"""The audit of a unit of several examples: the engine stays below its claim; one that clips examples passes it."""

from __future__ import annotations

import numpy as np
import pytest

from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import DPSGD
from dpfest.gradients.units import UnitConfig
from dpfest.noise.key import NoiseKey
from dpfest.planning.plan import plan
from pipelines.audit.bound import lower_bound
from pipelines.audit.pair import REPLICAS, Pair
from pipelines.audit.step import audit_step
from tests.dpfest.steps import step_cost
from tests.pipelines.audit.test_audit import configured

DELTA, DRAWS = 0.01, 30_000
UNIT = {"mean": UnitConfig("household", 4), "sum": UnitConfig("household", 4, "sum")}


@pytest.mark.parametrize("combine", UNIT)
@pytest.mark.parametrize("ignored", [False, True])
def test_a_unit_of_four_moves_the_release_by_the_clipping_norm_once(combine: str, ignored: bool) -> None:
    algorithm = DPSGD(clipping_norm=3.0)
    pair = Pair(algorithm, step_cost(1e-9), NoiseKey.from_seed(0), unit=UNIT[combine], ignored=ignored)
    draws = pair.draws(REPLICAS)
    assert draws.value[draws.world] == pytest.approx(12 if ignored else 3, rel=1e-5)
    assert draws.value[~draws.world] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("algorithm", [DPSGD(), AdaFEST(threshold=0.5, noise_ratio=1.0)], ids=["dpsgd", "adafest"])
def test_a_step_by_unit_stays_below_its_claim_and_one_by_example_passes_it(algorithm: Algorithm) -> None:
    """Fixed noise; fresh noise would call the sound engine broken in at most 5% of audits."""
    made = plan(algorithm, epsilon=1.0, delta=DELTA, examples=1, batch_size=1, steps=1, unit=UNIT["mean"])
    cost = made.step()
    assert cost is not None
    sound, ignored = (
        lower_bound(
            Pair(algorithm, cost, NoiseKey.from_seed(4), unit=UNIT["mean"], ignored=flaw).draws(DRAWS), DELTA, 0.95
        )
        for flaw in (False, True)
    )
    assert 0.5 < sound <= 1 < 2 < ignored


def test_the_stage_audits_the_unit_of_the_configuration() -> None:
    found = audit_step(configured("frozen", "privacy.unit=household_id", "unit.max_examples=8", "audit.draws=4000"))
    assert [case.sabotage for case in found.cases[:2]] == [None, "unit ignored"]
    assert [case.verdict for case in found.cases[:2]] == ["sound", "broken"]
    assert found.settings["unit"] == {"name": "household", "max_examples": 8, "combine": "mean"}
    assert np.isfinite(found.claim)
