"""An algorithm of the user's own, with the class and the code that it comes from."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from typing import Any, Literal

from dpfest.algorithms.algorithm import PrivateAlgorithm
from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from pipelines.config.schema import MISSING, build
from pipelines.system.code import CHOICE, code_of, load
from pipelines.system.files import NAME


@dataclass
class OwnAlgorithm:
    """A rule of the user's own, a subclass of dpfest.PrivateAlgorithm; its fields are further keys.

    Attributes:
        kind: module, in a file of settings with a name of its own.
        target: the class, as FILE.py:CLASS or MODULE:CLASS.
        code: SHA-256 of the file that defines it, found if null; give it to refuse any other.
    """

    name: str | None = None
    kind: Literal["module"] = CHOICE
    target: str = MISSING
    code: str | None = None


def own_algorithm(values: Mapping[str, Any], run_code: bool = True) -> PrivateAlgorithm:
    """Return the algorithm of a section of settings, with ``kind``, ``target`` and ``code`` as further fields.

    Args:
        values: those of :class:`OwnAlgorithm`, and of the class's own fields.
        run_code: False for a stand-in that knows the name alone, of settings that others may have written.

    Raises:
        UserError: there is no such class, it is no private algorithm of the library's interface, it has other code or
            the name of another algorithm, or a setting of it is wrong.
    """
    named = {field.name for field in fields(OwnAlgorithm)}
    own = build(OwnAlgorithm, {name: value for name, value in values.items() if name in named}, "algorithm")
    if not run_code:
        return PrivateAlgorithm(name=own.name or CHOICE)
    found = load(own.target, "algorithm.target", PrivateAlgorithm, "dpfest.PrivateAlgorithm", own.code)
    default: Any = next(field.default for field in fields(found) if field.name == "name")
    name = own.name or (default if default and default not in ALGORITHMS else found.__name__)
    if not NAME.fullmatch(name):
        raise UserError(f"algorithm.name={name} must be a name of letters, digits, _, + and -: it names a folder.")
    code = own.code or code_of(own.target, "algorithm.target")
    if taken := sorted({field.name for field in fields(found)} & (named - {"name"})):
        raise UserError(f"algorithm.target={own.target} has a field {taken[0]}, a key of every such group: rename it.")
    settings = {key: value for key, value in values.items() if key not in named}
    origin = {"name": name, "target": own.target, "code": code}
    algorithm = build(_with_origin(found), {**settings, **origin}, "algorithm")
    try:
        plain = asdict(algorithm) == json.loads(json.dumps(asdict(algorithm), allow_nan=False))
    except (TypeError, ValueError):
        plain = False
    if not plain:
        raise UserError(
            f"algorithm.target={own.target} has settings that no file can tell: use finite numbers, texts, truth "
            "values, null, lists and dataclasses of these."
        )
    return algorithm


@functools.cache
def _with_origin(kind: type[PrivateAlgorithm]) -> type[PrivateAlgorithm]:
    """Return the class with the fields ``kind``, ``target`` and ``code``, whose instances other processes can read."""

    def again(algorithm: Any) -> tuple[Any, ...]:
        return own_algorithm, ({field.name: getattr(algorithm, field.name) for field in fields(algorithm)},)

    origin = (("kind", CHOICE), ("target", ""), ("code", ""))
    further = [(name, str, field(default=value)) for name, value in origin]
    namespace = {"__reduce__": again, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return make_dataclass(kind.__name__, further, bases=(kind,), frozen=True, namespace=namespace)
