"""Tests of the paper's claims about utility against reduction, at one ε or in one streaming period."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reports.algorithms import label
from reports.claims.claim import NOWHERE, Finding, Findings, at_every, finding, in_each
from reports.claims.compared import LOSSES, Compared, Tried
from reports.claims.curves import Comparison, curve, up_to
from reports.claims.estimate import FAILS, HOLDS, INCONCLUSIVE, NEARLY, OPEN, Verdict, decide
from reports.claims.leads import compared_at
from reports.claims.logic import Above, All, Any, Statement, between, holds, verdict
from reports.comparison import Panel, Population, Setting, by_epsilon
from reports.entry import Inputs
from reports.published import TAB_FROZEN
from reports.wording import metric

TOLERABLE = LOSSES[-1]
"""The largest loss in the paper's tables: a larger one is not tolerable."""

LITTLE, MINIMAL = 100, 2
"""The paper gives no number for a "minimal" reduction: below LITTLE it may be one, below MINIMAL it certainly is. Only
settings below MINIMAL can refute the claim about these."""

VERY = 10
"""A gradient counts as very sparse if at most one coordinate in VERY is non-zero; the paper gives no number."""

MUCH = 10
"""A reduction above this counts as significant; the paper gives no number."""

SPARSE = ("fest_equal", "fest", "adafest", "adafest_plus_equal", "adafest_plus")


def reaches(
    leader: str, factor: float, of_paper: Sequence[str] = (), knobs: Sequence[str] = ()
) -> Callable[[Population], Finding]:
    """The leader has a reduction above `factor` at a loss below NEARLY.

    It holds only if frozen embeddings lose more. It can be refuted only on the paper's data and if all `knobs` were
    searched: on other data, or in a smaller search, such a reduction may not exist.
    """

    def test(population: Population) -> Finding:
        panel = main_panel(population)
        compared = Compared(panel, leader) if panel else None
        if panel is None or compared is None or compared.lacking:
            return finding(OPEN, "not_compared", names=[leader, "dpsgd"])
        tried = compared.tried(leader)
        far = [setting for setting in tried.settings if setting.reduction > factor]
        if not far:
            most = tried.sparsest.reduction
            return finding(INCONCLUSIVE, "none_sparse", count=len(tried.settings), most=most, name=leader)
        outcome = compared.verdict(Any([tried.within(setting, NEARLY) for setting in far]))
        if outcome == HOLDS and not holds(All(compared.worth(NEARLY)), len(compared.rivals), True):
            outcome = Verdict(OPEN)
        searched = [name for name in knobs if len({setting.parameter(name) for setting in tried.settings}) > 1]
        unable = population.dataset not in of_paper or len(searched) < len(knobs)
        best = min(far, key=lambda s: (tried.lost[s.key].seems, s.key))
        lost = tried.lost[best.key].at(len(far) * len(compared.rivals))
        return finding(
            INCONCLUSIVE if outcome == FAILS and unable else outcome,
            "sparse_enough",
            interval=(f"loss of {metric(population)}", lost.low, lost.high),
            count=len(far),
            reduction=best.reduction,
            lost=lost,
            metric=metric(population),
            frozen=compared.frozen_loss(),
            unable=outcome == FAILS and unable,
        )

    return test


def significant_reduction(population: Population) -> Finding:
    """One of the paper's algorithms has a reduction above MUCH at a loss below NEARLY, and a higher utility than frozen
    embeddings, whose gradient is empty. Refuted only if a reduction between MUCH and LITTLE was tried."""
    panel = main_panel(population)
    names = [name for name in SPARSE if panel and panel.of(name)]
    compared = Compared(panel, "frozen", *names) if panel else None
    if panel is None or compared is None or compared.lacking or not names:
        return finding(OPEN, "not_compared", names=["dpsgd", "frozen", *(names or SPARSE)])
    tried = compared.tried("frozen")
    frozen = compared.sample.best(tried.settings)
    assert frozen is not None
    offered = [s for name in names for s in panel.of(name)]
    far = [s for s in offered if s.reduction > MUCH]
    if not far:
        sparsest = max(offered, key=lambda s: (s.reduction, s.key))
        most, name = sparsest.reduction, sparsest.algorithm
        return finding(INCONCLUSIVE, "none_sparse", count=len(offered), most=most, name=name)
    every = Tried(far, tried.reference, compared.sample)
    gains = {setting.key: between(compared.sample, setting, frozen) for setting in far}
    each = [All([every.within(setting, NEARLY), Above(gains[setting.key])]) for setting in far]
    best = far[max(range(len(far)), key=lambda place: each[place].seems)]
    of = len(far) * len(tried.settings) * len(compared.rivals)
    lost, gained = every.lost[best.key].at(of), gains[best.key].at(of)
    outcome, least = compared.verdict(Any(each), len(tried.settings)), min(setting.reduction for setting in far)
    too_sparse = outcome == FAILS and least >= LITTLE
    return finding(
        INCONCLUSIVE if too_sparse else outcome,
        "significant",
        (f"loss of {metric(population)}", lost.low, lost.high),
        name=best.algorithm,
        reduction=best.reduction,
        much=MUCH,
        lost=lost,
        gained=gained,
        metric=metric(population),
        least=least if too_sparse else None,
        untried=outcome == FAILS and not too_sparse,
    )


