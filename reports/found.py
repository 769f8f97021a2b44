"""What readers ask first, answered by the verdicts on the claims: a question, and on which data the answer is yes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from reports.claims.claim import DECIDED
from reports.claims.estimate import CROSSES, FAILS, HOLDS
from reports.claims.family import panels, results
from reports.comparison import Population
from reports.wording import capitalized, multiple, number, plural

QUESTIONS = {
    "training_embeddings_helps_clicks": "Does private training of the embeddings beat freezing them?",
    "significant_reduction": "Can the gradient be made more than 10 times smaller at a loss of utility below 0.005?",
    "adafest_ahead_of_one_k": "Is DP-AdaFEST ahead of DP-FEST?",
    "adafest_twice_fest_in_streams": "In streams, does DP-AdaFEST cut more than twice as much as the paper's DP-FEST?",
    "one_k_ahead_of_equal_shares": "Is DP-FEST better with one k over all p tables than with the paper's k/p of each?",
    "adafest_ahead_of_smaller_tables": "Is DP-AdaFEST ahead of DP-SGD with smaller tables, which choose no rows?",
    "combined_ahead_of_both": "Is DP-AdaFEST+, with k/p rows a table, ahead of both alone?",
    "lora_behind": "Is DP-AdaFEST ahead of LoRA on word embeddings?",
    "training_embeddings_helps": "Does training word embeddings gain over freezing them what the paper says?",
}
"""Claims by what they answer, the most important ones first."""

NOT_IN_PAPER = "not in the paper"
"""Beginning of where a claim is made, of claims that are our own."""

AS_TRIED = "*"
"""Mark of data on which settings that were not tried could change a verdict."""

_ANSWERS = {
    HOLDS: ("yes", "probably"),
    FAILS: ("no", "probably not"),
    CROSSES: ("the curves cross", "the curves probably cross"),
}
"""Answers by verdict: where it stands among all verdicts (`claims.family`), and where it does not."""
_UNKNOWN = "not shown"


@dataclass(frozen=True)
class Found:
    """The judged claims of `report.json`, and the main ε of each dataset on which claims can be tested."""

    claims: Sequence[Mapping[str, Any]]
    epsilons: Mapping[str, float | None]

    @classmethod
    def of(cls, claims: Sequence[Mapping[str, Any]], groups: Sequence[Population]) -> Found:
        tested = [group for group in groups if group.untestable is None]
        return cls(claims, {group.dataset: group.main_epsilon for group in reversed(tested)})

    @property
    def answers(self) -> list[tuple[str, str]]:
        """The questions that the runs bear on, with their answers."""
        by_id = {claim["id"]: claim for claim in self.claims}
        asked = ((words, self._answer(by_id[claim])) for claim, words in QUESTIONS.items() if claim in by_id)
        return [(question, answer) for question, answer in asked if answer]

    def _answer(self, claim: Mapping[str, Any]) -> str:
        """Return on which data a claim holds at the main ε, and on which it does not; empty without runs."""
        on: dict[str, list[str]] = {words: [] for words in (*chain(*_ANSWERS.values()), _UNKNOWN)}
        for name, result in claim["datasets"].items():
            if name in self.epsilons and not result["without_runs"]:
                words, where = self._at_main(name, result)
                on[words].append(name + where)
        said = [f"{words} on {', '.join(names)}" for words, names in on.items() if names]
        return f"{capitalized('; '.join(said))}." if said and set(on[_UNKNOWN]) != set().union(*on.values()) else ""

    def _at_main(self, name: str, result: Mapping[str, Any]) -> tuple[str, str]:
        """Return the answer on a dataset, and its marks or where curves cross."""
        panel = self.main_panel(name, result) or result
        if panel["verdict"] not in _ANSWERS:
            return _UNKNOWN, ""
        words = _ANSWERS[panel["verdict"]][0 if panel["stands"] else 1]
        marks = AS_TRIED * panel["as_tried"]
        crossing = panel.get("crossing")
        at = f" (it is ahead {crossing[2]} {multiple(crossing[0])}, a loss of {crossing[1]:.4f})" if crossing else ""
        return words, marks + at

    def main_panel(self, name: str, result: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the part of a dataset's result at its main ε; None if the result is not judged by ε."""
        epsilon = self.epsilons.get(name)
        return None if epsilon is None else result["panels"].get(f"ε = {number(epsilon)}")

    @property
    def tally(self) -> str:
        """The number of decided claims, and of verdicts that stand together."""
        each = {
            claim["id"]: [panel for one in results(claim).values() for panel in panels(one)] for claim in self.claims
        }
        decided = [panel for verdicts in each.values() for panel in verdicts if panel["verdict"] in DECIDED]
        claims = [claim for claim in self.claims if any(panel["verdict"] in DECIDED for panel in each[claim["id"]])]
        paper = [claim for claim in self.claims if not claim["where"].startswith(NOT_IN_PAPER)]
        of = f"Of {plural(len(self.claims), 'claim')} about sparsity-preserving private training"
        if not self.epsilons:
            return f"{of}, these runs test none: that takes real data."
        if not decided:
            return f"{of}, these runs decide none."
        stand = sum(one["stands"] for one in decided)
        return (
            f"{of}, {len(claims)} {'is' if len(claims) == 1 else 'are'} decided on at least one data set "
            f"({sum(claim in claims for claim in paper)} of the paper's {len(paper)}). Of their "
            f"{plural(len(decided), 'verdict')} by data and ε, each at a level of 5%, {stand} stand at that level all "
            "together (Holm)."
        )

    @property
    def marks(self) -> str:
        """What marks and *probably* mean; empty without one."""
        said = "".join(answer for _, answer in self.answers)
        meaning = {
            "probably": "Probably: shown at 95% alone, but not together with all other verdicts (Holm)",
            AS_TRIED: f"{AS_TRIED}: settings that were not tried could change the answer",
        }
        return ". ".join(words for mark, words in meaning.items() if mark in said.lower())
