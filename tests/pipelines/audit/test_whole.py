"""Audits of whole trainings: sound ones stay below their claims, every flaw reaches it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from cli.audit import SETTINGS
from dpfest.accounting.bands import BITS, strategy
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import PrivateAlgorithm
from dpfest.algorithms.rules import ALGORITHMS, DPSGD, FEST, Threshold
from dpfest.noise.key import NoiseKey
from dpfest.selection.topk import SelectionConfig
from pipelines.audit.attack import Law
from pipelines.audit.canaries import ORDINARY, ORDINARY_ROWS, Examples, Run
from pipelines.audit.correlated import law_of
from pipelines.audit.flaws import OF_A_TRAINING
from pipelines.audit.results import TRAININGS, Audit, read, write
from pipelines.audit.training import Training, attempt
from pipelines.audit.whole import RATE, audit_training, trainings, uncovered
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed

COVERED = ("dpsgd", "threshold", "fest", "adafest", "adafest_plus")
SMALL = ("audit.canaries=400", "audit.steps=4", "audit.epsilons=[]")


def configured(name: str, *overrides: str) -> Config:
    line = [f"algorithm={name}", *SETTINGS.get(name, ()), "privacy.noise_seed=0", *overrides]
    return typed(Composer().compose(line))


def training(**changed: object) -> Training:
    made = Training(name="sampled", algorithm=DPSGD(), epsilon=1.0, delta=1e-4, steps=8, rate=RATE, canaries=(2_000,))
    return replace(made, **changed)  # type: ignore[arg-type]


def audited(asked: Training, *flaws: str) -> Audit:
    chosen = [flaw for flaw in OF_A_TRAINING if flaw.name in flaws]
    found = audit_training(asked, configured("dpsgd"), chosen, lambda audit, case: None)
    assert [case.sabotage for case in found.cases] == [None, *flaws]
    return found


# What is trained, and what is seen of it.


def test_a_canary_moves_its_row_by_its_whole_clipping_norm_and_one_left_out_by_nothing() -> None:
    """Under next to no noise, every step moves the rows of the included canaries in its batch by 1, and no other."""
    made = training(algorithm=DPSGD(clipping_norm=3.0)).plan()
    examples = Examples([2_000], NoiseKey.from_seed(1))

    def silence(running: object) -> None:
        running.engine.noise.deviation = 1e-9  # type: ignore[attr-defined]

    seen = Run(made, examples, NoiseKey.from_seed(2), spoil=silence).observed()
    hits = np.round(seen.change)
    assert np.abs(seen.change - hits).max() < 1e-3
    assert set(np.unique(hits)) == {0, 1} and not hits[:, ~examples.present].any()
    rate = hits[:, examples.present].mean()
    assert rate == pytest.approx(RATE, abs=5 * (RATE / 8_000) ** 0.5)
    assert 0.45 < examples.present.mean() < 0.55


def test_examples_left_out_count_in_nothing_but_the_public_number() -> None:
    examples = Examples([300], NoiseKey.from_seed(1), copies=4)
    assert examples.sizes == [4 * 300 + ORDINARY]
    counts = examples.histogram(0)
    assert counts[examples.rows].tolist() == (4 * examples.present).tolist()
    assert counts.sum() == 4 * examples.present.sum() + ORDINARY


@pytest.mark.parametrize(
    "algorithm",
    [DPSGD(), DPSGD(bands=4), Threshold(false_rate=0.3), AdaFEST(threshold=0.5, noise_ratio=1.0)],
    ids=["dpsgd", "bands", "threshold", "adafest"],
)
def test_the_engine_moves_rows_with_the_law_that_the_attacker_takes_it_for(algorithm: DPSGD) -> None:
    """Means over canaries and steps agree within five standard deviations (a false alarm in 10^6).

    Of products of a row's changes in steps that are 1 to 3 apart, too: the filter's law.
    """
    made = training(algorithm=algorithm).plan()
    examples = Examples([2_000], NoiseKey.from_seed(3))
    real = Run(made, examples, NoiseKey.from_seed(4)).observed()
    drawn = law_of(made, [2_000]).draw(np.random.default_rng(5), examples.present)
    for world in (False, True):
        canaries = examples.present == world
        for measure in (
            lambda seen: seen.moved.astype(float),
            lambda seen: seen.change,
            lambda seen: np.abs(seen.change),
            *(lambda seen, lag=lag: seen.change[lag:] * seen.change[:-lag] for lag in (1, 2, 3)),
        ):
            ours, theirs = measure(real)[:, canaries], measure(drawn)[:, canaries]
            spread = (ours.var() / ours.size + theirs.var() / theirs.size) ** 0.5
            assert abs(ours.mean() - theirs.mean()) <= 5 * spread + 1e-12


def test_what_the_law_of_bands_draws_is_correlated_as_the_strategy_says() -> None:
    """Noise of one step takes back a share of the last one's, -a_1 of it, which independent noise does not."""
    made = training(algorithm=DPSGD(bands=4)).plan()
    nobody = np.zeros(40_000, dtype=bool)
    first = strategy(4, 8).coefficients[1] / (1 << BITS)
    for law, expected in ((law_of(made, [40_000]), -first), (Law(made, [40_000]), 0.0)):
        change = law.draw(np.random.default_rng(7), nobody).change
        share = (change[1] * change[0]).mean() / (change[0] ** 2).mean()
        assert share == pytest.approx(expected, abs=5 / 40_000**0.5 * 1.5)


