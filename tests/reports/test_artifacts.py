"""What single artifacts compute."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from reports.ablation import largest_grid
from reports.algorithms import algorithm
from reports.artifacts import (
    audit,
    best_reduction,
    calibration,
    fig1b,
    fig2,
    fig7,
    fig8,
    fig9,
    frontier,
)
from reports.comparison import Population, populations
from reports.entry import Inputs, absent
from reports.reading import load_runs
from reports.registry import ENTRIES
from reports.style import dress, log_axis, style
from reports.wording import multiple, power_of_ten, settings_text
from tests.reports.synthetic import PARAMETERS, TABLES, write_audit, write_run


def only_population(runs: Path) -> Population:
    (population,) = populations(load_runs(runs)[0])
    return population


def test_fig1b_shows_the_five_largest_features_and_weighs_all_by_coordinates(tmp_path: Path) -> None:
    write_run(tmp_path, "nonprivate", test=0.78, epsilon=None)
    with style():
        table = fig1b.content(Inputs(drawn=only_population(tmp_path))).table
    assert table is not None
    features = [row[0] for row in table.rows]
    assert features == [
        "feature_5",
        "feature_2",
        "feature_12",
        "feature_7",
        "feature_10",
        f"all {len(TABLES)}",
    ]
    (run,) = load_runs(tmp_path)[0]
    nonzero = sum(t.rows_mean * t.dimension for t in run.tables)
    assert table.rows[-1][4] == pytest.approx(1 - nonzero / sum(rows * dim for _, rows, dim in TABLES))
    assert table.rows[0][4] == pytest.approx(1 - run.tables[5].rows_mean / 96_000)


def test_fig2_follows_the_algorithm_and_is_fixed() -> None:
    step = fig2.pipeline()
    assert step.counts.sum() == fig2.EXAMPLES
    # An example weighs at most 1 and, with eight other rows, at least 1/3.
    assert np.all(step.clipped <= step.counts) and np.all(step.clipped >= step.counts / 3 - 1e-12)
    assert np.array_equal(step.survives, step.noisy >= fig2.THRESHOLD)
    assert 0 < step.survives.sum() < fig2.BUCKETS
    assert np.array_equal(fig2.pipeline().noisy, step.noisy)


def test_the_ablation_grid_holds_everything_but_its_two_axes_fixed(tmp_path: Path) -> None:
    def put(ratio: float, threshold: float, clipping: float, test: float) -> None:
        settings = {"noise_ratio": ratio, "threshold": threshold, "contribution_clipping_norm": clipping}
        write_run(tmp_path, "adafest", test=test, coordinates=50.0, settings=settings)

    put(1.0, 5.0, 1.0, 0.70)
    put(1.0, 10.0, 1.0, 0.71)
    put(5.0, 5.0, 1.0, 0.72)
    put(5.0, 20.0, 10.0, 0.79)  # the best of all, but at another C1
    grid = largest_grid(only_population(tmp_path), 1.0)
    assert set(grid.cells) == {(1.0, 5.0), (1.0, 10.0), (5.0, 5.0)}


def test_of_grids_of_one_size_the_one_with_most_runs_is_taken_whatever_its_utility(tmp_path: Path) -> None:
    for clipping, seeds, test in ((1.0, (0, 1), 0.70), (10.0, (0,), 0.79)):
        for threshold in (5.0, 10.0):
            for seed in seeds:
                settings = {"noise_ratio": 5.0, "threshold": threshold, "contribution_clipping_norm": clipping}
                write_run(tmp_path, "adafest", test=test, coordinates=50.0, settings=settings, seed=seed)
    grid = largest_grid(only_population(tmp_path), 1.0)
    assert {setting.test for setting in grid.cells.values()} == {0.70}


def test_fig8_shows_how_far_apart_single_runs_must_lie(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", test=0.72, validation=0.72)
    write_run(tmp_path, "frozen", test=0.69, coordinates=0.0)
    write_run(tmp_path, "fest", test=0.70, validation=0.70, coordinates=1000)
    drawn = []
    for seed in (1, None):
        with style():
            figure = fig8.content(Inputs(drawn=only_population(tmp_path))).figure
        assert figure is not None
        drawn.append([text.get_text() for text in figure.axes[0].texts])
        if seed:
            write_run(tmp_path, "fest", test=0.702, validation=0.702, coordinates=1000, seed=seed)
    assert drawn == [["± standard error of one AUC"], []]  # several seeds have bars of their own


def test_fig8_says_how_many_settings_lie_under_its_axis(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", test=0.72)
    write_run(tmp_path, "frozen", test=0.70, coordinates=0.0)
    write_run(tmp_path, "exponential", test=0.50, coordinates=100.0)
    with style():
        content = fig8.content(Inputs(drawn=only_population(tmp_path)))
    assert "1 setting below the axis" in content.caption
    assert content.table is not None and len(content.table.rows) == 3


@pytest.mark.parametrize("public", [0.40, 0.50, 0.90])
def test_fig8_shows_every_reference_however_far_from_the_settings_it_lies(tmp_path: Path, public: float) -> None:
    write_run(tmp_path, "nonprivate", test=public, epsilon=None)
    write_run(tmp_path, "dpsgd", test=0.48)
    write_run(tmp_path, "frozen", test=0.559, coordinates=0.0)
    write_run(tmp_path, "exponential", test=0.560, coordinates=100.0)
    with style():
        figure = fig8.content(Inputs(drawn=only_population(tmp_path))).figure
    assert figure is not None
    (axes,) = figure.axes
    bottom, top = axes.get_ylim()
    lines = {float(line.get_ydata()[0]) for line in axes.lines if len(line.get_xdata()) == 2}
    assert {0.48, 0.559} <= {value for value in lines if bottom < value < top}
    arrows = {0.40: ["non-private 0.400 ↓"], 0.50: [], 0.90: ["non-private 0.900 ↑"]}
    words = [text.get_text() for text in axes.texts]
    assert [word for word in words if not word.startswith("± standard error")] == arrows[public]
    assert (public in lines) == (public == 0.50)


def test_fig7_names_its_reference_lines_where_no_setting_lies(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", test=0.71)
    write_run(tmp_path, "frozen", test=0.70, coordinates=0.0)
    for ratio in (1.0, 5.0):
        write_run(tmp_path, "adafest", test=0.71, coordinates=50.0, settings={"noise_ratio": ratio, "threshold": 5.0})
    with style():
        figure = fig7.content(Inputs(drawn=only_population(tmp_path))).figure
    assert figure is not None
    assert [text.get_text() for legend in figure.legends for text in legend.texts] == ["DP-SGD", "Frozen embeddings"]
    assert [text for axes in figure.axes for text in axes.texts] == []


def test_notes_and_footer_stay_on_the_page() -> None:
    with style():
        figure = fig2.content(Inputs()).figure
        assert figure is not None
        note = "Incomplete. Runs with one noise ratio σ₁/σ₂ only, which do not show its effect yet: "
        dress(
            figure,
            "dpfest sweep experiment=comparison paths.runs=/data/" + "runs/" * 40,
            [note + "dpfest sweep experiment=comparison " * 4],
        )
        figure.draw_without_rendering()
        assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in figure.texts)


def test_the_reduction_curve_marks_settings_worse_than_frozen_with_hollow_markers(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", test=0.72)
    write_run(tmp_path, "frozen", test=0.71, coordinates=0.0)
    write_run(tmp_path, "fest", test=0.715, coordinates=1000.0, settings={"selection": {"rows": 100}})
    write_run(tmp_path, "fest", test=0.705, coordinates=10.0, settings={"selection": {"rows": 1}})
    with style():
        figure = best_reduction.fig3(Inputs(drawn=only_population(tmp_path))).figure
    assert figure is not None
    markers = [line for line in figure.axes[0].lines if line.get_marker() == "d" and line.get_linestyle() == "None"]
    faces = {round(float(line.get_xdata()[0]), 6): line.get_markerfacecolor() for line in markers}
    assert faces == {0.005: "#56B4E9", 0.015: "white"}
    # The shaded region, from the loss of frozen embeddings on.
    assert min(patch.get_x() for patch in figure.axes[0].patches) == pytest.approx(0.01)


def test_settings_in_words_name_what_the_algorithm_reads_and_what_varies(tmp_path: Path) -> None:
    selection = {
        "mechanism": "gaussian",
        "rows": 900,
        "noise_multiplier": 20.0,
        "epsilon": 0.01,
        "prior": None,
    }
    write_run(tmp_path, "fest", test=0.7, settings={"clipping_norm": 1.0, "selection": selection})
    population = only_population(tmp_path)
    words = settings_text(population.settings[0], population)
    assert words == "C=1, selection=gaussian, k=900, selection σ=20"


def test_what_only_training_without_privacy_does_otherwise_is_not_said_of_every_setting(tmp_path: Path) -> None:
    def optimizer(name: str) -> dict[str, object]:
        return {"optimizer": {"tables": {"name": name}}}

    write_run(tmp_path, "nonprivate", test=0.8, epsilon=None, hyperparameters=optimizer("adagrad"))
    write_run(tmp_path, "dpsgd", test=0.7, hyperparameters=optimizer("sgd"))
    population = only_population(tmp_path)
    assert {s.algorithm: settings_text(s, population) for s in population.settings} == {
        "nonprivate": "table optimizer=adagrad",
        "dpsgd": "—",
    }


def test_when_a_run_writes_something_down_is_no_setting_of_it(tmp_path: Path) -> None:
    for seed, (often, seldom) in enumerate(((30, 60), (60, 30))):
        for name, every in (("dpsgd", often), ("frozen", seldom)):
            settings = {"algorithm": {"name": name}, "train": {"epochs": 1.0, "checkpoint_every": every}}
            write_run(tmp_path, name, test=0.7, seed=seed, hyperparameters=settings)
    population = only_population(tmp_path)
    assert {s.algorithm: settings_text(s, population) for s in population.settings} == {"dpsgd": "—", "frozen": "—"}
    assert all(len(setting.runs) == 2 for setting in population.settings)


def test_reductions_in_words() -> None:
    words = [multiple(value) for value in (1.0, 3.9051, 176.4, 69_280.2, 99_960.0, 512_345.0, float("inf"))]
    assert words == ["1×", "3.91×", "176×", "69,300×", "1.00·10⁵×", "5.12·10⁵×", "∞"]
    assert power_of_ten(9.97e-8) == "1.0·10⁻⁷"


def test_the_audit_shows_claims_bounds_and_sabotages(tmp_path: Path) -> None:
    write_audit(tmp_path)
    with style():
        content = audit.steps(Inputs(report=tmp_path))
    assert content.table is not None and content.figure is not None and content.missing == []
    assert [row[0] for row in content.table.rows].count("adafest") == 4
    assert "from 500,000 draws" in content.caption and "95% confidence" in content.caption
    (axes,) = content.figure.axes
    assert len(axes.collections) == 2  # a claim a rule
    places = sorted(float(line.get_xdata()[0]) for line in axes.lines)
    assert places[-1] == 11.1 and places[0] == audit.LEAST  # a bound of 0 is drawn at the edge
    assert axes.get_xlabel().endswith("δ = 0.01")


def test_audits_of_different_settings_are_not_said_to_be_alike(tmp_path: Path) -> None:
    write_audit(tmp_path, delta=0.02, draws=1000)
    with style():
        content = audit.steps(Inputs(report=tmp_path))
    assert "each algorithm's audit" in content.caption and content.table is not None
    assert {row[5] for row in content.table.rows} == {0.02, 0.01}


def test_the_audit_of_trainings_shows_claims_bounds_and_sabotages(tmp_path: Path) -> None:
    write_audit(tmp_path)
    with style():
        content = audit.trainings(Inputs(report=tmp_path))
    assert content.table is not None and content.figure is not None and content.missing == []
    sound, caught = content.table.rows
    assert sound[:7] == ("adafest", "sampled, 64 steps, q = 0.125", "as it is", 2.0, 1.3, 0.65, 1.4)
    assert caught[2] == "map not paid for" and caught[6] is None and caught[10] == "broken"
    assert "20,000 canaries" in content.caption and "95% confidence" in content.caption
    (axes,) = content.figure.axes
    assert [float(line.get_xdata()[0]) for line in axes.lines] == [1.3, 6.0]


@pytest.mark.parametrize("text", ["", "[]", '{"audits": [3]}', '{"audits": [{"algorithm": "fest"}]}'])
def test_an_audit_that_cannot_be_read_is_asked_for(tmp_path: Path, text: str) -> None:
    write_audit(tmp_path)
    (tmp_path / audit.FILE).write_text(text, encoding="utf-8")
    for content in (audit.steps, audit.trainings):
        assert content(Inputs(report=tmp_path)).missing == ["Not measured yet: dpfest audit"]


def test_an_epsilon_at_which_only_controls_were_trained_is_not_missed_by_a_comparison(tmp_path: Path) -> None:
    """tab_frozen asks for DP-SGD and frozen embeddings at every ε; fig3 does not lack the others there."""
    write_run(tmp_path, "nonprivate", test=0.80, epsilon=None)
    for epsilon in (1.0, 8.0):
        write_run(tmp_path, "dpsgd", test=0.72, epsilon=epsilon)
        write_run(tmp_path, "frozen", test=0.70, coordinates=0.0, epsilon=epsilon)
    for name in ("fest", "adafest", "exponential"):
        write_run(tmp_path, name, test=0.71, coordinates=100.0, epsilon=1.0)
    for split in ("joint", "equal"):
        write_run(tmp_path, "fest", test=0.71, coordinates=100.0, settings={"selection": {"rows": 9, "split": split}})
    entries = {entry.id: entry for entry in ENTRIES}
    for name in ("fig3", "tab_frozen"):
        assert absent(entries[name], only_population(tmp_path)) == []
    write_run(tmp_path, "fest", test=0.71, coordinates=100.0, epsilon=8.0)
    assert absent(entries["fig3"], only_population(tmp_path)) == [
        "No DP-FEST (k/p a table) (fest_equal) runs at ε = 8 yet.",
        "No DP-AdaFEST (adafest) runs at ε = 8 yet.",
        "No Exponential selection (exponential) runs at ε = 8 yet.",
    ]


def test_curves_have_bars_over_seeds_where_there_are_several(tmp_path: Path) -> None:
    def drawn(seeds: tuple[int, ...]) -> tuple[str, list[ErrorbarContainer]]:
        runs = tmp_path / str(len(seeds))
        for seed in seeds:
            write_run(runs, "dpsgd", test=0.72, seed=seed)
            for rule, loss in (("fest", 0.002), ("adafest", 0.004)):
                test, size = 0.72 - loss + 0.001 * seed, 100.0 + 10 * seed
                write_run(runs, rule, test=test, coordinates=size, seed=seed, settings={"threshold": 1.0})
        (population,) = populations(load_runs(runs)[0])
        with style():
            content = best_reduction.fig3(Inputs(drawn=population))
        assert content.figure is not None
        return content.caption, [c for c in content.figure.axes[0].containers if isinstance(c, ErrorbarContainer)]

    caption, bars = drawn((0, 1))
    assert len(bars) == 2 and all(bar.has_xerr and bar.has_yerr for bar in bars)
    assert "bars are standard deviations over seeds" in caption
    caption, bars = drawn((0,))
    assert bars == [] and "seeds" not in caption


@pytest.mark.parametrize(("sizes", "limits"), [([1.5e5, 1.7e5], (1e5, 1e6)), ([50.0, 5e3], None)])
def test_a_logarithmic_axis_has_labelled_ticks(sizes: list[float], limits: tuple[float, float] | None) -> None:
    """A range within a decade is widened to it; any other one is left alone."""
    axes = Figure().add_subplot()
    axes.plot([1, 2], sizes)
    log_axis(axes, "y")
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2
    assert (low, high) == limits if limits else 10 < low < 50 and 5e3 < high < 1e4


def many_thresholds(runs: Path) -> Population:
    for ratio in (1.0, 5.0):
        for threshold in (1.0, 2.0, 5.0, 8.0, 10.0, 12.0, 15.0, 18.0, 20.0, 1e5):
            settings = {"noise_ratio": ratio, "threshold": threshold}
            write_run(runs, "adafest", test=0.7, coordinates=50.0 + threshold, settings=settings)
    return only_population(runs)


def test_ticks_that_would_touch_are_not_labelled_and_wide_heatmaps_are_stacked(tmp_path: Path) -> None:
    population = many_thresholds(tmp_path)
    with style():
        lines, maps = (each.content(Inputs(drawn=population)).figure for each in (fig7, fig9))
    assert lines is not None and maps is not None
    thresholds = next(axes for axes in lines.axes if axes.get_xlabel() == "threshold τ")
    places, words = thresholds.get_xticks(), [tick.get_text() for tick in thresholds.get_xticklabels()]
    assert len(places) == 10 and words[0] == "1" and 1 < sum(map(bool, words)) < 10
    shown = [thresholds.transAxes.inverted().transform(thresholds.transData.transform((x, 0)))[0]
             for x, word in zip(places, words, strict=True) if word]  # fmt: skip
    assert min(np.diff(shown)) >= fig7.APART
    heatmaps = [axes.get_position() for axes in maps.axes if axes.images or axes.collections]
    assert len(heatmaps) >= 2 and heatmaps[0].x0 == heatmaps[1].x0 and heatmaps[0].y0 > heatmaps[1].y0


def test_every_panels_curves_lie_within_the_axis_they_share(tmp_path: Path) -> None:
    """The axis is set when the last panel is drawn: at a larger epsilon reductions are larger."""
    for epsilon, coordinates in ((1.0, PARAMETERS / 20), (3.0, PARAMETERS / 5_000)):
        write_run(tmp_path, "dpsgd", test=0.72, epsilon=epsilon)
        write_run(tmp_path, "frozen", test=0.68, epsilon=epsilon, coordinates=0.0)
        write_run(tmp_path, "fest", test=0.719, epsilon=epsilon, coordinates=coordinates)
    population = only_population(tmp_path)
    panels = [best_reduction.Panel(epsilon, f"ε = {epsilon:g}", population, epsilon) for epsilon in (1.0, 3.0)]
    with style():
        figure = best_reduction.curve_figure(panels, ["fest"])
    assert figure is not None
    drawn = [value for axes in figure.axes for line in axes.get_lines() for value in line.get_ydata()]
    assert max(drawn) >= 4_999
    assert all(axes.get_ylim()[1] >= 4_999 for axes in figure.axes)


def test_the_frontier_tells_log_losses_beside_that_of_a_constant(tmp_path: Path) -> None:
    """Of runs that do not tell one, the cell is empty; a mean over some of the seeds would not be the setting's."""
    about = {"metric": "auc", "split": "test", "standard_error": 0.002, "validation": 0.72}
    for seed, calibrated in ((0, 0.50), (1, 0.52)):
        told = {**about, "value": 0.72, "loss": 0.75, "calibrated_loss": calibrated, "constant_loss": 0.6931}
        write_run(tmp_path, "dpsgd", test=0.72, seed=seed, utility=told)
    untold = {**about, "value": 0.71}
    write_run(tmp_path, "adafest", test=0.71, coordinates=100.0, settings={"threshold": 5.0}, utility=untold)
    content = frontier.content(Inputs(drawn=only_population(tmp_path)))
    assert content.table is not None and "best constant probability has a log loss of 0.6931" in content.caption
    names = [column.name for column in content.table.columns]
    rows = {row[1]: dict(zip(names, row, strict=True)) for row in content.table.rows}
    assert (rows["dpsgd"]["log_loss"], rows["dpsgd"]["calibrated_loss"]) == (0.75, pytest.approx(0.51))
    assert rows["adafest"]["log_loss"] is rows["adafest"]["calibrated_loss"] is None


