"""Entry point of the `dpfest` command."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated

import typer

from cli import tasks
from cli.command import HYDRA_LINE, Command, Commands, HydraCommand
from cli.examples import EXAMPLES
from cli.packages import check_packages
from cli.release import finished_runs, run_release
from cli.streams import outlive_readers
from dpfest.errors import UserError

app = typer.Typer(
    cls=Commands,
    epilog=EXAMPLES["dpfest"],
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


Changed = Annotated[
    list[str] | None,
    typer.Argument(metavar="DATA.KEY=VALUE", help="Other data: data.path=FILE, and what else is different."),
]


def _version(asked: bool) -> None:
    if asked:
        print(f"dpfest {importlib.metadata.version('dpfest')}")
        raise typer.Exit


@app.callback()
def dpfest(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Train models with large embedding tables under differential privacy, and reproduce the paper.

    Most commands accept any Hydra override (KEY=VALUE), and Hydra's flags --cfg job, --multirun, --config-dir and
    --info. `dpfest config` lists the groups and sections of keys.
    """


def _run(task: tasks.Task, ctx: typer.Context) -> None:
    from cli.launch import launch

    launch(task, ctx.args)


@app.command(cls=Command, epilog=EXAMPLES["init"])
def init(
    path: Annotated[
        str, typer.Argument(metavar="TABLE", help="A file, a folder or a pattern: Parquet, Arrow, CSV, TSV.")
    ],
    label: Annotated[
        str | None, typer.Option("--label", help='Column of labels, or a comparison: "rating > 3". Default: a guess.')
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the data. Default: the file's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace conf/data/NAME.yaml.")] = False,
) -> None:
    """Propose how to train on a table of your own, and write it to conf/data/NAME.yaml here.

    Then `dpfest train data=NAME` runs. Sizes of tables and constants of transforms are guesses from the rows: read the
    file, and put numbers there that you would defend without the rows.
    """
    from cli.init import run_init

    run_init(path, label, name, force)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["preprocess"])
def preprocess(ctx: typer.Context) -> None:
    """Write the dataset as rows on disk, from which Poisson batches are gathered at random.

    A stream is written day by day, and finished days are kept. preprocess.jobs=2 writes two days at once; on a
    cluster (sweep.engine=ray or slurm) each missing day is a job.
    """
    _run(tasks.preprocess, ctx)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["card"])
def card(ctx: typer.Context) -> None:
    """Describe a dataset: rows, labels, origin, licence, and use of its tables."""
    _run(tasks.card, ctx)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["check"])
def check(ctx: typer.Context) -> None:
    """Check Criteo's files in minutes: read, hash and train on the first million lines, and compare the results with
    ranges from the paper, public sources and theory.

    Exits with status 1 if a result lies outside its range. Also estimates how long the paper's grid takes.
    """
    from cli.check import run_check

    raise typer.Exit(run_check(ctx.args))


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["select"])
def select(ctx: typer.Context) -> None:
    """Select DP-FEST's rows privately, before training."""
    _run(tasks.select, ctx)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["train"])
def train(ctx: typer.Context) -> None:
    """Train one model. The same command resumes a stopped run and skips a finished one.

    `dpfest config` lists the groups of keys, and `dpfest config train` every key of one, with its default.
    """
    _run(tasks.train, ctx)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["sweep"])
def sweep(
    ctx: typer.Context,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first run that fails.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs without starting any.")] = False,
    cards: Annotated[
        str | None,
        typer.Option("--cards", metavar="PATH", help="Skip runs that have a run card here, under any noise seed."),
    ] = None,
) -> None:
    """Train a grid of runs. Finished runs are skipped; failed ones are listed at the end and retried by the next sweep.

    sweep.jobs makes several at once here; sweep.engine=ray or slurm hands them to a cluster.
    """
    from cli.sweep import run_sweep

    raise typer.Exit(run_sweep(ctx.args, fail_fast, dry_run, cards))


@app.command(cls=Command, epilog=EXAMPLES["watch"])
def watch(
    runs: Annotated[str, typer.Argument(metavar="RUNS", help="Folder of the sweep's runs, its paths.runs.")] = "runs",
) -> None:
    """Show how the latest sweep is getting on: runs done, running and failed, and the time left.

    On a terminal until it has ended; elsewhere once. It reads what runs write to their owner's private folder.
    """
    from cli.watch import run_watch

    run_watch(runs)


@app.command(cls=Command, epilog=EXAMPLES["predict"])
def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run.", autocompletion=finished_runs)],
    settings: Changed = None,
    *,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Scores to write: .parquet or .csv.")],
    split: Annotated[
        str | None, typer.Option("--split", help="Score this split of the data instead: train, validation or test.")
    ] = None,
) -> None:
    """Score rows with the model of a finished run: a line for each row, in their order.

    New rows have the columns that the model reads; they need neither a label nor a unit. Of texts, one split at a time.
    """
    from cli.predict import run_predict

    run_predict(run, settings or (), output, split)


