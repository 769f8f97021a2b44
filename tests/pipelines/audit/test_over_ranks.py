"""The audit over two ranks: sound engines stay below their claim, sabotaged ones pass it; a resume reveals nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from dpfest.accounting.accountant import Event
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import ALGORITHMS, DPSGD
from dpfest.gradients.parts import NoisedGradient, RowGradient
from dpfest.gradients.reading import MicroBatch
from dpfest.noise.key import NoiseKey
from dpfest.planning.plan import plan
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.ranks.group import Group
from dpfest.ranks.rows import RankRows
from dpfest.ranks.table import shard_tables
from dpfest.selection.topk import SelectionConfig
from dpfest.step.engine import PrivateEngine
from pipelines.audit.bound import Draws, lower_bound
from pipelines.audit.pair import ROWS, Model, Pair
from tests.dpfest.ranks import small
from tests.dpfest.ranks.together import together

DELTA, DRAWS = 0.01, 30_000
PUBLIC = SelectionConfig(mechanism="public", prior="a test")
PARTS = 2


class NoiseByRank(RankRows):
    """Sabotaged: the noise follows whoever owns a shard."""

    @property
    def key(self) -> NoiseKey:
        return super().key.derive("ranks", self.group.world)

    def shard_key(self, shard: int) -> NoiseKey:
        return self.key.derive("rank", self.group.rank)


class PairOverRanks(Pair):
    """The audit's pair, with examples and rows divided among ranks; every rank gathers the release."""

    def __init__(self, kind: type[RankRows], algorithm: Algorithm, cost: Event) -> None:
        super().__init__(algorithm, cost, key := NoiseKey.from_seed(11))
        self._group, model = Group(), Model()
        self._places = shard_tables(model, 4, self._group.world, self._group.rank)
        self._own = torch.from_numpy(np.concatenate([self._places.local_rows(0, v) for v in self._places.own]))
        losses = self._engine.recorder.loss_fn
        rows = partial(kind, places=self._places, group=self._group, parts=PARTS)
        self._over_ranks = PrivateEngine(
            model, algorithm, losses, key, cost=cost, expected_batch_size=1.0, selected=self._engine.selected, rows=rows
        )
        self._engine = self  # type: ignore[assignment]

    def gradient(self, microbatches: list[MicroBatch], step: int) -> tuple[NoisedGradient, None]:
        (whole,) = microbatches
        parts = []
        for part in range(PARTS):
            at = np.arange(part, len(whole.examples), PARTS)
            if part % self._group.world == self._group.rank and len(at):
                parts.append(MicroBatch(at, tuple(one[torch.from_numpy(at)] for one in whole.data)))
        release, _ = self._over_ranks.gradient(parts, step)
        (table,) = release.tables
        rows = self._own if table.rows is None else self._own[table.rows]
        told = torch.zeros(2, ROWS, dtype=torch.float64)
        told[0, rows], told[1, rows] = 1, table.values.flatten().double()
        alive, values = self._group.sum(told)
        kept = torch.nonzero(alive).squeeze(1)
        return NoisedGradient(release.dense, [RowGradient(kept, values[kept, None].float())], [len(kept)], 0.0), None


def drawn(kind: type[RankRows], algorithm: Algorithm, cost: Event) -> Draws:
    return PairOverRanks(kind, algorithm, cost).draws(DRAWS)


def claimed(algorithm: Algorithm) -> PrivacyPlan:
    features = [ROWS] if algorithm.selection else None
    return plan(
        algorithm, epsilon=1.0, delta=DELTA, examples=1, batch_size=1, steps=1, features=features, fixed_noise_seed=True
    )


def cost_of(made: PrivacyPlan, share: float = 1.0) -> Event:
    event = made.step()
    assert event is not None and event.gradient_noise_multiplier is not None
    return replace(event, gradient_noise_multiplier=share * event.gradient_noise_multiplier)


SETTINGS: dict[str, dict[str, Any]] = {
    "threshold": {"false_rate": 0.5},
    "adafest": {"threshold": 0.5, "noise_ratio": 1.0},
    "adafest_plus": {"threshold": 0.5, "noise_ratio": 1.0, "selection": PUBLIC},
    "fest": {"selection": PUBLIC},
}
RULES = [kind(**SETTINGS.get(name, {})) for name, kind in ALGORITHMS.items() if name not in small.REFUSED]


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(rule, marks=[] if rule.name == "adafest" else pytest.mark.slow, id=rule.name) for rule in RULES],
)
def test_over_two_ranks_a_sound_step_stays_below_its_claim_and_half_its_noise_passes_it(algorithm: Algorithm) -> None:
    """Slow but for one: 30,000 draws, sound and sabotaged, on two processes."""
    made = claimed(algorithm)
    sound, *_ = together(drawn, 2, RankRows, algorithm, cost_of(made))
    halved, *_ = together(drawn, 2, RankRows, algorithm, cost_of(made, 0.5))
    assert 0.5 < lower_bound(sound, DELTA, 0.95) <= 1.0 < lower_bound(halved, DELTA, 0.95)


@pytest.mark.slow
def test_a_step_repeated_on_other_ranks_reveals_nothing_and_noise_by_rank_would() -> None:
    """Slow (30,000 draws, four times).

    The attacker averages a step's release by one rank with its release by two, as a resumed run would make both.
    """
    made = claimed(DPSGD())

    def bound(kind: type[RankRows]) -> float:
        one, two = drawn(kind, DPSGD(), cost_of(made)), together(drawn, 2, kind, DPSGD(), cost_of(made))[0]
        assert np.array_equal(one.world, two.world)
        return lower_bound(Draws(one.world, one.kind, (one.value + two.value) / 2), DELTA, 0.95)

    assert bound(RankRows) <= 1.0 < bound(NoiseByRank)
