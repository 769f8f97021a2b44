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

# Settings under which a flaw shows: the canary alone decides whether its row reaches the threshold, and the choice of
# rows has as much noise as the gradient, or noise alone is often kept. Overrides on the command line take precedence.
_MAP = ("algorithm.threshold=0.5", "algorithm.noise_ratio=1")
SETTINGS = {
    "threshold": ("algorithm.false_rate=0.5",),
    "adafest": _MAP,
    "adafest_plus": _MAP,
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
    from pipelines.config.compose import Composer
    from pipelines.config.settings import typed

    composer = Composer(line.config_dir)
    chosen = [text.partition("=")[2].split(",") for text in line.overrides if text.startswith("algorithm=")]
    others = [text for text in line.overrides if not text.startswith("algorithm=")]
    configs = []
    for name in chosen[-1] if chosen else PRIVATE_ALGORITHMS:
        try:
            configs.append(typed(composer.compose([f"algorithm={name}", *SETTINGS.get(name, ()), *others])))
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
    print(
        f"one step on the whole batch; δ = {audits[0].delta:g}; {audits[0].draws:,} draws in each world; "
        f"{audits[0].confidence:.0%} confidence. The intact engine must be sound (bound at most the claim), every "
        "sabotage broken (bound above it)."
    )
    print(path)
    if missed := sum(case.verdict == "missed" for audit in audits for case in audit.cases):
        print(f"{missed} sabotages were missed: too few draws. Raise audit.draws.", file=sys.stderr)
    return int(any(audit.refuted for audit in audits))


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
