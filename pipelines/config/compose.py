"""Compose configurations outside of a Hydra run, to plan a sweep, check a multirun or explain a wrong key; and turn
composed ones into plain values. No other module knows OmegaConf."""

from __future__ import annotations

import copy
import functools
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException
from yaml import YAMLError

from dpfest.errors import UserError
from pipelines.config.schema import dotted_keys, nearest, unknown_key
from pipelines.system.plain import yaml_value

CONFIG_MODULE = "conf"
CONFIG_NAME = "config"
HYDRA_VERSION_BASE = "1.3"


COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)
"""Errors of a configuration that cannot be composed; :meth:`Composer.explain` formats them in a sentence."""


class Composer:
    """Composes configurations from `conf` and the folder of `--config-dir`."""

    def __init__(self, config_dir: Path | None = None) -> None:
        if config_dir and not config_dir.is_dir():
            raise UserError(f"--config-dir: there is no folder {config_dir}.")
        if config_dir:
            _refuse_code(config_dir)
        self._search_path = (f"hydra.searchpath=[file://{config_dir.resolve()}]",) if config_dir else ()
        self._parser = OverridesParser.create()
        self.groups = _groups(self._search_path)

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Compose the configuration of one run.

        Composition takes a fifth of a second, and setting a value on a composed configuration far less. Configurations
        of the same files therefore share one composition.

        Raises:
            UserError: an unknown key, group or choice, with the nearest known one; invalid syntax.
        """
        parsed = self.parse(overrides)
        self._check_choices(parsed)
        values = [override for override in parsed if self._sets_a_value(override)]
        files = [_open_to_keys(override) for override in parsed if not self._sets_a_value(override)]
        try:
            composed = _composed((*self._search_path, *files))
        except COMPOSITION_ERRORS as error:
            raise UserError(self.explain(error, overrides)) from error
        return self._with_values(composed, values)

    def check_choices(self, overrides: Sequence[str]) -> None:
        """Refuse a group choice that is not a name (`profile=1`), for which Hydra fails with a traceback.

        Raises:
            UserError: there is one; the message names the group.
        """
        self._check_choices(self.parse(overrides))

    def _check_choices(self, overrides: Sequence[Override]) -> None:
        for override in overrides:
            value = override.value()
            if self.is_group(override.key_or_group) and isinstance(value, bool | int | float | dict | None):
                raise UserError(
                    f"{override.input_line} is not a choice of {override.key_or_group}: choose one of "
                    f"{', '.join(self.choices(override.key_or_group))}."
                )

    def open_to_keys(self, overrides: Sequence[str]) -> list[str]:
        """Return overrides as Hydra takes them: one that sets a mapping may bring keys that it lacks. Those that the
        schema lacks are refused when the configuration is typed.

        Raises:
            UserError: invalid syntax.
        """
        return list(map(_open_to_keys, self.parse(overrides)))

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Parse overrides in Hydra's grammar.

        Raises:
            UserError: invalid syntax.
        """
        try:
            return self._parser.parse_overrides(list(overrides))
        except OverrideParseException as error:
            raise UserError(self.explain(error, overrides)) from error

    def is_group(self, key: str) -> bool:
        """Whether `key` chooses a file of a configuration group instead of setting a value."""
        return key.partition("@")[0] in self.groups

    def values(self, override: Override) -> list[str]:
        """Return the values of a discrete sweep, including `glob(...)`, in Hydra's order.

        Raises:
            UserError: a glob without a match, or an empty range.
        """
        pattern = override.value()
        if not isinstance(pattern, Glob):
            if values := list(override.sweep_string_iterator()):
                return values
            raise UserError(f"{override.input_line} has no value, so nothing would run: range(3) is 0, 1 and 2.")
        choices = self.choices(override.key_or_group)
        if fitting := pattern.filter(choices):
            return list(fitting)
        among = f"; {override.key_or_group} is one of {', '.join(choices)}" if choices else ""
        raise UserError(f"{override.input_line} matches no choice{among}: glob(...) chooses files of a group.")

    def expand(self, overrides: Sequence[str]) -> Iterator[tuple[list[str], DictConfig]]:
        """Yield the runs of a multirun in Hydra's order: overrides and configuration of each.

        Raises:
            UserError: as `compose`; or a sweep that cannot be listed, such as an interval.
        """
        fixed: list[str] = []
        axes: list[list[str]] = []
        for override in self.parse(overrides):
            if not override.is_sweep_override():
                fixed.append(str(override.input_line))
            elif override.is_discrete_sweep():
                key = override.get_key_element()
                axes.append([f"{key}={value}" for value in self.values(override)])
            else:
                raise UserError(f"{override.input_line} cannot be listed run by run; give its values, as in key=1,2,3.")
        for chosen in itertools.product(*axes):
            overrides = [*fixed, *chosen]
            yield overrides, self.compose(overrides)

    def _sets_a_value(self, override: Override) -> bool:
        """Whether the override only sets one value: it chooses no file, adds or deletes no key, and is not Hydra's."""
        one = not override.is_sweep_override() and not isinstance(override.value(), dict)
        plain = one and override.type is OverrideType.CHANGE
        return plain and not self.is_group(override.key_or_group) and not override.key_or_group.startswith("hydra")

    def _with_values(self, composed: DictConfig, overrides: Sequence[Override]) -> DictConfig:
        cfg = copy.deepcopy(composed)
        for override in overrides:
            try:
                OmegaConf.update(cfg, override.key_or_group, override.value(), merge=False)
            except OmegaConfBaseException as error:
                keys = dotted_keys(_plain(composed))
                if override.key_or_group not in keys:
                    raise unknown_key(override.key_or_group, keys) from error
                raise UserError(f"{override.input_line}: {str(error).splitlines()[0]}") from error
        return cfg

    def explain(self, error: Exception, overrides: Sequence[str]) -> str:
        """Explain in one sentence why Hydra or OmegaConf could not compose."""
        if isinstance(error, MissingConfigException) and error.missing_cfg_file:
            group, _, choice = str(error.missing_cfg_file).rpartition("/")
            options = self.choices(group)
            if options:
                guess = nearest(choice, options)
                return (
                    f"there is no {group}={choice}; "
                    + (f"did you mean {group}={guess}? " if guess else "")
                    + f"{group} is one of {', '.join(options)}."
                )
        if isinstance(error, OverrideParseException):
            key, _, value = str(error.override).partition("=")
            if value and value[0] not in "[{" and override_text(value) != value:
                hint = (
                    f"quote the value for Hydra, and all for the shell: {shlex.quote(f'{key}={override_text(value)}')}"
                )
            elif value and value[0] in "[{":
                hint = """put texts of more than a word in quotes, as in 'data.numeric={age: "standard(40, 15)"}'"""
            else:
                hint = "write key=value, as in train.epochs=2"
            return f"Hydra cannot read the override {error.override}; {hint}."
        if isinstance(error, YAMLError):
            return f"a configuration file is not plain YAML: {' '.join(str(error).split())}."
        first_line = str(error).splitlines()[0]
        if match := re.match(r"Ambiguous value for argument '(.*)'", first_line):
            key, _, value = match[1].partition("=")
            whole = shlex.quote(f"{key}={override_text(value)}")
            return (
                f"{match[1]} names several values: for a run of each use `dpfest sweep` or --multirun, for a "
                f"list write key=[1,2], and for one value with a comma in it {whole}."
            )
        for override in overrides:
            key = override.lstrip("+~").partition("=")[0]
            if isinstance(error, ConfigCompositionException) and f"'{key}'" in first_line:
                return str(unknown_key(key, self._keys_without(overrides, override)))
        cause = f" ({str(error.__cause__).splitlines()[0]})" if error.__cause__ and str(error.__cause__) else ""
        return first_line.rstrip(".") + cause + "."

    def choices(self, group: str) -> list[str]:
        """Return the sorted names of the files of a configuration group."""
        return sorted(_options(group, ObjectType.CONFIG, self._search_path))

    def _keys_without(self, overrides: Sequence[str], wrong: str) -> list[str]:
        """Return the keys of the configuration composed without the override `wrong`, as far as it can be."""
        others = [text for text in overrides if text != wrong and self.is_group(text.partition("=")[0])]
        for attempt in (others, []):
            try:
                return dotted_keys(_plain(_composed((*self._search_path, *attempt))))
            except (HydraException, OmegaConfBaseException):
                continue
        return sorted(self.groups)


