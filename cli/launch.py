"""Passes a command line to Hydra: all flags and overrides after the subcommand."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import conf
from dpfest.errors import UserError
from pipelines.config.code import named_code

if TYPE_CHECKING:
    from cli.tasks import Task
    from pipelines.config.compose import Composer


@dataclass(frozen=True)
class HydraLine:
    """The parts of Hydra's command line that matter before Hydra itself runs.

    Attributes:
        overrides: words that are neither a flag nor a flag's value, with code that one names written out
            (:func:`pipelines.config.code.named_code`).
        words: the same words as they were given.
        config_dir: folder given by --config-dir; else `conf` of the working directory, if it holds the data, the model
            or the algorithm that is chosen.
        multirun: whether --multirun is set.
        only_shows: whether Hydra only prints something (--cfg, --info, --hydra-help).
    """

    overrides: list[str]
    words: list[str]
    config_dir: Path | None
    multirun: bool
    only_shows: bool

    @classmethod
    def read(cls, arguments: Sequence[str]) -> HydraLine:
        """Parse Hydra's own options; unknown words are left to Hydra.

        Raises:
            UserError: an option lacks its value.
        """
        parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
        parser.add_argument("overrides", nargs="*")
        for names in (
            ("--multirun", "-m"),
            ("--run", "-r"),
            ("--resolve",),
            ("--hydra-help",),
            ("--version",),
        ):
            parser.add_argument(*names, action="store_true")
        for names in (
            ("--cfg", "-c"),
            ("--package", "-p"),
            ("--config-dir", "-cd"),
            ("--config-name", "-cn"),
        ):
            parser.add_argument(*names)
        parser.add_argument("--config-path", "-cp")
        parser.add_argument("--info", "-i", nargs="?", const="all")
        try:
            known, _ = parser.parse_known_intermixed_args(list(arguments))
        except argparse.ArgumentError as error:
            raise UserError(f"{error}.") from error
        return cls(
            overrides=named_code(known.overrides),
            words=known.overrides,
            config_dir=Path(known.config_dir) if known.config_dir else _own_files(known.overrides),
            multirun=known.multirun,
            only_shows=bool(known.cfg or known.info or known.hydra_help or known.version),
        )


_OWN = ("data", "model", "algorithm")


def _own_files(overrides: Sequence[str]) -> Path | None:
    """Return the folder `conf` of the working directory if it has files of data, models or algorithms, and one that is
    chosen is not dpfest's: it is there, or what is there are the nearest names."""
    here = Path(conf.__path__[0]).parent
    pairs = (text.partition("=")[::2] for text in overrides)
    chosen = [(group, name) for group, names in pairs if group in _OWN for name in names.split(",")]
    places = (Path("conf", group, f"{name}.yaml") for group, name in chosen)
    own = (place for place in places if not (here / place).exists())
    return Path("conf") if any(any(place.parent.glob("*.yaml")) for place in own) else None


def launch(task: Task, arguments: Sequence[str]) -> None:
    """Run `task` on the configuration that `arguments` compose; under --multirun, once for each combination.

    Raises:
        UserError: the configuration, or that of one run of a multirun, is wrong; no run has started then.
    """
    import hydra

    from pipelines.config.compose import COMPOSITION_ERRORS, CONFIG_MODULE, CONFIG_NAME, HYDRA_VERSION_BASE, Composer

    line = HydraLine.read(arguments)
    composer = Composer(line.config_dir)
    composer.check_choices(line.overrides)
    overrides = composer.open_to_keys(line.overrides)
    if line.multirun and not line.only_shows:
        _check_every_run(composer, line.overrides)
    run = hydra.main(f"pkg://{CONFIG_MODULE}", CONFIG_NAME, HYDRA_VERSION_BASE)(task)
    try:
        # Hydra's own parser takes no override before a flag and another after it.
        flags = [text for text in arguments if text not in line.words]
        own = ["--config-dir", str(line.config_dir)] if line.config_dir else []
        with _command_line([*flags, *own, *overrides]):
            run()
    except COMPOSITION_ERRORS as error:
        raise UserError(composer.explain(error, line.overrides)) from error


def _check_every_run(composer: Composer, overrides: Sequence[str]) -> None:
    from pipelines.config.settings import typed

    ours = [text for text in overrides if not text.startswith("hydra")]
    if any(text.startswith("hydra/sweeper=") for text in overrides):
        return  # another sweeper has a grammar of its own
    for _, cfg in composer.expand(ours):
        typed(cfg)


@contextmanager
def _command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Set sys.argv, which Hydra reads, and HYDRA_FULL_ERROR, without which it formats exceptions itself."""
    saved, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [saved[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = saved
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full
