"""Entry point of the `dpfest` command."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated

import typer

from cli import tasks
from cli.command import HYDRA_LINE, HydraCommand
from cli.examples import EXAMPLES
from cli.packages import check_packages
from cli.release import finished_runs, run_release
from dpfest.errors import UserError

app = typer.Typer(
    epilog=EXAMPLES["dpfest"],
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"dpfest {importlib.metadata.version('dpfest')}")
        raise typer.Exit


@app.callback()
def dpfest(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Train large embedding models under differential privacy, and reproduce the paper.

    Every command takes any Hydra override (KEY=VALUE) and Hydra's flags: --cfg job, --multirun, --config-
    dir, --info.
    """


def _run(task: tasks.Task, ctx: typer.Context) -> None:
    from cli.launch import launch

    launch(task, ctx.args)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["preprocess"])
def preprocess(ctx: typer.Context) -> None:
    """Make the dataset: rows on disk that a Poisson batch can gather at random.

    The days of a stream are made one by one: what is there stays. preprocess.jobs=2 makes two at once; with a
    Hydra launcher (hydra/launcher=...) each missing day is a task of its own.
    """
    from cli.preprocess import run_preprocess

    run_preprocess(ctx.args)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["select"])
def select(ctx: typer.Context) -> None:
    """Select DP-FEST's rows, and say what that costs."""
    _run(tasks.select, ctx)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["train"])
def train(ctx: typer.Context) -> None:
    """Train one model; the same command again resumes it, or finds it done."""
    _run(tasks.train, ctx)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["sweep"])
def sweep(
    ctx: typer.Context,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first run that fails.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and start none.")] = False,
) -> None:
    """Train a whole grid: done runs are skipped, failed ones listed at the end and retried next time.

    Hydra's launchers work; joblib's comes with the extra \\[cluster]: pip install -e '.\\[cluster]'.
    """
    from cli.sweep import run_sweep

    raise typer.Exit(run_sweep(ctx.args, fail_fast, dry_run))


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["release"])
def release(
    ctx: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Folders of finished runs.", autocompletion=finished_runs),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FILE", help="The archive; else named by what it holds.")
    ] = None,
    nonprivate: Annotated[bool, typer.Option("--nonprivate", help="Pack runs without a guarantee as well.")] = False,
) -> None:
    """Check that runs hold what may leave and nothing else, and pack it into one .zip.

    A file, key or tensor that is not on the list is refused by name. The same runs give the same bytes.
    """
    run_release([*(runs or ()), *ctx.args], to, nonprivate)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["report"])
def report(
    ctx: typer.Context,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only these artifacts: fig8 or fig8,fig3; may be repeated.")
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Data that get the plain file names.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List artifacts and how complete each is.")] = False,
) -> None:
    """Draw the paper's figures and tables from the runs at hand."""
    from cli.report import run_report

    run_report(ctx.args, only, dataset, listing)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["bench"])
def bench(
    ctx: typer.Context,
    section: Annotated[
        str,
        typer.Argument(help="embedding, step, text, peers, preprocess, accounting, corrections, bias or contribution."),
    ] = "step",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Counted turns.")] = 30,
) -> None:
    """Time private training against its competitors, in turns: an embedding's step, a whole model's, Opacus's."""
    from cli.bench import run_bench

    # Where no section is named, the first override stands in its place.
    arguments = [section, *ctx.args] if "=" in section else ctx.args
    run_bench(arguments, section="step" if "=" in section else section, repeats=repeats)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["budget"])
def budget(ctx: typer.Context) -> None:
    """Print the noise that a privacy budget asks for, without training."""
    _run(tasks.budget, ctx)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["audit"])
def audit(ctx: typer.Context) -> None:
    """Attack every private algorithm's step (or algorithm=...): compare the empirical lower bound on ε with the claim.

    A bound above the claim ends with status 1. Unless set on the command line, algorithm.threshold is 0.5 and
    algorithm.noise_ratio 1, where a flaw in the choice of rows shows.
    """
    from cli.audit import run_audit

    raise typer.Exit(run_audit(ctx.args))


def main() -> None:
    """Run the command line; a UserError is one line on stderr and exit status 2."""
    try:
        check_packages()
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
