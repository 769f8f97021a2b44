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
    from pipelines.audit.audit import Audit, Case
    from pipelines.audit.whole import WholeAudit, WholeCase

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
    from pipelines.audit.audit import PRIVATE_ALGORITHMS, audit, refuse_without_guarantee, write
    from pipelines.audit.whole import audit_training, trainings
    from pipelines.config.code import named_code
    from pipelines.config.compose import Composer
    from pipelines.config.settings import typed

    composer = Composer(line.config_dir)
    chosen = [text.partition("=")[2].split(",") for text in line.words if text.startswith("algorithm=")]
    others = [text for text in line.words if not text.startswith("algorithm=")]
    configs = []
    for name in chosen[-1] if chosen else PRIVATE_ALGORITHMS:
        asked = named_code([f"algorithm={name}", *SETTINGS.get(name, ()), *others])
        try:
            configs.append(typed(composer.compose(asked)))
        except UserError as error:
            # A key that only some algorithms have.
            raise error if chosen else UserError(f"{error} This is for {name}: choose with algorithm=...") from error
    for config in configs:
        refuse_without_guarantee(config)
    audits: list[Audit] = []
    write(Path(configs[0].paths.report), audits)  # before the work, so that an unwritable folder is reported at once
    for config in configs:
        audits.append(audit(config, lambda result, case: _print(result, case, header=not audits)))
        path = write(Path(config.paths.report), audits)
    if cipher := audits[0].settings.get("cipher"):
        print(f"random numbers: {cipher}")
    print(
        f"one step on the whole batch; δ = {audits[0].delta:g}; {audits[0].draws:,} draws in each world; "
        f"{audits[0].confidence:.0%} confidence. The intact engine must be sound (bound at most the claim), every "
        "sabotage broken (bound above it)."
    )
    whole: list[WholeAudit] = []
    for config in configs:
        for training, flaws in trainings(config):
            whole.append(
                audit_training(training, config, flaws, lambda found, case: _print_whole(found, case, not whole))
            )
        path = write(Path(config.paths.report), audits, whole)
    if whole:
        print(
            f"whole trainings of {whole[0].steps} steps, one run each; {whole[0].canaries:,} canaries; "
            f"δ = {whole[0].delta:.2g}; {whole[0].confidence:.0%} confidence. bound: least ε of a mechanism of the "
            "claimed form; any: of any mechanism at δ; ideal: bound that the attack reaches, in the median, on a "
            "mechanism that is exactly as claimed."
        )
    print(path)
    verdicts = [case.verdict for one in audits for case in one.cases]
    verdicts += [case.verdict for one in whole for case in one.cases]
    if missed := verdicts.count("missed"):
        print(
            f"{missed} sabotages were missed: too few draws or canaries. Raise audit.draws or audit.canaries.",
            file=sys.stderr,
        )
    return int(any(one.refuted for one in audits) or any(one.refuted for one in whole))


def _print(audit: Audit, case: Case, header: bool) -> None:
    if header and case is audit.cases[0]:
        print(
            f"{'algorithm':<14} {'engine':<30} {'claim ε':>8} {'bound ε':>8} {'of claim':>8} {'verdict':>8} {'time':>8}"
        )
    print(
        f"{audit.algorithm:<14} {case.sabotage or 'as it is':<30} {audit.claim:>8.3f} {case.bound:>8.3f} "
        f"{case.tightness:>6.2f} {case.verdict:>8} {case.seconds:>6.1f} s",
        flush=True,
    )


def _print_whole(audit: WholeAudit, case: WholeCase, header: bool) -> None:
    if header and case is audit.cases[0]:
        print(
            f"{'algorithm':<14} {'training':<20} {'run':<30} {'claim ε':>8} {'bound ε':>8} {'of claim':>8} "
            f"{'ideal':>7} {'any':>7} {'verdict':>8} {'time':>8}"
        )
    print(
        f"{audit.algorithm:<14} {audit.training:<20} {case.sabotage or 'as it is':<30} {case.claim:>8.3f} "
        f"{case.bound:>8.3f} {case.tightness:>8.2f} {audit.ideal:>7.3f} {case.at_delta:>7.3f} {case.verdict:>8} "
        f"{case.seconds:>6.1f} s",
        flush=True,
    )
