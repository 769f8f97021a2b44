"""Vocabularies of noised counts: who has a row, what it costs, and where it is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

import dpfest
from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.accounting.calibration import calibrate
from dpfest.noise.key import NoiseKey
from dpfest.selection.vocabulary import OpenVocabulary

DRAWS = 400_000
plan = partial(dpfest.plan, dpfest.DPSGD(), epsilon=1.0, delta=1e-5, batch_size=100, steps=50)


def passing(vocabulary: OpenVocabulary, count: int, seed: int = 0) -> float:
    """Share of values of this count that have a row."""
    stream = NoiseKey.from_seed(seed).stream("vocabulary")
    return float(vocabulary.known(np.full(DRAWS, count), stream).mean())


def test_a_value_of_one_example_passes_as_rarely_as_said_and_a_frequent_one_as_its_count_says() -> None:
    """Within five standard deviations of the Gaussian's tails (a false alarm in 10^6 each)."""
    vocabulary = OpenVocabulary(noise_multiplier=3.0, delta=0.04, values_per_example=4)
    assert vocabulary.deviation == 6.0
    for count in (1, 5, round(vocabulary.threshold), 20):
        expected = norm.sf((vocabulary.threshold - count) / vocabulary.deviation)
        assert passing(vocabulary, count) == pytest.approx(expected, abs=5 * (expected / DRAWS) ** 0.5)
    assert norm.sf((vocabulary.threshold - 1) / vocabulary.deviation) <= 0.01


def test_at_criteos_size_it_needs_and_costs_what_the_document_says() -> None:
    examples, sigma = 45_840_617, 0.5765
    vocabulary = OpenVocabulary(20.0, 0.01 / examples, 26)
    multiple = (vocabulary.threshold - 1) / vocabulary.deviation

    def spent(*events: Event) -> float:
        return accountant.epsilon(events, 1 / examples)

    def steps(noise_multiplier: float) -> Event:
        rate = 2_048 / examples
        return Event(
            kind="gaussian", what="step", count=22_383, sampling_probability=rate, noise_multiplier=noise_multiplier
        )

    whole = spent(*vocabulary.events, steps(sigma))
    assert spent(steps(sigma)) == pytest.approx(1, abs=5e-4)
    text = " ".join((Path(__file__).parents[2] / "docs" / "PRIVACY.md").read_text(encoding="utf-8").split())
    assert (
        f"T = {vocabulary.threshold:.0f}, 1 + {multiple:.1f} s; it costs {spent(*vocabulary.events):.2f} alone" in text
    )
    assert f"moves ε from 1.000 to {whole:.3f}." in text
    # A replacement is a removal and an addition: (2 e, (1 + exp(e)) d) of what is (e, d).
    replaced = calibrate(lambda noise: [steps(noise)], 0.5, 1 / examples / (1 + math.exp(0.5)))
    added = calibrate(lambda noise: [steps(noise)], 1.0, 1 / examples)
    assert f"takes σ = {replaced:.3f} in place of {added:.3f}." in text


@pytest.mark.parametrize(("lowered", "sound"), [(0.0, True), (1.0, False)])
def test_what_one_row_more_changes_is_paid_for_and_a_lower_threshold_is_not(lowered: float, sound: bool) -> None:
    """Exact laws of two values of one example, at every pair of counts; delta at each epsilon by the accountant."""
    vocabulary = OpenVocabulary(2.0, 1e-3, 2)
    cut = vocabulary.threshold - lowered * vocabulary.deviation

    def law(counts: tuple[int, int]) -> np.ndarray:
        """Probability of each of the four releases."""
        passes = [norm.sf((cut - count) / vocabulary.deviation) if count else 0.0 for count in counts]
        return np.outer([1 - passes[0], passes[0]], [1 - passes[1], passes[1]]).ravel()

    epsilons = np.linspace(0, 3, 13)
    allowed = accountant.deltas(vocabulary.events, epsilons)
    found = []
    for first in range(1, 30, 3):
        for second in (1, first):
            more, fewer = law((first, second)), law((first - 1, second - 1))
            for one, other in ((more, fewer), (fewer, more)):
                needed = np.maximum(one - np.exp(epsilons)[:, None] * other, 0).sum(1)
                found.append((needed <= allowed).all())
    assert all(found) == sound


def test_a_failure_adds_its_probability_to_delta() -> None:
    """Against the closed form of one Gaussian (Balle and Wang 2018)."""
    sigma, chance = 2.0, 1e-3
    events = [
        Event(kind="gaussian", what="x", noise_multiplier=sigma),
        Event(kind="failure", what="y", probability=chance),
    ]
    for epsilon in (0.1, 0.5, 1.0):
        tail = norm.cdf(0.5 / sigma - epsilon * sigma) - np.exp(epsilon) * norm.cdf(-0.5 / sigma - epsilon * sigma)
        exact = chance + (1 - chance) * tail
        assert exact <= accountant.delta(events, epsilon) <= exact * 1.002
    assert accountant.epsilon(events, chance / 2) == np.inf