def exponential_loses(population: Population) -> Finding:
    """No setting of exponential selection has a tolerable loss, at any ε with as many settings as the main one."""
    return in_each(by_epsilon(population, exponential_epsilons(population)), _exponential_loses)


def exponential_epsilons(population: Population) -> Sequence[float]:
    """Return the ε at which exponential selection has as many settings as at the main one."""
    main = main_panel(population)
    panels = by_epsilon(population, population.epsilons)
    return [panel.epsilon for panel in fully_tried(panels, main, "exponential")] if main else []


def fully_tried(panels: Sequence[Panel], main: Panel, name: str) -> list[Panel]:
    """Return the panels in which an algorithm has at least as many settings as in the main one: a coarser grid may lack
    the better ones."""
    return [panel for panel in panels if len(panel.of(name)) >= len(main.of(name))]


def _exponential_loses(panel: Panel, panels: int) -> Finding:
    """A loss is tolerable if it is below TOLERABLE and below that of frozen embeddings."""
    compared = Compared(panel, "exponential", *(["frozen"] if panel.of("frozen") else []), panels=panels)
    if compared.lacking:
        return finding(OPEN, "lacking", names=compared.lacking, where=panel.where)
    tried, frozen = compared.tried("exponential"), compared.sample.best(panel.of("frozen"))

    def lost(setting: Setting) -> Statement:
        worse = [Above(between(compared.sample, frozen, setting))] if frozen else []
        return Any([tried.beyond(setting, TOLERABLE), *worse])

    statement = All([lost(setting) for setting in tried.settings])
    of = len(compared.rivals) * max(1, len(panel.of("frozen")))
    least = min(tried.lost.values(), key=lambda contrast: contrast.seems).at(len(tried.settings))
    outcome = verdict(statement, True, of)
    return finding(
        outcome,
        "least_loss",
        interval=(f"least loss of {metric(panel.population)}", least.low, least.high),
        where=panel.where,
        count=len(tried.settings),
        least=least,
        tolerable=TOLERABLE,
        metric=metric(panel.population),
        frozen=compared.frozen_loss(),
        untried=outcome == HOLDS,
    )


def beats_dpsgd(population: Population) -> Finding:
    """One of the DP-AdaFEST settings with a small reduction exceeds DP-SGD. Refuted only if a reduction below MINIMAL
    was tried, and then for the settings tried."""
    panel = main_panel(population)
    compared = Compared(panel, "adafest") if panel else None
    if panel is None or compared is None or compared.lacking:
        return finding(OPEN, "not_compared", names=["adafest", "dpsgd"])
    tried = compared.tried("adafest")
    dense = [setting for setting in tried.settings if setting.reduction < LITTLE]
    if not dense:
        least = min(setting.reduction for setting in tried.settings)
        return finding(INCONCLUSIVE, "none_dense", count=len(tried.settings), little=LITTLE, least=least)
    best = min(dense, key=lambda s: (tried.lost[s.key].seems, s.key))
    outcome = compared.verdict(Any([tried.within(setting, 0) for setting in dense]))
    # "Any" is refuted if each setting is, at its own level, and holds only at that of all of them.
    of = len(compared.rivals) * (1 if outcome == FAILS else len(dense))
    gained = tried.lost[best.key].at(of).times(-1)
    minimal = min(setting.reduction for setting in dense)
    return finding(
        INCONCLUSIVE if outcome == FAILS and minimal > MINIMAL else outcome,
        "dense_enough",
        interval=(f"gain of {metric(population)}", gained.low, gained.high),
        count=len(dense),
        little=LITTLE,
        reduction=best.reduction,
        gained=gained,
        rivals=len(compared.rivals),
        metric=metric(population),
        minimal=minimal if minimal > MINIMAL and outcome != HOLDS else None,
        untried=outcome == FAILS and minimal <= MINIMAL,
    )


