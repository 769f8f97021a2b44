"""Does some setting lose less than a given utility, at a reduction that counts?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports.ablation import largest_grid
from reports.algorithms import algorithm, label
from reports.claims.claim import Finding, missing, undecided
from reports.claims.compared import Compared
from reports.claims.curves import LOSSES
from reports.claims.estimate import FAILS, HOLDS, INCONCLUSIVE, NEARLY, Difference, Sample, Verdict
from reports.claims.logic import Above, All, Any, below, between, verdict
from reports.comparison import Panel
from reports.published import TAB_FROZEN
from reports.setting import Setting
from reports.wording import metric, multiple, number, plural

TOLERABLE = LOSSES[-1]
"""The largest loss in the paper's tables: a larger one is not tolerable."""

MUCH = 10
"""A reduction above this counts as significant; the paper gives no number."""

LITTLE, MINIMAL = 100, 2
"""The paper gives no number for a "minimal" reduction: below LITTLE it may be one, below MINIMAL it certainly is. Only
settings below MINIMAL can refute the claim about these."""

BEST_RATIOS = (5.0, 10.0)

DENSER = "smaller algorithm.threshold"
NAMES = {"dpsgd": "DP-SGD", "frozen": "frozen embeddings"}

Guard = Callable[[Panel, Sequence[Setting], Difference], str]
"""Why what was tried does not refute a claim, of the settings that count and the loss of the best; empty if it does."""


@dataclass(frozen=True)
class Reaches:
    """In a panel, a setting of one of these algorithms loses less than `loss` against the best setting of another.

    Attributes:
        names: the algorithms; those without a run are left out if others have one.
        over: the other algorithm.
        cut: the reductions that count are between these.
        frozen: whether the setting must be better than frozen embeddings, too.
        control: whether frozen embeddings must lose more than `loss`.
        never: whether the claim is that there is no such setting.
        least: the gain below which all settings must be shown to be to refute it, by the dataset; None for -`loss`.
        guard: where what was tried does not refute the claim.
    """

    names: tuple[str, ...]
    loss: float = NEARLY
    over: str = "dpsgd"
    cut: tuple[float, float] = (0.0, math.inf)
    frozen: bool = False
    control: bool = False
    never: bool = False
    least: Callable[[str], float | None] = lambda dataset: None
    guard: Guard = lambda panel, far, lost: ""

    def __call__(self, panel: Panel, panels: int) -> Finding:
        names = [name for name in self.names if panel.of(name)] or list(self.names)
        control = panel.of("frozen") if self.frozen or self.over == "frozen" else []
        required = ["frozen"] if control or not self.never else []
        compared = Compared(panel, *(required if self.frozen else [self.over]), *names, panels=panels)
        if compared.lacking:
            return missing(f"{' or '.join(map(label, compared.lacking))} runs")
        sample, over = compared.sample, panel.of(self.over)
        tried = [setting for name in names for setting in panel.of(name)]
        far = [setting for setting in tried if self.cut[0] < setting.reduction <= self.cut[1]]
        if not far:
            return undecided(self._none_counts(tried))
        reference, frozen = sample.best(over), sample.best(control)
        assert reference is not None
        losses = [between(sample, reference, setting) for setting in far]
        gains = [between(sample, setting, frozen) for setting in far] if self.frozen and frozen else []
        better = [[Above(gain)] for gain in gains] or [[] for _ in far]
        some = Any([All([below(lost, self.loss), *more]) for lost, more in zip(losses, better, strict=True)])
        # Frozen embeddings that have one setting are no choice; DP-SGD's settings are.
        of, chosen = len(over) * (len(control) if gains else 1), self.over != "frozen" or len(over) > 1
        least = self.least(panel.population.dataset)
        none = -some if least is None else All([Above(lost, -least) for lost in losses])
        worth = All([some, *(compared.worth(self.loss) if self.control else [])])
        outcome = verdict(none, of, chosen, worth) if self.never else verdict(worth, of, chosen, none)
        reached, refuted = (FAILS, HOLDS) if self.never else (HOLDS, FAILS)
        # Each setting is refuted at its own level, one of them shown at that of all.
        among = of * (1 if outcome == refuted else len(far))
        place, last = some.best, self.over == "frozen" and outcome != reached and len(far) > 1
        if last:
            among = of
            place = max(range(len(far)), key=lambda place: losses[place].at(of, chosen).times(-1).high)
        lost = losses[place].at(among, chosen or among > 1)
        why = self.guard(panel, far, lost) if outcome == refuted else ""
        name = metric(panel.population)
        which = "that with the highest upper bound" if last else "the best"
        one = f"Of {len(far)} settings{self._cut}, {which}" if len(far) > 1 else f"The one setting{self._cut}"
        words = [
            f"{one} ({label(far[place].variant)}, {multiple(far[place].reduction)}) {lost.times(-1).gains} {name} "
            + f"against {NAMES[self.over]}"
            + (f" and {gains[place].at(among).gains} against {NAMES['frozen']}." if gains else "."),
            f"The least gain in the paper's table for this task is {least:.4f}."
            if least is not None and outcome == refuted
            else "",
            _worth(compared.frozen_loss) if self.control else "",
            why,
        ]
        bounds = (lost.low, lost.high) if self.loss else (-lost.high, -lost.low)
        return Finding(
            Verdict(INCONCLUSIVE) if why else outcome,
            " ".join(filter(None, words)),
            (f"{'loss' if self.loss else 'gain'} of {name}", *bounds),
            as_tried=not why and (outcome == refuted or (outcome == HOLDS and not chosen)),
        )

    @property
    def _cut(self) -> str:
        least, most = self.cut
        return (f" above {multiple(least)}" if least else "") + (
            f" below {multiple(most)}" if math.isfinite(most) else ""
        )

    def _none_counts(self, tried: Sequence[Setting]) -> str:
        nearest = (max if self.cut[0] else min)(tried, key=lambda s: (s.reduction, s.key))
        which, knob = ("largest", algorithm(nearest.algorithm).knob) if self.cut[0] else ("smallest", DENSER)
        reach = f"the {which} {multiple(nearest.reduction)} (sweep {knob})"
        return f"None of {plural(len(tried), 'setting')} is{self._cut}, {reach}."


