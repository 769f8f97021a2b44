"""The sections of `dpfest bench`, by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from dpfest.errors import UserError
from pipelines.bench.case import Case, measured
from pipelines.bench.records import Record, write
from pipelines.config.schema import nearest
from pipelines.config.settings import Config
from pipelines.system.memory import keep_freed_memory
from pipelines.system.progress import progress
from pipelines.tasks.task import device_of

CLICKS, PCTR, TEXTS = "clicks", "pctr", "text"

SECTIONS = {
    "embedding": CLICKS,
    "correlated": CLICKS,
    "step": PCTR,
    "small": CLICKS,
    "text": TEXTS,
    "peers": PCTR,
    "device": PCTR,
    "ranks": PCTR,
    "preprocess": CLICKS,
    "table": CLICKS,
    "accounting": CLICKS,
}
"""What model each section needs: any of clicks or of texts, or the paper's of clicks. Its module of this name has a
function `cases(config)`."""


def bench(section: str, config: Config, repeats: int = 30) -> tuple[Path, list[Record]]:
    """Run a section and write ``<paths.report>/bench/<section>.json``.

    Raises:
        UserError: there is no such section, or it does not time the configured model.
    """
    if section not in SECTIONS:
        guess = nearest(section, SECTIONS)
        raise UserError(
            f"there is no benchmark {section}; "
            + (f"did you mean {guess}?" if guess else f"there is {', '.join(SECTIONS)}.")
        )
    model, needed = config.model, SECTIONS[section]
    task, instead = "clicks", "use model=pctr"
    if needed == TEXTS:
        task = "texts"
        instead = "use data=text_synthetic, or data=sst2 data.path=... model.path=... for a pretrained one"
    if model.task != (TEXTS if needed == TEXTS else CLICKS):
        raise UserError(f"dpfest bench {section} needs {task}, which model={model.name} cannot read: {instead}.")
    if needed == PCTR and model.name != PCTR:
        raise UserError(f"dpfest bench {section} times the paper's click model, not model={model.name}.")
    keep_freed_memory()
    found = run(section, config, repeats)
    return write(Path(config.paths.report), section, found, device_of(config.device)), found


def run(section: str, config: Config, repeats: int) -> list[Record]:
    """Measure all cases of a section."""
    cases: list[Case] = import_module(f"pipelines.bench.{section}").cases(config)
    found: list[Record] = []
    with progress(section) as report:
        for number, case in enumerate(cases):
            report(number, len(cases), case.name)
            found += measured(case, section, config, repeats)
    return found
