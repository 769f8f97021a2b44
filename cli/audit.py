"""`dpfest audit`: audits the private algorithms one after another and prints a lower bound on epsilon for each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli import tasks
from cli.launch import HydraLine, launch
from dpfest.errors import UserError

if TYPE_CHECKING:
    from pipelines.audit.results import Audit, Case

# Settings under which a flaw shows: the canary alone decides whether its row reaches the threshold, the choice of rows
# has as much noise as the gradient, or noise alone is often kept, and a selection of rows costs a good part of the
# budget. Overrides on the command line take precedence.
_MAP = ("algorithm.threshold=0.5", "algorithm.noise_ratio=1")
_SELECTION = ("algorithm.selection.mechanism=gaussian", "algorithm.selection.noise_multiplier=8")
SETTINGS = {
    "threshold": ("algorithm.false_rate=0.5",),
    "fest": _SELECTION,
    "adafest": _MAP,
    "adafest_plus": (*_MAP, *_SELECTION),
    "exponential": ("algorithm.noise_ratio=1",),
}


def run_audit(arguments: Sequence[str]) -> int:
    """Audit the algorithms that `arguments` choose, or every private one.

    Returns:
        1 if a bound exceeds the claimed epsilon, else 0.

    Raises:
        UserError: an algorithm without a guarantee, or a wrong configuration.
    """
    line = HydraLine.read(arguments)
    if line.only_shows:
        launch(tasks.nothing, arguments)
        return 0
    from dpfest.algorithms.rules import ALGORITHMS
    from pipelines.audit.results import write
    from pipelines.audit.step import audit_step, refuse_without_guarantee
    from pipelines.audit.whole import audit_training, trainings, uncovered
    from pipelines.config.code import named_code
    from pipelines.config.compose import Composer
    from pipelines.config.settings import typed

    composer = Composer(line.config_dir)
    chosen = [text.partition("=")[2].split(",") for text in line.words if text.startswith("algorithm=")]
    others = [text for text in line.words if not text.startswith("algorithm=")]
    configs = []
    for name in dict.fromkeys(chosen[-1]) if chosen else ALGORITHMS:
        asked = named_code([f"algorithm={name}", *SETTINGS.get(name, ()), *others])
        try:
            configs.append(typed(composer.compose(asked)))
        except UserError as error:
            # A key that only some algorithms have.
            raise error if chosen else UserError(f"{error} This is for {name}: choose with algorithm=...") from error
    for config in configs:
        refuse_without_guarantee(config)
    steps: list[Audit] = []
    write(Path(configs[0].paths.report), steps)  # before the work, so that an unwritable folder is reported at once
    for config in configs:
        steps.append(audit_step(config, lambda audit, case: _print(audit, case, not steps)))
        path = write(Path(config.paths.report), steps)
    if cipher := steps[0].settings.get("cipher"):
        print(f"random numbers: {cipher}")
    print(
        f"one step on the whole batch; δ = {steps[0].delta:g}; {steps[0].draws:,} draws in each world; "
        f"{steps[0].confidence:.0%} confidence. The intact engine must be sound (bound at most the claim), every "
        "sabotage broken (bound above it)."
    )
    whole: list[Audit] = []
    for config in configs:
        for training, flaws in trainings(config):
            whole.append(audit_training(training, config, flaws, lambda audit, case: _print(audit, case, not whole)))
        path = write(Path(config.paths.report), [*steps, *whole])
    if whole:
        print(
            f"whole trainings of {whole[0].steps} steps, one run each; {whole[0].canaries:,} canaries; "
            f"δ = {whole[0].delta:.2g}; {whole[0].confidence:.0%} confidence. bound: least ε of a mechanism of the "
            "claimed form; any: of any mechanism at δ; ideal: bound that the attack reaches, in the median, on a "
            "mechanism that is exactly as claimed."
        )
    for config in configs:
        if config.audit.canaries and (why := uncovered(config.algorithm)):
            print(f"no whole training of {config.algorithm.name} is audited: {why}.")
    print(path)
    verdicts = [case.verdict for audit in (*steps, *whole) for case in audit.cases]
    if missed := verdicts.count("missed"):
        print(
            f"{missed} sabotages were missed: too few draws or canaries. Raise audit.draws or audit.canaries.",
            file=sys.stderr,
        )
    return int(any(audit.refuted for audit in (*steps, *whole)))


def _print(audit: Audit, case: Case, first: bool) -> None:
    """Print a case as a line, below the titles if it is the first of its table."""
    whole = audit.training is not None
    claim = audit.claim if case.claim is None else case.claim
    names = {"algorithm": f"{audit.algorithm:<14}"} | ({"training": f"{audit.training:<20}"} if whole else {})
    names |= {"run" if whole else "engine": f"{case.sabotage or 'as it is':<30}"}
    values = {"claim ε": f"{claim:>8.3f}", "bound ε": f"{case.bound:>8.3f}", "of claim": f"{case.tightness:>8.2f}"}
    values |= {"ideal": f"{audit.ideal:>7.3f}", "any": f"{case.at_delta:>7.3f}"} if whole else {}
    values |= {"verdict": f"{case.verdict:>8}", "time": f"{case.seconds:>6.1f} s"}
    if first and case is audit.cases[0]:
        titles = [f"{title:<{len(cell)}}" for title, cell in names.items()]
        print(*titles, *(f"{title:>{len(cell)}}" for title, cell in values.items()))
    print(*names.values(), *values.values(), flush=True)