def test_scores_are_log_ratios_of_likelihoods() -> None:
    """E[exp(score)] over canaries that are left out is 1 for any ratio of likelihoods."""
    for algorithm in (DPSGD(), DPSGD(bands=4), Threshold(false_rate=0.3), AdaFEST(threshold=0.5, noise_ratio=1.0)):
        law = law_of(training(algorithm=algorithm, steps=8).plan(), [40_000])
        absent = np.zeros(40_000, dtype=bool)
        ratios = np.exp(law.scores(law.draw(np.random.default_rng(6), absent)))
        assert ratios.mean() == pytest.approx(1, abs=5 * ratios.std() / len(ratios) ** 0.5)


# Verdicts.


def test_a_sound_training_is_not_refuted_and_flaws_of_the_sampler_are() -> None:
    found = audited(training(), "every example in every step", "noise drawn again on resume")
    assert [case.verdict for case in found.cases] == ["sound", "broken", "broken"]
    own = found.cases[0]
    assert own.claim == found.claim == pytest.approx(1.0, rel=2e-3)
    assert own.tightness == own.bound / own.claim and own.at_delta < own.claim and own.made >= own.right
    assert found.ideal < found.claim


def test_a_training_under_chacha20_is_sound_and_the_audit_says_so() -> None:
    config = configured("adafest", *SMALL, "privacy.cipher=chacha20/1")
    asked, _ = trainings(config)[0]
    found = audit_training(asked, config, (), lambda audit, case: None)
    assert found.settings["cipher"] == "chacha20/1" and [case.verdict for case in found.cases] == ["sound"]


@pytest.mark.slow
def test_noise_that_is_never_drawn_and_periods_that_share_it_are_detected() -> None:
    lazy = audited(training(algorithm=DPSGD(noise="lazy")), "lazy noise never drawn")
    assert [case.verdict for case in lazy.cases] == ["sound", "broken"]
    stream = training(name="stream", stream=True, steps=4, canaries=(500,) * 4)
    assert [case.verdict for case in audited(stream, "periods share their noise").cases] == ["sound", "broken"]


def test_trainings_with_correlated_noise_are_sound_and_their_flaws_are_detected() -> None:
    """With the four flaws of the sampler, and columns that are not normalised."""
    config = configured("dpsgd", "algorithm.bands=8", "audit.epsilons=[]")
    (own, flaws), (stream, flaws_of_a_stream) = trainings(config)
    assert (own.rate, stream.stream, len(flaws), len(flaws_of_a_stream)) == (1 / 16, True, 5, 3)
    for asked, some in ((own, flaws), (stream, flaws_of_a_stream)):
        found = audit_training(asked, config, some, lambda audit, case: None)
        assert [case.verdict for case in found.cases] == ["sound", *["broken"] * len(some)], found.cases
    assert found.ideal >= 0.3 * found.claim


# The stage.


