"""`dpfest preprocess`: runs here, on a cluster or, for a stream with a Hydra launcher, a job for each missing day."""

from __future__ import annotations

from collections.abc import Sequence

from cli import tasks
from cli.launch import HydraLine, launch


def run_preprocess(arguments: Sequence[str]) -> None:
    """Write the dataset or stream that `arguments` describe, and print its folder.

    Raises:
        UserError: as the stage.
    """
    line = HydraLine.read(arguments)
    with_launcher = any(text.startswith("hydra/launcher=") for text in line.overrides)
    if with_launcher and not (line.multirun or line.only_shows):
        _launched(line)
    else:
        launch(tasks.preprocess, arguments)


def _launched(line: HydraLine) -> None:
    from dpfest.errors import UserError
    from pipelines.config.compose import Composer
    from pipelines.config.settings import typed
    from pipelines.data.days import days_to_make, forget_failures, raise_failed
    from pipelines.preprocess import dataset_folder, finished, preprocess

    config = typed(Composer(line.config_dir).compose([text for text in line.overrides if not text.startswith("hydra")]))
    if config.sweep.engine != "local":
        raise UserError(
            f"sweep.engine={config.sweep.engine} and hydra/launcher=... both say what starts jobs: give one of them."
        )
    if not config.data.is_stream:
        print(preprocess(config))  # one file, so one job
        return
    folder = dataset_folder(config)
    to_make = days_to_make(folder, config.data)
    if days := list(to_make.hashes):
        print(to_make.summary(config.preprocess.jobs), flush=True)
        forget_failures(folder, days)
        flags = ["--config-dir", str(line.config_dir)] if line.config_dir else []
        each = f"preprocess.day={','.join(map(str, days))}"
        launch(tasks.day_job, ["--multirun", *flags, *line.overrides, each])
        raise_failed(folder, days)
    print(finished(to_make))
