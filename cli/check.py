"""`dpfest check`: measure the head of a click log, and compare it with the expected values."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cli import tasks
from cli.launch import HydraLine, launch

# The paper's grid on the whole data, also for generated data. Its time is estimated without reading the files.
_KAGGLE = ("comparison", "criteo_kaggle")
_TERABYTE = ("streaming", "criteo_1tb")


def run_check(arguments: Sequence[str]) -> int:
    """Check the data that `arguments` choose.

    Returns:
        1 if something lies outside its range, else 0.

    Raises:
        UserError: the data cannot be read, or a wrong configuration.
    """
    line = HydraLine.read(arguments)
    if line.only_shows:
        launch(tasks.nothing, arguments)
        return 0
    from pipelines.check import check
    from pipelines.config.compose import Composer
    from pipelines.config.settings import typed
    from pipelines.runs.grid import outline
    from reports.criteo import judge, speeds, text

    composer = Composer(line.config_dir)
    config = typed(composer.compose(line.overrides))
    findings = check(config)
    verdict = judge(findings)
    print(f"{findings.source}: {findings.lines:,} lines; {findings.steps:,} steps of {findings.batch_size:,} examples")
    print(text(verdict), flush=True)
    experiment, data = _TERABYTE if config.data.is_stream else _KAGGLE
    named = ["profile=paper", f"experiment={experiment}"]
    planned = outline(composer, [*named, f"data={data}", "data.path=unread"])
    print("\n".join(["", *speeds(findings, " ".join(reversed(named)), planned)]))
    if verdict.outside:
        print(
            f"{verdict.outside} measurements lie OUTSIDE their ranges: read their sources before you continue.",
            file=sys.stderr,
        )
    return int(verdict.outside > 0)
