"""Settings are chosen on validation and reported on test; frozen embeddings stand beside every rule."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from reports.artifacts.best_reduction import threshold_table
from reports.chosen import best_reduction, loss_on_validation, pareto
from reports.comparison import Population, by_epsilon, populations
from reports.reading import load_runs
from tests.reports.synthetic import EXAMPLES, PARAMETERS, write_run
from tests.reports.synthetic_texts import write_text_run


def only_population(runs: Path) -> Population:
    (population,) = populations(load_runs(runs)[0])
    return population


def test_the_best_setting_is_chosen_on_validation_whatever_its_test_utility(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", validation=0.71, test=0.69, settings={"clipping_norm": 1.0})
    write_run(tmp_path, "dpsgd", validation=0.70, test=0.75, settings={"clipping_norm": 2.0})
    best = only_population(tmp_path).best("dpsgd", 1.0)
    assert best is not None
    assert (best.parameter("clipping_norm"), best.test) == (1.0, 0.69)


def test_best_reduction_compares_validation_losses_and_takes_the_most_reduced(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", validation=0.720, test=0.720)
    # On test the second would pass 0.005 and the first would not; validation decides.
    write_run(tmp_path, "adafest", validation=0.716, test=0.600, coordinates=500, settings={"threshold": 5.0})
    write_run(tmp_path, "adafest", validation=0.714, test=0.720, coordinates=5, settings={"threshold": 50.0})
    write_run(tmp_path, "adafest", validation=0.719, test=0.719, coordinates=5000, settings={"threshold": 1.0})
    population = only_population(tmp_path)
    reference = population.best("dpsgd", 1.0)
    assert reference is not None

    def threshold(loss: float) -> float | None:
        chosen = best_reduction(population.of("adafest", 1.0), reference, loss)
        return None if chosen is None else chosen.parameter("threshold")

    assert threshold(0.0005) is None
    assert threshold(0.001) == 1.0  # exactly on the threshold, where 0.720 - 0.719 > 0.001 in floating point
    assert threshold(0.005) == 5.0
    assert threshold(0.01) == 50.0


def test_best_reduction_compares_the_seeds_that_both_have(tmp_path: Path) -> None:
    for seed, validation in enumerate([0.700, 0.700, 0.720, 0.720]):
        write_run(tmp_path, "dpsgd", validation=validation, test=0.7, seed=seed)
    for seed, validation in enumerate([0.698, 0.698]):  # 0.012 below the mean of DP-SGD, 0.002 on the same seeds
        write_run(
            tmp_path, "adafest", validation=validation, test=0.7, coordinates=5, seed=seed, settings={"threshold": 5.0}
        )
    population = only_population(tmp_path)
    reference = population.best("dpsgd", 1.0)
    assert reference is not None
    assert best_reduction(population.of("adafest", 1.0), reference, 0.001) is None
    (setting,) = population.of("adafest", 1.0)
    assert best_reduction([setting], reference, 0.005) is setting
    assert loss_on_validation(setting, reference) == pytest.approx(0.002)
    table = threshold_table(by_epsilon(population, [1.0]), ["adafest"], "AUC")
    (row,) = [row for row in table.rows if row[1] == 0.005]
    assert row[4] == pytest.approx(0.002) and row[5] == pytest.approx(0.0)


def test_runs_of_one_configuration_are_pooled_over_seeds(tmp_path: Path) -> None:
    for seed, (test, coordinates) in enumerate([(0.70, 100.0), (0.72, 300.0), (0.74, 200.0)]):
        write_run(tmp_path, "adafest", test=test, coordinates=coordinates, seed=seed, settings={"threshold": 5.0})
    (setting,) = only_population(tmp_path).of("adafest", 1.0)
    assert setting.test == pytest.approx(0.72)
    assert setting.spread == pytest.approx(0.02)
    assert setting.reduction == pytest.approx(PARAMETERS / 200)


def test_runs_are_compared_at_equal_target_epsilon_though_they_spent_a_little_less(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", test=0.72, epsilon=3.0)
    (setting,) = only_population(tmp_path).settings
    assert setting.epsilon == 3.0
    assert setting.runs[0].epsilon == pytest.approx(3 * 0.9995)


def test_frozen_embeddings_have_an_infinite_reduction_and_mark_what_they_beat(tmp_path: Path) -> None:
    write_run(tmp_path, "frozen", test=0.70, coordinates=0.0)
    write_run(tmp_path, "fest", test=0.71, coordinates=1e4, settings={"selection": {"rows": 900}})
    write_run(tmp_path, "fest", test=0.69, coordinates=1e2, settings={"selection": {"rows": 9}})
    write_run(tmp_path, "fest", test=0.69, coordinates=1e2, settings={"selection": {"rows": 9}}, epsilon=3.0)
    population = only_population(tmp_path)
    frozen = population.best("frozen", 1.0)
    assert frozen is not None and math.isinf(frozen.reduction)
    marked = {s.parameter("selection.rows"): population.worse_than_frozen(s) for s in population.of("fest_equal", 1.0)}
    assert marked == {900: False, 9: True}
    # Without a frozen run at that ε nothing is claimed.
    assert not any(population.worse_than_frozen(s) for s in population.of("fest_equal", 3.0))


def test_the_frontier_keeps_what_no_setting_beats_in_both(tmp_path: Path) -> None:
    for name, validation, coordinates in [
        (1, 0.72, 900.0),
        (2, 0.71, 500.0),
        (3, 0.705, 600.0),
        (4, 0.70, 5.0),
    ]:
        write_run(tmp_path, "adafest", test=validation, coordinates=coordinates, settings={"threshold": float(name)})
    frontier = pareto(only_population(tmp_path).of("adafest", 1.0))
    assert [s.parameter("threshold") for s in frontier] == [1.0, 2.0, 4.0]


def test_data_models_fidelities_and_profiles_never_share_a_population(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", test=0.70)
    write_run(tmp_path, "dpsgd", test=0.71, dataset="criteo_kaggle")
    write_run(tmp_path, "dpsgd", test=0.72, fidelity="paper")
    write_run(tmp_path, "dpsgd", test=0.73, model="deep")
    write_run(tmp_path, "dpsgd", test=0.74, profile="smoke")
    write_run(tmp_path, "dpsgd", test=0.75, examples=EXAMPLES // 2)
    found = populations(load_runs(tmp_path)[0])
    assert [len(population.runs) for population in found] == [1] * 6


def test_the_order_of_populations_does_not_rest_on_how_many_runs_they_have(tmp_path: Path) -> None:
    for threshold in (1.0, 2.0, 3.0):
        write_text_run(tmp_path, "adafest", test=0.9, reduction=2, dataset="sst2", settings={"threshold": threshold})
        write_run(tmp_path, "adafest", test=0.7, dataset="a_stream", period=1, settings={"threshold": threshold})
        write_run(tmp_path, "adafest", test=0.7, dataset="criteo_synthetic", settings={"threshold": threshold})
    write_run(tmp_path, "dpsgd", test=0.70)
    found = [population.dataset for population in populations(load_runs(tmp_path)[0])]
    assert found == ["nycflights", "criteo_synthetic", "a_stream", "sst2"]


def test_runs_without_privacy_stand_beside_every_fidelity(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", test=0.70)
    write_run(tmp_path, "dpsgd", test=0.72, fidelity="paper")
    write_run(tmp_path, "nonprivate", test=0.78, epsilon=None)
    found = populations(load_runs(tmp_path)[0])
    assert [population.fidelity for population in found] == ["rigorous", "paper"]
    assert all(population.best("nonprivate", None) is not None for population in found)
