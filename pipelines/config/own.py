"""An algorithm of the user's own, given as ``module:Class``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfest.algorithm import Algorithm
from dpfest.errors import UserError
from pipelines.config.schema import build


def own_algorithm(name: str, settings: Mapping[str, Any]) -> Algorithm:
    """Return an algorithm with its settings, from a module of the working directory or of the environment.

    Args:
        name: ``module:Class``; the module is imported, and so runs.
        settings: values of the class's fields.

    Raises:
        UserError: there is no such module or class, it is no algorithm of the library's interface, or a setting of it
            is wrong.
    """
    module, _, kind = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), kind)
    except ImportError as error:
        raise UserError(f"algorithm={name}: the module {module} cannot be imported ({error}).") from error
    except AttributeError as error:
        raise UserError(f"algorithm={name}: the module {module} has no {kind}.") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise UserError(f"algorithm={name} is no subclass of dpfest.PrivateAlgorithm.")
    return build(found, settings, "algorithm")