def _open_to_keys(override: Override) -> str:
    text = str(override.input_line)
    is_mapping = override.type is OverrideType.CHANGE and text.partition("=")[2].startswith("{")
    return f"++{text}" if is_mapping else text


def _refuse_code(config_dir: Path) -> None:
    """Refuse files that name code for Hydra or for logging to run: settings that somebody else wrote are data.

    Raises:
        UserError: one names code, or is not plain YAML.
    """
    for path in sorted(config_dir.rglob("*.y*ml")):
        try:
            key = _names_code(yaml_value(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UserError(f"A configuration file is not plain YAML: {path}: {error}.") from error
        if key:
            raise UserError(f"{path} names code to run ({key}), and a file of settings may not: remove it.")


def _names_code(value: Any) -> str | None:
    """Return the first key under which Hydra (``_target_``) or logging (``()``, a dotted ``class``) looks for code."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("_target_", "()") or (key == "class" and isinstance(item, str) and "." in item):
                return str(key)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next(filter(None, map(_names_code, items)), None)


def override_text(value: Any) -> str:
    """Format a value in Hydra's override grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(override_text, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{override_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, int | float):
        return str(value)
    text = str(value)
    # Outside of quotes Hydra's grammar accepts ASCII only, and reads 2024, null and inf as values of other types.
    if re.fullmatch(r"[a-z_./][\w.+/-]*", text, re.ASCII | re.IGNORECASE) and text.lower() not in _WORDS:
        return text
    return '"' + re.sub(r'(\\*)("|$)', lambda match: 2 * match[1] + ('\\"' if match[2] else ""), text) + '"'


_WORDS = ("null", "true", "false", "nan", "inf")


def container(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values with its interpolations resolved.

    Raises:
        UserError: an interpolation names a key that there is not, or data and a model do not fit together.
    """
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


def selected(cfg: DictConfig, keys: Iterable[str]) -> dict[str, Any]:
    """Return the values at dotted keys; None where there is none."""
    return {key: OmegaConf.select(cfg, key) for key in keys}


def _plain(cfg: DictConfig) -> Mapping[str, Any]:
    return OmegaConf.to_container(cfg, resolve=False)  # type: ignore[return-value]


@functools.lru_cache(maxsize=256)
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    """Return a composed configuration, not to be changed."""
    with _hydra():
        return compose(CONFIG_NAME, overrides=list(overrides))


@functools.cache
def _groups(search_path: tuple[str, ...]) -> frozenset[str]:
    """Return the names of all groups; cached, since it reads the whole folder."""
    return frozenset(_options("", ObjectType.GROUP, search_path))


def _options(group: str, kind: ObjectType, search_path: Sequence[str]) -> list[str]:
    with _hydra():
        loader = GlobalHydra.instance().config_loader()
        return list(loader.get_group_options(group, kind, CONFIG_NAME, list(search_path)))


@contextmanager
def _hydra() -> Iterator[None]:
    """Compose within it, also while Hydra runs a command, whose own state is then put aside."""
    singleton = GlobalHydra.instance()
    running, singleton.hydra = singleton.hydra, None
    try:
        with initialize_config_module(CONFIG_MODULE, "dpfest", HYDRA_VERSION_BASE):
            yield
    finally:
        GlobalHydra.instance().hydra = running
