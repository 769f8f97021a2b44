"""Code of the user's own, in a Python file or a package: ``FILE.py:CLASS`` or ``MODULE:CLASS``.

It is part of the identity of data and runs: the SHA-256 of the file that defines the class stands in the settings as
``code``, and other code than they name is refused. Code runs when data are read, a model is made or an algorithm is
chosen, and never because somebody else's release is read.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from dpfest.errors import UserError

CHOICE: Final = "module"
"""The choice of a group, and the ``kind`` of a file of settings, that names code."""
_imported: dict[str, str] = {}  # the code of each module at its import


def load(target: str, key: str, base: type, base_name: str, code: str | None) -> Any:
    """Return the class of a target, whose module is imported, and so runs.

    Args:
        target: ``FILE.py:CLASS``, the file relative to the working folder, or ``MODULE:CLASS``, which is imported from
            the environment or the working folder.
        key: of the configuration, for messages.
        base, base_name: what it must be a subclass of.
        code: SHA-256 that the file must have; None for any.

    Raises:
        UserError: there is no such class, or it has other code.
    """
    place, _, name = target.rpartition(":")
    text = _text_of(target, key)
    found = hashlib.sha256(text).hexdigest()
    is_file = place.endswith(".py")
    if found != (code or found) or (not is_file and _imported.setdefault(place, found) != found):
        raise UserError(
            f"{key}={target} is no longer the code that the settings name: its file has SHA-256 {found[:12]}... "
            f"Restore it, or start anew without {key.partition('.')[0]}.code: other code makes another run."
        )
    try:
        module = _of_file(place, text, found) if is_file else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{key}={target}: the module {place} cannot be imported ({type(error).__name__}: {error})."
        ) from error
    kind = getattr(module, name, None)
    if kind is None:
        raise UserError(f"{key}={target}: the module {place} has no {name}.")
    if not isinstance(kind, type):
        raise UserError(f"{key}={target} is no class.")
    if not issubclass(kind, base):
        raise UserError(f"{key}={target} is no subclass of {base_name}.")
    return kind


def _of_file(place: str, text: bytes, code: str) -> ModuleType:
    """Run a file as a module of its own, once for each content."""
    name = f"{Path(place).stem}_{code[:12]}"
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)  # dataclasses look their module up
        module.__file__ = place
        try:
            exec(compile(text, place, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def code_of(target: str, key: str) -> str:
    """Return the SHA-256 of the file that defines a target, which is not run (the packages around a module are).

    Raises:
        UserError: there is no such file.
    """
    return hashlib.sha256(_text_of(target, key)).hexdigest()


def _text_of(target: str, key: str) -> bytes:
    place, colon, name = target.rpartition(":")
    if not (colon and place and name.isidentifier()):
        raise UserError(f"{key}={target} must name a class, as FILE.py:CLASS or MODULE:CLASS.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last: no file here takes the place of a package
    path = Path(place)
    if not place.endswith(".py"):
        try:
            spec = importlib.util.find_spec(place)
        except (Exception, SystemExit) as error:
            raise UserError(
                f"{key}={target}: the module {place} cannot be imported ({type(error).__name__}: {error})."
            ) from error
        if spec is None or spec.origin is None or not spec.has_location:
            raise UserError(
                f"{key}={target}: the module {place} cannot be imported: there is none, or it has no file. A file is "
                "named with its ending, as in models.py:CLASS."
            )
        path = Path(spec.origin)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{key}={target}: {path} cannot be read ({error.strerror}).") from error


def without_folder(target: str) -> str:
    """Return a target as it may be published, and as it names a run: of a file's place the last name."""
    return target.rpartition("/")[2]


def refuse_places(options: Mapping[str, Any], key: str, released: str | None = None) -> None:
    """Refuse options that would publish a path on this machine.

    Args:
        options: of a class of the user's own.
        key: of the configuration, for messages.
        released: name of an option of which a release tells the last name alone (``pipelines.runs.release``).

    Raises:
        ValueError: names the path.
    """
    for text in _texts(options, released):
        if text.startswith(("/", "~")):
            but = "" if released is None else f", or call the option {released}: of that, the last name is published"
            raise ValueError(
                f"{key} holds {text}, a path on this machine, and options are published with a run: name it relative "
                f"to the working folder{but}."
            )


def _texts(value: Any, without: str | None) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name != without or not isinstance(item, str):
                yield from _texts(item, without)
    for item in value if isinstance(value, list) else ():
        yield from _texts(item, without)