def test_probabilities_stand_beside_those_of_a_constant_and_after_platt_scaling(tmp_path: Path) -> None:
    for name, losses in (("dpsgd", (0.7, 0.45)), ("frozen", (0.55, 0.5)), ("nonprivate", (0.44, 0.44))):
        folder = write_run(tmp_path, name, test=0.72, epsilon=None if name == "nonprivate" else 1.0)
        summary = folder / "release" / "summary.json"
        written = json.loads(summary.read_text(encoding="utf-8"))
        written["utility"] |= dict(zip(("loss", "calibrated_loss"), losses, strict=True))
        summary.write_text(json.dumps(written), encoding="utf-8")
    (group,) = populations(load_runs(tmp_path)[0])
    drawn = calibration.content(Inputs([group], tmp_path, group))
    assert drawn.figure is not None and drawn.table is not None and drawn.missing == []
    said = {row[0]: row[2:6] for row in drawn.table.rows}
    assert said == {
        "nonprivate": (0.44, 0.44, 0.52, 0.3), "dpsgd": (0.7, 0.45, 0.52, 0.3), "frozen": (0.55, 0.5, 0.52, 0.3),
    }  # fmt: skip
    losses, curves = drawn.figure.axes
    marks = [line for line in losses.lines if line.get_marker() == "o"]
    hollow = {line.get_xdata()[0] for line in marks if line.get_markerfacecolor() == "white"}
    assert hollow == {0.44, 0.7, 0.55} and {0.45, 0.5} <= {line.get_xdata()[0] for line in marks} - hollow
    scaled = [line for line in curves.lines if line.get_marker() == algorithm("dpsgd").marker]
    assert list(scaled[0].get_ydata()) == pytest.approx([share / 10 for share in range(10)])
