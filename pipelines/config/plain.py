"""From a composed configuration to plain dicts, lists and scalars, or a sentence on why that cannot be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpfest.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def container(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values with its interpolations resolved.

    Raises:
        UserError: an interpolation names a key that there is not, or data and a model do not fit together.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import InterpolationKeyError

    try:
        values = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
    except InterpolationKeyError as error:
        named = re.search(r"Interpolation key '([^']*)'", str(error))
        if named and named[1].partition(".")[0] not in ("data", "model", "privacy", "train", "paths"):
            raise UserError(
                f"{error.full_key} holds ${{{named[1]}}}, which is read as the value of another key, and there is none "
                f"of that name. For an environment variable write ${{oc.env:{named[1]}}}, or let the shell put it in."
            ) from error
        if str(error.full_key).partition(".")[0] not in ("data", "model"):
            raise
        choices = " and ".join(f"{name}={cfg[name]['name']}" for name in ("data", "model"))
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"{choices} do not fit together ({error.full_key}: {reason}). Choose data and a model of the same task."
        ) from error
    return dict(values)  # type: ignore[arg-type]