@app.command(cls=Command, epilog=EXAMPLES["evaluate"])
def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run.", autocompletion=finished_runs)],
    settings: Changed = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Evaluate on this split of the data: train, validation or test.")
    ] = None,
) -> None:
    """Say what the model of a finished run is worth on labelled rows: AUC and log loss, of texts the accuracy."""
    from cli.predict import run_evaluate

    run_evaluate(run, settings or (), split)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["release"])
def release(
    ctx: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Folders of finished runs.", autocompletion=finished_runs),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FILE", help="Archive to write. Default: named after its content.")
    ] = None,
    nonprivate: Annotated[bool, typer.Option("--nonprivate", help="Pack non-private runs as well.")] = False,
    cards: Annotated[
        str | None,
        typer.Option("--cards", metavar="FILE", help="Add a run card of each to this .jsonl or .jsonl.xz instead."),
    ] = None,
    made_by: Annotated[
        str | None, typer.Option("--made-by", metavar="COMMAND", help="Command that made the runs, for run cards.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option("--commit", help="Git commit that made the runs, for run cards. Default: current.")
    ] = None,
) -> None:
    """Check finished runs against the list of what may be published, and pack them into one .zip.

    A file, key or tensor that is not on the list is refused by name. The same runs give the same bytes. --cards writes
    settings, ledger and summary of each run, without weights, as one line of a file that `dpfest report` reads.
    """
    run_release([*(runs or ()), *ctx.args], to, nonprivate, cards, made_by, commit)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["report"])
def report(
    ctx: typer.Context,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Build, or list, only these artifacts: fig8 or fig8,fig3; repeatable."),
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Dataset with the plain file names.")] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List artifacts, their runs done and the time left; build nothing.")
    ] = False,
    private: Annotated[
        str | None,
        typer.Option("--private", metavar="RUN", help="Draw this run's training curves into its private/ instead."),
    ] = None,
) -> None:
    """Build the paper's figures, tables and claims from finished runs."""
    from cli.report import run_private_report, run_report

    if private is not None:
        if ctx.args or only or dataset or listing:
            raise UserError("--private draws one run's curves, and takes nothing beside the run's folder.")
        run_private_report(private)
    else:
        run_report(ctx.args, only, dataset, listing)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["bench"])
def bench(
    ctx: typer.Context,
    section: Annotated[
        str,
        typer.Argument(
            help="embedding, correlated, step, small, text, peers, device, ranks, preprocess, table, accounting."
        ),
    ] = "step",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Measured repetitions of each competitor.")] = 30,
) -> None:
    """Time private training against its competitors, in turns.

    embedding: the step of one table, by its size. step: a step of the paper's click model. small: of two small
    recommenders. text: of an encoder. peers: against Opacus. device: what a GPU gives, and a step takes of it. ranks:
    over processes. preprocess: rows per second. accounting: calibration of noise.
    """
    from cli.bench import run_bench

    # Without a section, the first override takes its place.
    arguments = [section, *ctx.args] if "=" in section else ctx.args
    run_bench(arguments, section="step" if "=" in section else section, repeats=repeats)


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["budget"])
def budget(
    ctx: typer.Context,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Suggest batch size and steps for N, ε and budget.examples_seen."),
    ] = False,
) -> None:
    """Print the noise multipliers that a privacy budget requires, without training.

    With --plan, suggest the batch size: budget.examples_seen is what all steps together may read.
    """
    _run(tasks.plan if plan else tasks.budget, ctx)


@app.command(cls=Command, epilog=EXAMPLES["config"])
def config(
    name: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="A group, a choice of it (algorithm=fest) or a section.")
    ] = None,
) -> None:
    """Show every configuration key of a group, with its default, type and meaning; without GROUP, list the groups."""
    from pipelines.config.reference import overview, reference

    print(overview() if name is None else reference(name))


@app.command(cls=HydraCommand, context_settings=HYDRA_LINE, epilog=EXAMPLES["audit"])
def audit(ctx: typer.Context) -> None:
    """Attack one step of every private algorithm (or algorithm=...) and whole trainings, and compare lower bounds on ε
    with the claims.

    Exits with status 1 if a bound exceeds its claim. By default algorithm.threshold is 0.5 and algorithm.noise_ratio 1,
    at which a wrong choice of rows is easiest to detect.
    """
    from cli.audit import run_audit

    raise typer.Exit(run_audit(ctx.args))


def main() -> None:
    """Run the command line; a UserError, and memory that runs out, is one line on stderr and exit status 2."""
    outlive_readers()
    try:
        check_packages()
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        print(
            f"error: memory ran out ({' '.join(str(error).split())[:200] or 'Python'}). What was written is whole: "
            "free memory and give the same command again, or begin a run anew and lower train.micro_batch_size.",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an error is Python's, numpy's or PyTorch's (of a CPU, which has no class of its own, or a GPU)."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "DefaultCPUAllocator" in str(error)
    )
