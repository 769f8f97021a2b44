"""A Typer command followed by Hydra overrides: it passes on options it does not know, and completes through Hydra."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand

# Words and flags that Typer does not know stay in `ctx.args`, in their order.
HYDRA_LINE = {"allow_extra_args": True, "ignore_unknown_options": True}
HYDRA_FLAGS = ("--cfg", "--config-dir", "--hydra-help", "--info", "--multirun", "--package", "--resolve")


@dataclass(frozen=True)
class Completion:
    """One completion, as Typer's shells print it."""

    value: str
    type: str = "plain"
    help: str | None = None


class HydraCommand(TyperCommand):
    """A command that is followed by Hydra overrides and flags."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, with what Hydra takes."""
        return [*super().collect_usage_pieces(ctx), "[KEY=VALUE]..."]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Typer's own options, then Hydra's groups, keys and values."""
        from cli.completion import complete

        options = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return options + [Completion(flag) for flag in HYDRA_FLAGS if flag.startswith(incomplete)]
        return [*options, *(Completion(choice) for choice in complete(ctx.args, incomplete))]