def test_training_pays_for_the_vocabulary_before_its_first_step() -> None:
    vocabulary = OpenVocabulary(20.0, 1e-7, 8)
    with_it, without = plan(examples=10_000, vocabulary=vocabulary), plan(examples=10_000)
    assert with_it.noise_multiplier > without.noise_multiplier  # type: ignore[operator]
    assert 0.999 <= (with_it.epsilon or 0) <= 1.0
    assert with_it.ledger().events == vocabulary.events
    cheaper = replace(with_it, periods=without.periods)
    with pytest.raises(dpfest.BudgetExceeded):
        cheaper.ledger()
    selecting = dpfest.plan(
        dpfest.FEST(), epsilon=1.0, delta=1e-5, examples=10_000, batch_size=100, steps=50, features=[999] * 8,
        vocabulary=vocabulary,
    )  # fmt: skip
    assert [event.what for event in selecting.ledger().events] == [
        "vocabulary", "values of one example", "row selection"
    ]  # fmt: skip


def test_where_examples_are_not_all_there_from_the_start_it_is_refused() -> None:
    vocabulary = OpenVocabulary(20.0, 1e-7, 8)
    units = dpfest.Units([1, 2, 3] * 4_000, "user", max_examples=4).config
    for asked in (
        {"examples": [5_000, 5_000], "steps": None, "epochs": 1.0},
        {"examples": 10_000, "unit": units},
        {"examples": 10_000, "fidelity": "paper"},
    ):
        with pytest.raises(dpfest.UserError, match="A vocabulary of noised counts is accounted for examples that are"):
            plan(vocabulary=vocabulary, **asked)
    with pytest.raises(dpfest.UserError, match="released once for all: take tables of public sizes"):
        dpfest.plan_search(
            dpfest.Search(5.0),
            [partial(dpfest.plan, dpfest.DPSGD(), examples=10_000, batch_size=100, steps=50, vocabulary=vocabulary)],
            epsilon=1.0,
        )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"noise_multiplier": 0.01}, "noise_multiplier=0.01 must be from 0.1"),
        ({"delta": 0.5}, "delta=0.5 must be from 1e-30 to 0.1"),
        ({"values_per_example": 0}, "values_per_example=0 must be a whole number, 1 or more"),
        ({"values_per_example": 2.5}, "values_per_example=2.5 must be a whole number"),
        ({"noise_multiplier": "20"}, "noise_multiplier='20' must be a number above 0"),
    ],
)
def test_settings_out_of_range_are_named(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OpenVocabulary(**({"noise_multiplier": 20.0, "delta": 1e-7, "values_per_example": 8} | wrong))  # type: ignore


def test_a_value_that_does_not_occur_is_refused() -> None:
    with pytest.raises(ValueError, match="does not occur"):
        OpenVocabulary(20.0, 1e-7, 8).known(np.array([3, 0]), NoiseKey.from_seed(0).stream("vocabulary"))
    none = OpenVocabulary(20.0, 1e-7, 8).known(np.array([], int), NoiseKey.from_seed(0).stream("vocabulary"))
    assert none.shape == (0,)


def test_a_training_pays_for_it() -> None:
    ids = torch.arange(200) % 7
    data, vocabulary = torch.utils.data.TensorDataset(ids, (ids % 2).float()), OpenVocabulary(5.0, 1e-6, 1)
    model = torch.nn.Sequential(torch.nn.Embedding(7, 2), torch.nn.Linear(2, 1), torch.nn.Flatten(0))
    settings: dict[str, Any] = {
        "epsilon": 2.0,
        "delta": 1e-4,
        "batch_size": 20,
        "steps": 5,
        "algorithm": dpfest.DPSGD(),
    }

    def made(**more: Any) -> dpfest.PrivateTraining:
        return dpfest.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data,
            lambda own, batch: (own(batch[0]) - batch[1]).square(), **{**settings, **more},
        )  # fmt: skip

    training = made(vocabulary=vocabulary)
    kinds = [event.kind for event in training.ledger.events]
    assert kinds[:2] == ["gaussian", "failure"] and training.plan.noise_multiplier > made().plan.noise_multiplier
    with pytest.raises(dpfest.UserError, match="The plan says vocabulary already"):
        made(plan=training.plan, vocabulary=vocabulary, **dict.fromkeys(settings))
    with pytest.raises(dpfest.UserError, match=r"vocabulary=20 must be a dpfest\.OpenVocabulary"):
        made(vocabulary=20)
