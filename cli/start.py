"""Starts the command line where the packages that it needs are installed: the library alone needs fewer."""

from __future__ import annotations

import gc
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution, requires


def main() -> None:
    """Run `dpfest`; without the extra `run`, say in one line what is missing, with exit status 2."""
    if missing := _missing():
        print(
            f"error: the command line needs packages that the library does without ({', '.join(missing)}): install "
            "dpfest with its extra, dpfest[run].",
            file=sys.stderr,
        )
        sys.exit(2)
    gc.set_threshold(10_000, 20, 20)  # by default, a fifth of the time of importing torch is a search for garbage
    from cli import main as command

    command.main()


def _missing() -> list[str]:
    wanted = [re.split(r"[^\w.-]", text)[0] for text in requires("dpfest") or () if re.search(r"extra == .run", text)]
    return [name for name in wanted if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
