"""The bounded-memory AUC against scikit-learn's, and rows of several files against one file's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dpfest.errors import UserError
from pipelines.data.rows import JoinedRows, PartOfRows, Rows
from pipelines.tasks.auc import RocAuc


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_it_is_scikit_learns_to_six_digits_whatever_the_scores(scale: float) -> None:
    generator = np.random.default_rng(0)
    labels = (generator.random(40_000) < 0.2).astype(np.float32)
    scores = (scale * (generator.standard_normal(40_000) + 0.7 * labels - 1)).astype(np.float32)
    auc = RocAuc()
    for part in np.array_split(np.arange(40_000), 7):
        auc.add(labels[part], scores[part])
    assert auc.value == pytest.approx(roc_auc_score(labels, scores), abs=2e-6)
    assert auc.examples == 40_000


def test_ties_count_half_zeros_are_equal_and_one_label_alone_has_no_area() -> None:
    auc = RocAuc()
    auc.add(np.ones(2), np.array([0.0, 1.0], np.float32))
    assert auc.value is None and auc.estimate == (None, None)
    auc.add(np.zeros(2), np.array([-0.0, -5.0], np.float32))
    assert auc.value == (0.5 + 1 + 1 + 1) / 4


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(UserError, match=r"not finite: lower optimizer\.dense\.learning_rate"):
        RocAuc().add(np.ones(1), np.array([np.nan], np.float32))


class Numbered:
    """Rows whose label is their number, from `first`."""

    def __init__(self, first: int, count: int) -> None:
        self._labels = np.arange(first, first + count, dtype=np.float32)

    def __len__(self) -> int:
        return len(self._labels)

    def gather(self, indices: np.ndarray) -> Rows:
        labels = self._labels[indices]
        return Rows(labels, labels.astype(np.int32), labels[:, None], labels[:, None].astype(np.int32))

    def chunks(self, size: int) -> Iterator[Rows]:
        for start in range(0, len(self), size):
            yield self.gather(np.arange(start, min(start + size, len(self))))


def test_joined_rows_are_those_of_the_files_end_to_end_and_parts_divide_them() -> None:
    rows = JoinedRows([Numbered(0, 5), Numbered(5, 0), Numbered(5, 9)])
    assert len(rows) == 14
    for wanted in ([], [0], [4, 5], [0, 3, 5, 13], list(range(14))):
        got = rows.gather(np.array(wanted, np.int64))
        assert got.labels.tolist() == wanted and got.categorical[:, 0].tolist() == wanted
    assert np.concatenate([chunk.labels for chunk in rows.chunks(4)]).tolist() == list(range(14))
    parts = [PartOfRows(rows, lambda n: n.labels % 4 == 0), PartOfRows(rows, lambda n: n.labels % 4 != 0)]
    read = [np.concatenate([chunk.labels for chunk in part.chunks(3)]).tolist() for part in parts]
    assert read[0] == [0, 4, 8, 12] and sorted(read[0] + read[1]) == list(range(14))
    with pytest.raises(IndexError):
        rows.gather(np.array([14]))