def test_which_trainings_are_audited() -> None:
    found = {
        name: [(one.name, one.epsilon, bool(flaws)) for one, flaws in trainings(configured(name, "audit.epsilons=[2]"))]
        for name in (*COVERED, "exponential", "frozen")
    }
    assert found["dpsgd"] == [
        ("sampled", 1, True),
        ("sampled", 2, False),
        ("unsampled", 1, False),
        ("unsampled", 2, False),
        ("sampled, lazy noise", 1, True),
        ("sampled, 8 bands", 1, True),
        ("stream", 1, True),
    ]
    assert found["fest"] == found["adafest"] == [("sampled", 1, True)]
    assert found["threshold"] == [("sampled", 1, False)]
    assert found["adafest_plus"] == [("sampled", 1, False), ("stream", 1, False)]
    assert found["exponential"] == found["frozen"] == []
    assert trainings(configured("dpsgd", "audit.canaries=0")) == []


@pytest.mark.parametrize("kind", ALGORITHMS.values())
def test_every_algorithm_has_whole_trainings_audited_or_says_why_not(kind: type[PrivateAlgorithm]) -> None:
    """And one that is added has, without a word anywhere."""

    @dataclass(frozen=True)
    class Added(PrivateAlgorithm):
        name: str = "added"

    reasons = {"exponential": "no Gaussian releases", "frozen": "trains no rows"}
    config = configured(kind.name, *SMALL)
    why = uncovered(config.algorithm)
    assert bool(trainings(config)) == (why is None) == (kind.name not in reasons)
    assert why is None or reasons[kind.name] in why
    added = replace(config, algorithm=Added())
    assert uncovered(added.algorithm) is None
    assert [(one.name, len(flaws)) for one, flaws in trainings(added)] == [("sampled", 0)]


def test_settings_that_the_attack_does_not_know_are_said_to_be_uncovered() -> None:
    assert uncovered(FEST(selection=SelectionConfig(mechanism="gaussian"))) is None
    assert "selected by" in (uncovered(FEST(selection=SelectionConfig(mechanism="laplace"))) or "")


def test_every_flaw_belongs_to_some_training() -> None:
    found = {flaw.name for name in COVERED for _, flaws in trainings(configured(name)) for flaw in flaws}
    assert found == {flaw.name for flaw in OF_A_TRAINING}


def test_an_audit_is_the_same_again_under_the_same_seed_and_is_kept_beside_others(tmp_path: Path) -> None:
    config = configured("threshold", *SMALL)
    ((asked, _),) = trainings(config)
    threshold, again = (audit_training(asked, config, (), lambda audit, case: None) for _ in range(2))
    assert [replace(case, seconds=0) for case in threshold.cases] == [replace(case, seconds=0) for case in again.cases]
    adafest = replace(again, algorithm="adafest")
    write(tmp_path, [adafest])
    path = write(tmp_path, [threshold])
    value = json.loads(path.read_text(encoding="utf-8"))
    assert [one["algorithm"] for one in value["trainings"]] == ["threshold", "adafest"]
    assert read(path, TRAININGS)[0]["claim"] == threshold.claim
    path.write_text("not json")
    assert read(path, TRAININGS) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", COVERED)
def test_every_training_is_sound_and_every_flaw_of_it_is_detected(name: str) -> None:
    """At 20,000 canaries; the noise is fixed, so the outcome is.

    With fresh noise a mechanism at exactly its claim would fail in at most 5% of audits.
    """
    config = configured(name)
    for asked, flaws in trainings(config):
        found = audit_training(asked, config, flaws, lambda audit, case: None)
        assert [case.verdict for case in found.cases] == ["sound", *["broken"] * len(flaws)], (asked, found.cases)
        if name == "dpsgd":
            assert found.ideal >= 0.5 * found.claim


@pytest.mark.slow
def test_the_default_selection_of_an_audit_takes_half_of_the_canaries() -> None:
    ((own, _), *_) = trainings(configured("fest", *SMALL))
    assert own.algorithm.selection == SelectionConfig(
        mechanism="gaussian", rows=ORDINARY_ROWS + 200, split="joint", noise_multiplier=8.0
    )
    seen, _ = attempt(own).observe(NoiseKey.from_seed(1))
    assert seen.selected is not None and 0.4 < seen.selected.mean() < 0.6