def sparse_without_privacy(population: Population) -> Finding:
    """Without privacy, all but one in VERY coordinates of the embedding gradient are zero, in batches of the private
    runs' size."""
    setting = population.nonprivate
    if setting is None or setting.coordinates <= 0:
        return finding(OPEN, "missing", what="runs without privacy in batches of the private runs' size")
    return finding(
        Verdict(HOLDS if setting.reduction > VERY else FAILS, 0.0),  # counted
        "sparsity",
        zero=1 - 1 / setting.reduction,
        very=1 - 1 / VERY,
        batch_size=setting.runs[0].batch_size,
        rows=population.embedding_rows,
    )


def embeddings_help(population: Population) -> Finding:
    """DP-SGD that trains the embeddings is above frozen ones at every ε. Refuted on a task of the paper if the gain,
    after an epoch or more, is shown to be below each that the paper reports for it; elsewhere if it is shown to be
    negative. A true gain between zero and the paper's least is thus an indifference zone: more runs end in the
    refutation.

    Of several DP-SGD settings at an ε, the one that validation chooses must be above frozen embeddings; a refutation
    must refute each. On the paper's tasks it is *as tried*, since few settings were.
    """
    panels = by_epsilon(population, population.epsilons)
    least = least_gain_of_training(population.dataset)
    return at_every(population, in_each(panels, lambda panel, of: _embeddings_help(panel, of, least)))


def least_gain_of_training(dataset: str) -> float | None:
    """Return the smallest gain of accuracy from training the word embeddings in the paper's table; None if the dataset
    is not of its tasks."""
    task = next((task for task in TAB_FROZEN.columns if dataset.partition("_")[0] == task), None)
    if task is None:
        return None
    column = TAB_FROZEN.columns.index(task)
    frozen = {epsilon: row[column] for (algorithm, epsilon), row in TAB_FROZEN.rows.items() if algorithm == "frozen"}
    return min(TAB_FROZEN.rows["dpsgd", epsilon][column] - accuracy for epsilon, accuracy in frozen.items())


def _embeddings_help(panel: Panel, panels: int, least: float | None) -> Finding:
    compared = Compared(panel, "frozen", panels=panels)
    if compared.lacking:
        return finding(OPEN, "lacking", names=compared.lacking, where=panel.where)
    frozen = compared.sample.best(panel.of("frozen"))
    assert frozen is not None
    gains = [between(compared.sample, setting, frozen) for setting in compared.rivals]
    controls = len(panel.of("frozen"))
    p = Any([Above(gain) for gain in gains]).p(controls, controls > 1)
    p_small = Any([Above(gain, least or 0.0) for gain in gains]).p_not(controls, controls > 1)
    outcome = decide(p, p_small)
    small = outcome == FAILS
    if outcome == HOLDS:
        of = controls * len(gains)
        gained = max(gains, key=lambda gain: gain.seems).at(of, of > 1)
    else:
        # The last one to refute.
        gained = max((gain.at(controls, controls > 1) for gain in gains), key=lambda gain: gain.high)
    seen = min(_examples_seen(frozen), max(map(_examples_seen, compared.rivals)))
    brief = small and gained.high >= 0 and seen < panel.population.examples
    return finding(
        INCONCLUSIVE if brief else outcome,
        "trained",
        interval=(f"gain of {metric(panel.population)}", gained.low, gained.high),
        where=panel.where,
        gained=gained,
        metric=metric(panel.population),
        least=least,
        small=small,
        brief=brief,
        count=1 if outcome == HOLDS else len(gains),
        untried=bool(least) if small else outcome == HOLDS and controls == 1,  # untuned frozen embeddings
    )


