"""The sections of `dpfest bench`, by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from dpfest.errors import UserError
from pipelines.bench.records import Record, write
from pipelines.config.schema import nearest
from pipelines.config.settings import Config
from pipelines.system.memory import keep_freed_memory
from pipelines.tasks.task import device_of

SECTIONS = {
    name: f"pipelines.bench.{name}"
    for name in (
        "embedding",
        "correlated",
        "step",
        "small",
        "text",
        "peers",
        "ranks",
        "preprocess",
        "table",
        "accounting",
    )
}
"""The module of each section, with its function `bench(config, repeats)`."""

OF_TEXTS = ("text",)
OF_PCTR = ("step", "peers", "ranks")
_TEXTS = "use data=text_synthetic, or data=sst2 data.path=... model.path=... for a pretrained one"


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
    if section in OF_TEXTS and config.model.task != "text":
        raise UserError(f"dpfest bench {section} needs texts, which model={config.model.name} cannot read: {_TEXTS}.")
    if section not in OF_TEXTS and config.model.task != "clicks":
        raise UserError(
            f"dpfest bench {section} needs clicks, which model={config.model.name} cannot read: use model=pctr."
        )
    if section in OF_PCTR and config.model.name != "pctr":
        raise UserError(f"dpfest bench {section} times the paper's click model, not model={config.model.name}.")
    keep_freed_memory()
    measured = import_module(SECTIONS[section]).bench(config, repeats)
    return write(Path(config.paths.report), section, measured, device_of(config.device)), measured