def _worth(frozen: Difference | None) -> str:
    if frozen is None:
        return ""
    worth = "" if frozen.low > 0 else ", so no reduction here is shown to be worth its loss"
    return f"Freezing the embeddings {frozen.times(-1).gains}{worth}."


def if_searched_on(dataset: str, *searched: str) -> Guard:
    """Where the data are others, or not all of these settings were searched, such a reduction may not exist."""

    def guard(panel: Panel, far: Sequence[Setting], lost: Difference) -> str:
        tried = panel.of(far[0].algorithm)
        varied = [name for name in searched if len({setting.parameter(name) for setting in tried}) > 1]
        about = panel.population.dataset == dataset and len(varied) == len(searched)
        return "" if about else "The claim is about other data or a wider search: this does not refute it."

    return guard


def if_cut_below(most: float) -> Guard:
    """Where no reduction below this was tried: smaller ones may lose less."""

    def guard(panel: Panel, far: Sequence[Setting], lost: Difference) -> str:
        least = min(setting.reduction for setting in far)
        why = f"The smallest tried is {multiple(least)}, so this does not refute it: sweep {DENSER}."
        return why if least > most else ""

    return guard


def after_an_epoch(panel: Panel, far: Sequence[Setting], lost: Difference) -> str:
    """Where the embeddings may gain, and were trained for less than an epoch."""
    frozen = [min(run.batch_size * run.steps for run in setting.runs) for setting in panel.of("frozen")]
    trained = [min(run.batch_size * run.steps for run in setting.runs) for setting in far]
    brief = lost.low <= 0 and min(max(trained), max(frozen)) < panel.population.examples
    return "This is after less than one epoch, so this does not refute it: raise train.steps." if brief else ""


def least_gain_of_training(dataset: str) -> float | None:
    """Return the smallest gain of accuracy from training the word embeddings in the paper's table; None if the dataset
    is not of its tasks."""
    task = next((task for task in TAB_FROZEN.columns if dataset.partition("_")[0] == task), None)
    if task is None:
        return None
    column = TAB_FROZEN.columns.index(task)
    frozen = {epsilon: row[column] for (algorithm, epsilon), row in TAB_FROZEN.rows.items() if algorithm == "frozen"}
    return min(TAB_FROZEN.rows["dpsgd", epsilon][column] - accuracy for epsilon, accuracy in frozen.items())


def five_or_ten_best(panel: Panel, panels: int) -> Finding:
    """One of DP-AdaFEST's settings with a σ₁/σ₂ of 5 or 10 is better than each with another one."""
    cells = largest_grid(panel.population, panel.epsilon).cells
    named = [setting for (ratio, _), setting in cells.items() if ratio in BEST_RATIOS]
    others = [setting for (ratio, _), setting in cells.items() if ratio not in BEST_RATIOS]
    sample = Sample(cells.values(), panels)
    best, other = sample.best(named), sample.best(others)
    if best is None or other is None:
        return missing("DP-AdaFEST runs with a ratio of 5 or 10 and with another one")
    some = Any([All([Above(between(sample, one, against)) for against in others]) for one in named])
    gained = between(sample, best, other).at(len(cells))
    outcome = verdict(some)
    # Denser settings are better: a lead over settings that are all sparser need not be due to the ratio.
    leader, trailing = (best, others) if outcome == HOLDS else (other, named)
    sparser = outcome in (HOLDS, FAILS) and min(s.reduction for s in trailing) > leader.reduction
    name, ours, theirs = metric(panel.population), _cell(best), _cell(other)
    words = f"{ours} {gained.gains} {name} against the best other ratio, {theirs}."
    if sparser:
        words += f" The worse has no setting as dense as the better one, which may be the reason: sweep {DENSER}."
    as_tried = outcome in (HOLDS, FAILS) and not sparser
    shown = Verdict(INCONCLUSIVE) if sparser else outcome
    return Finding(shown, words, (f"gain of {name}", gained.low, gained.high), as_tried)


def _cell(setting: Setting) -> str:
    ratio, threshold = (number(setting.parameter(name)) for name in ("noise_ratio", "threshold"))
    return f"{ratio} at τ = {threshold} ({multiple(setting.reduction)})"