def _examples_seen(setting: Setting) -> int:
    return min(run.batch_size * run.steps for run in setting.runs)


def larger_vocabulary_gains(inputs: Inputs) -> Findings:
    """At the same loss and ε, DP-AdaFEST cuts the gradient more where the vocabulary is larger."""
    kinds = "text", "large_text"
    texts = _trained(inputs, *kinds)
    if not texts:
        return untested(inputs, *kinds)
    texts = _trained(inputs, *kinds, epsilon=texts[0][1].epsilon)
    by_size = {population.vocabulary: panel for population, panel in reversed(texts)}
    if len(by_size) < 2:
        what = "runs of DP-AdaFEST and DP-SGD on texts with two vocabularies"
        return {texts[0][0].dataset: finding(OPEN, "missing", what=what)}
    small, large = by_size[min(by_size)], by_size[max(by_size)]
    return {large.population.dataset: cuts_more(large, small)}


def texts_cut_less(inputs: Inputs) -> Findings:
    """At the same loss and ε, DP-AdaFEST cuts the gradient of each text less than that of any click data."""
    texts = _trained(inputs, "text")
    return {text.dataset: _cuts_less(inputs, own) for text, own in texts} if texts else untested(inputs, "text")


def _cuts_less(inputs: Inputs, own: Panel) -> Finding:
    clicks = _trained(inputs, "clicks", epsilon=own.epsilon)
    if not clicks:
        return finding(OPEN, "missing", what=f"runs of DP-AdaFEST and DP-SGD on click data at {own.where}")
    result = in_each([panel for _, panel in clicks], lambda panel, of: cuts_more(panel, own, of))
    panels = 1 if result.verdict == HOLDS else len(clicks)  # at which it was judged
    return finding(
        result.verdict,
        "controlled",
        result.interval,
        finding=result,
        population=own.population,
        frozen=Compared(own, "adafest", panels=panels).frozen_loss(),
    )


def _trained(inputs: Inputs, *kinds: str, epsilon: float | None = None) -> list[tuple[Population, Panel]]:
    """Return the first population on each dataset on which DP-AdaFEST and DP-SGD were trained at this ε (default: its
    main one) and claims can be tested, with its panel."""
    found: dict[tuple[str, int], tuple[Population, Panel]] = {}
    for population in inputs.of(*kinds):
        panel = main_panel(population) if epsilon is None else by_epsilon(population, [epsilon])[0]
        if panel and panel.reference and panel.of("adafest") and population.vocabulary and not population.untestable:
            found.setdefault((population.dataset, population.vocabulary), (population, panel))
    return list(found.values())


def untested(inputs: Inputs, *kinds: str) -> Findings:
    """Return the findings if no claim can be tested on any data of these kinds."""
    there = {p.dataset: finding(INCONCLUSIVE, "untestable", population=p) for p in inputs.of(*kinds) if p.untestable}
    return there or {NOWHERE: finding(OPEN, "no_runs", kinds=kinds)}


def cuts_more(panel: Panel, other: Panel, panels: int = 1) -> Finding:
    """At the same loss, DP-AdaFEST has a larger reduction in one panel, of several in any of which the claim can fail,
    than in another on other data."""
    pair = [Compared(one, "adafest", panels=panels) for one in (panel, other)]
    for compared in pair:
        if lost := compared.worthless():
            where = f"{panel.where} on {compared.panel.population.dataset}"
            return finding(
                INCONCLUSIVE, "nothing_to_lose", where=where, lost=lost, metric=metric(compared.panel.population)
            )
    mine, theirs = (
        curve(one, "adafest", words=f"{label('adafest')} on {one.panel.population.dataset}") for one in pair
    )
    if not (mine.settings and theirs.settings):
        return finding(INCONCLUSIVE, "all_empty", names=["adafest"], where=panel.where)
    where = f"{panel.where}, {panel.population.dataset}"
    result = compared_at(Comparison(mine, [theirs], up_to([mine, theirs])), where, "utility")
    return finding(
        result.verdict,
        "vocabularies",
        result.interval,
        finding=result,
        large=panel.population,
        small=other.population,
    )


def main_panel(population: Population) -> Panel | None:
    """Return the panel of the main ε, for claims about one ε."""
    epsilon = population.main_epsilon
    return None if epsilon is None else by_epsilon(population, [epsilon])[0]
