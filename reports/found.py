"""Summary of results: which claims hold on which data, in one sentence and one picture."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from reports.claims.estimate import FAILS, HOLDS, INCONCLUSIVE, OPEN
from reports.comparison import Population
from reports.style import WIDTH, Drawing, hover, key
from reports.wording import number, plural

DECIDED = (HOLDS, FAILS)
_LEADS = "at one or more of the losses compared, {} cuts the gradient{} more than {}"
_LAGS = "at one or more of the losses compared, {} cuts the gradient{} no more than {} (at others it may)"
_BUT = "at one or more of them no more"
_TOLERABLE = "tolerable (0.01, or what frozen embeddings lose if that is less)"

HEADLINES = {
    "training_embeddings_helps_clicks": (
        "training the embeddings privately beats freezing them",
        "training the embeddings privately does not always beat freezing them",
        "not",
    ),
    "training_embeddings_helps": (
        "training word embeddings privately improves on freezing them as the paper says",
        "training word embeddings privately gains less over freezing them than the paper says, if anything",
        "not",
    ),
    "significant_reduction": (
        "the gradient can be made more than 10 times smaller at a loss of utility below 0.005{at}",
        "the gradient cannot be made more than 10 times smaller at a loss of utility below 0.005{at}",
        "not",
    ),
    "adafest_ahead_of_fest": (
        _LEADS.format("DP-AdaFEST", "", "DP-FEST"),
        _LAGS.format("DP-AdaFEST", "", "DP-FEST"),
        _BUT,
    ),
    "combined_ahead_of_both": (
        _LEADS.format("DP-AdaFEST+", "", "DP-FEST and DP-AdaFEST"),
        _LAGS.format("DP-AdaFEST+", "", "DP-FEST or DP-AdaFEST"),
        f"{_BUT} than one of these",
    ),
    "lora_behind": (
        _LEADS.format("DP-AdaFEST", " of word embeddings", "LoRA"),
        _LAGS.format("DP-AdaFEST", " of word embeddings", "LoRA"),
        _BUT,
    ),
    "exponential_fails": (
        f"exponential selection loses more utility than is {_TOLERABLE}",
        f"exponential selection loses no more utility than is {_TOLERABLE}",
        "not",
    ),
}
"""What readers ask first: claims, in words where they hold, where they do not, and where they do not beside data on
which they hold."""

NOT_IN_PAPER = "not in the paper"
"""Beginning of where a claim is made, of claims that are our own."""

AS_TRIED = "*"
"""Mark of data on which untried settings could change a verdict."""

BENCHMARKS = "benchmarks"
"""Column of claims that concern no dataset, such as those about time."""

_LOOKS: dict[str, dict[str, Any]] = {
    HOLDS: {"color": "#1B7837", "marker": "o", "markerfacecolor": "#1B7837"},
    FAILS: {"color": "#B2182B", "marker": "X", "markerfacecolor": "#B2182B"},
    OPEN: {"color": "#777777", "marker": "o", "markerfacecolor": "none"},
    INCONCLUSIVE: {"color": "#777777", "marker": "_"},
}
_NAMES = {"adafest": "AdaFEST", "fest": "FEST", "dpsgd": "DP-SGD", "lora": "LoRA", "nonprivate": "non-private"}


@dataclass(frozen=True)
class Found:
    """The verdicts of each claim by id and dataset, the datasets in order, and the main ε of each that has one.

    Attributes:
        as_tried: claims and datasets whose verdicts untried settings could change.
        own: ids of claims that are not the paper's.
    """

    verdicts: Mapping[str, Mapping[str, str]]
    datasets: Sequence[str]
    epsilons: Mapping[str, float]
    as_tried: Collection[tuple[str, str]]
    own: Collection[str]

    @classmethod
    def of(cls, claims: Sequence[Mapping[str, Any]], groups: Sequence[Population]) -> Found:
        """Read the claims of `report.json`, without data on which no claim can be tested."""
        tested = dict.fromkeys(group.dataset for group in groups if group.untestable is None)
        verdicts = {}
        for claim in claims:
            judged = {name: one["verdict"] for name, one in claim["datasets"].items()}
            if not judged and claim["verdict"] in DECIDED:
                judged = {BENCHMARKS: claim["verdict"]}
            verdicts[claim["id"]] = {name: judged[name] for name in (*tested, BENCHMARKS) if name in judged}
        there = {name for by_dataset in verdicts.values() for name in by_dataset}
        epsilons = {group.dataset: group.main_epsilon for group in reversed(groups) if group.main_epsilon is not None}
        as_tried = {
            (claim["id"], name)
            for claim in claims
            for name, one in claim["datasets"].items()
            if one["as_tried"] and name in tested
        }
        own = {claim["id"] for claim in claims if claim["where"].startswith(NOT_IN_PAPER)}
        return cls(verdicts, [name for name in (*tested, BENCHMARKS) if name in there], epsilons, as_tried, own)

    @property
    def sentence(self) -> str:
        """The headlines, and the tally of all claims."""
        return f"{self.headlines} {self.tally}".lstrip()

    @property
    def headlines(self) -> str:
        """The `findings` as one sentence; empty if none is decided."""
        return f"{_capitalized('; '.join(self._clauses))}." if self._clauses else ""

    @property
    def findings(self) -> list[str]:
        """A sentence on each decided claim of `HEADLINES`: on which data it holds, and on which it does not."""
        return [f"{_capitalized(part)}." for part in self._clauses]

    @property
    def _clauses(self) -> list[str]:
        parts = []
        for claim, (holds, fails, but) in HEADLINES.items():
            verdicts = self.verdicts.get(claim, {})
            marked = {name: name + AS_TRIED * ((claim, name) in self.as_tried) for name in verdicts}
            on = {of: ", ".join(marked[name] for name, own in verdicts.items() if own == of) for of in DECIDED}
            if on[HOLDS]:
                part = f"{holds} on {on[HOLDS]}" + (f" ({but} on {on[FAILS]})" if on[FAILS] else "")
            elif on[FAILS]:
                part = f"{fails} on {on[FAILS]}"
            else:
                continue
            epsilons = {self.epsilons.get(name) for name, verdict in verdicts.items() if verdict in DECIDED}
            parts.append(part.format(at=f" at ε = {number(epsilons.pop())}" if len(epsilons) == 1 else ""))
        return parts

    @property
    def tally(self) -> str:
        """Number of decided claims, and on each dataset of those that hold and of those that do not."""
        parts, undecided = [], []
        for name in self.datasets:
            verdicts = [by_dataset.get(name) for by_dataset in self.verdicts.values()]
            hold, fail = verdicts.count(HOLDS), verdicts.count(FAILS)
            if hold or fail:
                parts.append(f"{name} {hold} / {fail}")
            else:
                undecided.append(name)
        decided = {name for name, by_dataset in self.verdicts.items() if {*by_dataset.values()} & {*DECIDED}}
        paper = self.verdicts.keys() - self.own
        of = f"Of {plural(len(self.verdicts), 'claim')} about sparsity-preserving private training"
        if not self.datasets:
            return f"{of}, these runs test none: that takes real data."
        if not parts:
            return f"{of}, these runs decide none."
        said = [
            f"{of}, {len(decided)} {'is' if len(decided) == 1 else 'are'} decided on at least one data set "
            f"({len(decided & paper)} of the paper's {len(paper)}). Hold / do not hold: {', '.join(parts)}."
        ]
        if undecided:
            said.append(f"None is decided on {', '.join(undecided)}.")
        if self.as_tried:
            count = plural(len(self.as_tried), "verdict")
            said.append(f"{AS_TRIED} {count} could change with settings that were not tried.")
        return " ".join(said)

    def picture(self) -> Drawing:
        """Draw a mark for each claim and dataset, in two blocks side by side."""
        names = list(self.verdicts)
        half = math.ceil(len(names) / 2)
        figure = Drawing(WIDTH, 0.9 + 0.165 * half + 0.055 * max(len(name) for name in self.datasets))
        blocks = figure.subplots(1, 2, squeeze=False)[0]
        for axes, block in zip(blocks, (names[:half], names[half:]), strict=True):
            self._block(axes, block, half)
        there = {verdict for by_dataset in self.verdicts.values() for verdict in by_dataset.values()}
        handles = [key(verdict, **look) for verdict, look in _LOOKS.items() if verdict in there]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(_LOOKS))
        return figure

    def _block(self, axes: Axes, claims: Sequence[str], rows: int) -> None:
        axes.set_xlim(-0.5, len(self.datasets) - 0.5)
        axes.set_ylim(rows - 0.5, -0.5)
        axes.set_xticks(range(len(self.datasets)), self.datasets, rotation=90, fontsize=7)
        axes.set_yticks(range(len(claims)), [short(claim) for claim in claims], fontsize=7)
        axes.tick_params(length=0, labelbottom=False, labeltop=True)
        axes.grid(True, axis="y", color="#EEEEEE")
        axes.grid(False, axis="x")
        for spine in axes.spines.values():
            spine.set_visible(False)
        for row, claim in enumerate(claims):
            for name, verdict in self.verdicts[claim].items():
                look = _LOOKS.get(verdict, _LOOKS[INCONCLUSIVE])
                (mark,) = axes.plot(self.datasets.index(name), row, markersize=5.5, linestyle="none", **look)
                hover(mark, [f"{short(claim)}: {verdict} on {name}"])


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def short(claim: str) -> str:
    """Return a claim's id in words: AdaFEST ahead of FEST."""
    words = [_NAMES.get(word, word) for word in claim.split("_")]
    return " ".join([words[0][0].upper() + words[0][1:], *words[1:]])
