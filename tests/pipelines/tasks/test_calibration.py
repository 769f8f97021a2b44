"""Platt scaling, log loss and reliability, against scikit-learn's or plain formulas on every score."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from pipelines.tasks.auc import RocAuc
from pipelines.tasks.calibration import GROUPS, Platt


def drawn(count: int = 20_000, scale: float = 3.0, shift: float = -1.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and scores of a model that is `scale` times too sure and off by `shift`."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-1.0, 1.5, count)
    labels = (generator.random(count) < expit(logits)).astype(np.float32)
    return labels, (scale * logits + shift).astype(np.float32)


def counted(labels: np.ndarray, scores: np.ndarray) -> RocAuc:
    auc = RocAuc()
    auc.add(labels, scores)
    return auc


def loss(labels: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def test_bins_stand_for_their_scores_within_their_width() -> None:
    scores = np.array([-700.0, -1.5, -1e-3, 0.0, 2e-5, 1.0, 33.3], dtype=np.float32)
    found = counted(np.zeros(len(scores), np.float32), scores).scores
    np.testing.assert_allclose(found.values, scores, rtol=1 / 2000, atol=1e-38)
    assert found.negative.tolist() == [1] * len(scores) and not found.positive.any()


def test_platt_finds_the_two_numbers_that_a_dense_fit_finds() -> None:
    labels, scores = drawn()
    platt = counted(labels, scores).scores.platt()
    assert platt is not None
    best = minimize(lambda p: loss(labels, p[0] * scores.astype(float) + p[1]), [0.3, 0.0], method="Nelder-Mead")
    assert (platt.scale, platt.shift) == pytest.approx(best.x.tolist(), rel=2e-3, abs=2e-3)
    assert platt.scale == pytest.approx(1 / 3, rel=0.03) and platt.shift == pytest.approx(1 / 3, abs=0.05)
    assert counted(labels, scores).scores.loss(platt) == pytest.approx(best.fun, abs=1e-5)


def test_losses_are_those_of_every_score() -> None:
    labels, scores = drawn()
    found = counted(labels, scores).scores
    assert found.loss(Platt(1.0, 0.0)) == pytest.approx(loss(labels, scores), rel=1e-4)
    share = float(labels.mean())
    assert found.constant_loss == pytest.approx(-share * np.log(share) - (1 - share) * np.log(1 - share))


def test_a_scaling_is_finite_where_scores_tell_all_labels_apart_and_absent_without_both() -> None:
    labels = np.array([0, 0, 1, 1], np.float32)
    platt = counted(labels, np.array([-2, -1, 1, 2], np.float32)).scores.platt()
    assert platt is not None and 0 < platt.scale < 10
    for rows in (labels[:2], labels[2:], labels[:0]):
        scores = counted(rows, np.ones(len(rows), np.float32)).scores
        assert scores.platt() is None
    assert counted(labels[:0], np.ones(0, np.float32)).scores.constant_loss is None


def test_a_constant_score_is_scaled_to_the_share_of_positive_labels() -> None:
    labels = (np.arange(1000) % 10 == 0).astype(np.float32)
    for value in (0.0, 2.5):
        scores = counted(labels, np.full(1000, value, np.float32)).scores
        platt = scores.platt()
        assert platt is not None
        assert expit(platt.scale * value + platt.shift) == pytest.approx(0.1, rel=0.02)
        assert scores.loss(platt) == pytest.approx(scores.constant_loss, abs=1e-4)


def test_a_reliability_curve_tells_sure_from_right() -> None:
    labels, scores = drawn()
    found = counted(labels, scores).scores
    platt = found.platt()
    curve = np.array(found.reliability(platt), dtype=float)
    order = np.argsort(scores, kind="stable")
    for group, part in zip(curve, np.array_split(order, GROUPS), strict=True):
        assert group[0] == pytest.approx(len(part), rel=0.02)
        assert group[1] == pytest.approx(labels[part].mean(), abs=0.01)
        assert group[2] == pytest.approx(expit(scores[part].astype(float)).mean(), abs=0.01)
    assert np.abs(curve[:, 3] - curve[:, 1]).max() < 0.03 < 0.1 < np.abs(curve[:, 2] - curve[:, 1]).max()
    assert found.reliability(None)[0][3] is None
