"""`dpfest init`: propose the configuration of a table, show it, and say what comes next."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipelines.config.settings import SCHEMAS
from pipelines.data.clicks.init import init
from pipelines.data.clicks.proposal import CATEGORICAL, LABEL, MEANS, NUMERIC, OUT, Proposal


def run_init(path: str, label: str | None, name: str | None, force: bool) -> None:
    """Write the configuration and print it, with what each choice means for the guarantee."""
    proposal, target = init(path, label, name, Path(), SCHEMAS["data"], force)
    console = Console()
    console.print(_table(proposal))
    for role in (LABEL, CATEGORICAL, NUMERIC, OUT):
        if proposal.of(role):
            console.print(f"[bold]{role}[/bold]: {MEANS[role]}")
    units = " or ".join(f"privacy.unit={unit}" for unit in proposal.units)
    console.print(
        "[bold]epsilon[/bold] covers one row"
        + (f"; with {units}, all rows of one, and train.batch_size counts these" if units else "")
    )
    console.print(
        f"\nWrote {target}, a guess from {proposal.sampled:,} of {proposal.rows:,} rows. Read and correct it, then:\n",
        highlight=False,
    )
    data = target.stem
    for command in (
        f"dpfest card data={data}",
        f"dpfest train data={data} algorithm=fest",
        f"dpfest sweep experiment=frontier data={data} sweep.jobs=2",
        "dpfest report",
    ):
        console.print(f"  {command}", highlight=False)


def _table(proposal: Proposal) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("column", "type", "proposed", "", "why"):
        table.add_column(heading, overflow="fold")
    for choice in proposal.choices:
        table.add_row(choice.column, choice.type, choice.role, choice.setting, choice.why)
    return table
