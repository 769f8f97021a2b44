"""A Typer command that passes unknown words to Hydra and completes them with Hydra's own completion."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand, TyperGroup

# Words and flags that Typer does not know stay in `ctx.args`, in their order.
HYDRA_LINE = {"allow_extra_args": True, "ignore_unknown_options": True}
HYDRA_FLAGS = ("--cfg", "--config-dir", "--hydra-help", "--info", "--multirun", "--package", "--resolve")


@dataclass(frozen=True)
class Completion:
    """One completion, as Typer's shells print it."""

    value: str
    type: str = "plain"
    help: str | None = None


def _unwrapped(text: str | None) -> str | None:
    """Return a docstring of paragraphs with each on one line, for Typer keeps the line breaks of all but the first."""
    return text and "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


class _Unwrapped:
    """A command or group whose help is its docstring, unwrapped."""

    def __init__(self, *arguments: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*arguments, help=_unwrapped(help), **settings)  # type: ignore[call-arg]


class Commands(_Unwrapped, TyperGroup):
    """All commands, under one help text."""


class Command(_Unwrapped, TyperCommand):
    """A command."""


class HydraCommand(Command):
    """A command that is followed by Hydra overrides and flags."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, with Hydra's overrides."""
        return [*super().collect_usage_pieces(ctx), "[KEY=VALUE]..."]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Typer's own options, then Hydra's groups, keys and values."""
        from cli.completion import complete

        options = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return options + [Completion(flag) for flag in HYDRA_FLAGS if flag.startswith(incomplete)]
        return [*options, *(Completion(choice) for choice in complete(ctx.args, incomplete))]
