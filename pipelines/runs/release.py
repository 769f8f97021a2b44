"""The allow-list of a run's release, its check before packing, and the archive.

May be published: ``config.yaml``, ``ledger.json``, ``summary.json`` and ``model.safetensors`` of a run's ``release/``,
with exactly the keys listed here and, of JSON, in ``published``, ``vocabulary.npz`` if it is a private release,
``MODEL_CARD.md``, which repeats them in words, and ``SHA256SUMS``. Each is a function of the settings, of the number of
examples, of releases that the ledger counts, and of rows that are never trained on;
``tests/pipelines/runs/test_release.py`` verifies this byte by byte. Excluded: the noise seed, paths on this machine,
times, the name of the run's folder (it covers a fingerprint of the data), and everything in ``private/``.
"""

from __future__ import annotations

import glob
import hashlib
import stat
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from dpfest.errors import UserError
from dpfest.planning.ledger import EXAMPLE
from pipelines.config.unit import UnitSettings
from pipelines.data.clicks.vocabulary import VOCABULARY, read_vocabulary
from pipelines.runs.agreement import refuse_disagreement
from pipelines.runs.model_card import model_card
from pipelines.runs.published import APART, SUMMARY_SCHEMA, Law, Ledger, RunOfLedger, Shape, Summary, shape_of
from pipelines.runs.recount import AGAIN, refuse_miscounted
from pipelines.runs.weights import refuse_other_weights
from pipelines.system.checksum import SUMS, sums_text
from pipelines.system.code import without_folder
from pipelines.system.files import NAME, json_text, write_atomically
from pipelines.system.plain import json_value, yaml_value

RELEASE, PRIVATE = "release", "private"
CONFIG, LEDGER, SUMMARY, WEIGHTS = "config.yaml", "ledger.json", "summary.json", "model.safetensors"
CARD = "MODEL_CARD.md"

SECTIONS = ("data", "model", "algorithm", "privacy", "optimizer", "train", "stream", "seed", "device", "profile")
"""The settings that may be published; the others (paths, hub, sweep, ...) describe where and how a run was made."""
_OPTIONAL = "search"  # a section of the settings, and a key of the ledger, of the best run of a private search alone
UNIT, RANKS = "unit", "ranks"
"""Published with them where they matter: ``Config.unit_matters``, and of a run over ranks."""
_PLACES = ("path", "prior", "tokenizer")
_HEADING = "# Settings that may leave: privacy.noise_seed is withheld, and of a file or folder only its name is told.\n"


@dataclass(frozen=True)
class Release:
    """A run's release that passed the check against the allow-list.

    Attributes:
        run: the run's folder.
        files: the files of the release, sorted by name.
        config, summary, ledger: content of the files of that name.
        digest: twelve hexadecimal digits over all files.
    """

    run: Path
    files: tuple[Path, ...]
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    ledger: Mapping[str, Any]
    digest: str

    @property
    def name(self) -> str:
        """The folder in an archive; its name reveals no more than the files in it."""
        return f"{self.summary['dataset']}-{self.summary['algorithm']}-{self.digest}"


def run_folders(runs: Path) -> Iterator[Path]:
    """Yield the folders of runs below ``paths.runs``, sorted; those of a private search, which are hidden, left out."""
    for folder in sorted(runs.glob("*/*/*")):
        if folder.is_dir() and not any(part.startswith(".") for part in folder.relative_to(runs).parts):
            yield folder


def released_settings(asked: Mapping[str, Any], over_ranks: bool = False) -> dict[str, Any]:
    """Return the settings of a run that may be published: without noise seed, and paths reduced to their last name."""
    settings = {name: _without_places(asked[name]) for name in SECTIONS}
    for section in _with_noise(settings).values():
        section.pop("noise_seed", None)
    if settings["privacy"].get("cipher") is None:
        settings["privacy"].pop("cipher", None)
    if asked[_OPTIONAL]["distribution"] != "none":
        settings[_OPTIONAL] = dict(asked[_OPTIONAL])
    unit = settings["privacy"].pop("unit", EXAMPLE)
    if unit != EXAMPLE:
        settings["privacy"]["unit"] = unit
    matters = UNIT in asked and (unit != EXAMPLE or asked[UNIT] != asdict(UnitSettings()))
    return settings | ({UNIT: asked[UNIT]} if matters else {}) | ({RANKS: asked[RANKS]} if over_ranks else {})


def _with_noise(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return, by name, the parts of settings that may have a noise seed, which stays."""
    parts = {"privacy": settings["privacy"], "data.vocabulary": (settings["data"] or {}).get("vocabulary")}
    return {name: part for name, part in parts.items() if isinstance(part, dict)}


def _without_places(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _without_places(item, name) for name, item in value.items()}
    if key in _PLACES and isinstance(value, str):
        path = Path(value)
        if path.is_absolute() or path.exists() or glob.has_magic(value):
            return path.resolve().name
    return without_folder(value) if key == "target" and isinstance(value, str) else value


def config_text(settings: Mapping[str, Any]) -> str:
    """Return the text of a released ``config.yaml``."""
    return _HEADING + yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)


def checked(run: Path) -> Release:
    """Return the release of a finished run, checked against the allow-list.

    Args:
        run: the run's folder, ``<paths.runs>/<dataset>/<algorithm>/<hash>``.

    Raises:
        UserError: the run is not done; a file is missing, empty, damaged, edited, no plain file, open to others, or not
            on the list; a key or tensor is not on the list. The message names the first.
    """
    if not (run / "status.json").is_file():
        raise UserError(
            f"{run} is not the folder of a run: it has no status.json. Give <paths.runs>/DATASET/ALGORITHM/HASH."
        )
    status = _parsed(run / "status.json").get("status")
    if status != "done":
        raise UserError(f"{run} cannot be released: its status is {status}. Finish its training first.")
    _refuse_others(run, ("status.json", RELEASE, PRIVATE), "a run's folder")
    _refuse_open_private(run / PRIVATE)
    folder = run / RELEASE
    if folder.is_symlink() or not folder.is_dir():
        raise UserError(f"{folder} is not a folder: an earlier version made the run. {AGAIN}")
    _refuse_others(folder, (CONFIG, LEDGER, SUMMARY, WEIGHTS, VOCABULARY, CARD, SUMS), "a release")
    settings, with_weights = _checked_config(folder / CONFIG)
    names = [CONFIG, LEDGER, SUMMARY, SUMS, *([WEIGHTS] if with_weights else [])]
    names += [CARD] if (folder / CARD).exists() else []  # a run of an earlier version has none
    names += [VOCABULARY] if (folder / VOCABULARY).exists() else []
    files = tuple(folder / name for name in sorted(names))
    for path in files:
        _refuse_no_plain_file(path)
    ledger, summary = _checked_json(folder / LEDGER, Ledger), _checked_json(folder / SUMMARY, Summary)
    _refuse_contradictions(folder, settings, ledger, summary)
    refuse_other_weights(folder / WEIGHTS, summary["tensors"])
    _refuse_other_vocabulary(folder / VOCABULARY, summary)
    if (folder / SUMS).read_text(encoding="utf-8", errors="replace") != sums_text(folder):
        raise UserError(f"{folder / SUMS} does not match the files beside it. {AGAIN}")
    refuse_miscounted(folder / LEDGER, ledger, summary)
    if CARD in names and (folder / CARD).read_bytes() != model_card(settings, ledger, summary).encode():
        raise _edited(folder / CARD)
    return Release(run, files, settings, summary, ledger, _digest_of(files))


def pack(releases: Sequence[Release], archive: Path) -> None:
    """Write checked releases into a zip archive, one folder each; equal releases give equal bytes.

    Raises:
        UserError: a file of that name exists.
    """

    def write(partial: Path) -> None:
        # Stored and not compressed: noised weights do not shrink, and another zlib would give other bytes.
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as packed:
            for release in sorted(releases, key=lambda release: release.name):
                for path in release.files:
                    entry = zipfile.ZipInfo(f"{release.name}/{path.name}", date_time=(1980, 1, 1, 0, 0, 0))
                    entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16  # a plain file of Unix
                    with path.open("rb") as source, packed.open(entry, "w", force_zip64=True) as target:
                        while piece := source.read(1 << 20):
                            target.write(piece)

    if archive.exists():
        raise UserError(f"{archive} already exists: name another file with --to, or remove it.")
    write_atomically(archive, write)


def _refuse_other_vocabulary(path: Path, summary: Mapping[str, Any]) -> None:
    """Refuse a file that is not the vocabulary whose private release the summary states."""
    released = summary.get("vocabulary_sha256")
    if path.exists() != (released is not None):
        raise UserError(f"{path} is {'missing' if released else 'the vocabulary of no private release'}. {AGAIN}")
    if released is None:
        return
    try:
        found = read_vocabulary(path, [table["name"] for table in summary["embedding_gradient"]["tables"]])
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). {AGAIN}") from error
    if found.sha256 != released:
        raise UserError(f"{path} is not the vocabulary that was released. {AGAIN}")


def _refuse_others(folder: Path, listed: Sequence[str], what: str) -> None:
    for path in sorted(folder.iterdir()):
        if path.name not in listed:
            raise UserError(
                f"{path} is not on the list of what {what} may contain ({', '.join(listed)}): move it elsewhere, or "
                "give the run's own command again, which removes the leftovers of a kill."
            )


def _refuse_open_private(private: Path) -> None:
    if not private.exists():
        return
    for path in (private, *sorted(private.iterdir())):
        if path.lstat().st_mode & 0o077:
            raise UserError(f"{path} is private, and other users can open it: chmod -R go= {private}.")
    if (private / "state.pt").exists():
        raise UserError(f"{private / 'state.pt'} still holds the noise key: give the run's own command again.")


def _refuse_no_plain_file(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing. {AGAIN}") from error
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is a link or no plain file, so its content cannot be checked. {AGAIN}")
    if status.st_mode & stat.S_IWOTH:
        raise UserError(f"{path} is writable by every user of this machine: chmod o-w it, and make the run again.")
    if not status.st_size:
        raise UserError(f"{path} is empty. {AGAIN}")


def _parsed(path: Path) -> dict[str, Any]:
    try:
        value = json_value(path.read_text(encoding="utf-8"), _refuse_constant)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}). {AGAIN}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it is not a JSON object. {AGAIN}")
    return value


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _checked_config(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the settings, checked to be valid and as :func:`released_settings` writes them, and whether weights were
    kept."""
    from pipelines.config.settings import typed

    _refuse_no_plain_file(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        settings = yaml_value(text)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). {AGAIN}") from error
    if not isinstance(settings, dict):
        raise UserError(f"{path} is damaged: it contains no settings. {AGAIN}")
    _refuse_keys(path, settings, (*SECTIONS, _OPTIONAL, UNIT, RANKS), (_OPTIONAL, UNIT, RANKS))
    for name, section in _with_noise(settings).items():
        if "noise_seed" in section:
            raise UserError(f"{path} contains {name}.noise_seed, which reveals the noise: it must not be published.")
    try:
        config = typed(settings, run_code=False)
    except UserError as error:
        raise UserError(f"{path} contains invalid settings: {error}") from error
    _refuse_unlisted(path, settings.get(_OPTIONAL), shape_of(Law), _OPTIONAL)
    _refuse_places(path, settings)
    if text != config_text(settings):
        raise _edited(path)
    return settings, config.train.save_model


def _checked_json(path: Path, kind: type) -> dict[str, Any]:
    text, value = path.read_bytes(), _parsed(path)
    _refuse_unlisted(path, value, shape_of(kind))
    _refuse_places(path, value)
    if text != json_text(value).encode():
        raise _edited(path)
    return value


def _edited(path: Path) -> UserError:
    # Comments, repeated keys and spaces could carry information that a parser does not see.
    return UserError(f"{path} differs from the bytes that a run writes: it was edited. {AGAIN}")


def _refuse_keys(path: Path, value: Mapping[str, Any], listed: Sequence[str], optional: Collection[str]) -> None:
    for key in value:
        if key not in listed:
            raise UserError(f"{path} contains {key}, which is not on the list of what may be published.")
    for key in listed:
        if key not in value and key not in optional:
            raise UserError(f"{path} lacks {key}. {AGAIN}")


def _refuse_unlisted(path: Path, value: Any, shape: Shape, where: str = "") -> None:
    """Refuse keys that a shape lacks, and objects or lists in place of plain values."""
    if shape is APART:
        return
    if isinstance(shape, dict) and isinstance(value, Mapping):
        for key, item in value.items():
            name = f"{where}.{key}" if where else key
            if key not in shape:
                raise UserError(f"{path} contains {name}, which is not on the list of what may be published.")
            _refuse_unlisted(path, item, shape[key], name)
    elif isinstance(shape, list) and isinstance(value, list):
        for item in value:
            _refuse_unlisted(path, item, shape[0], where)
    elif isinstance(value, Mapping | list) or (shape is not None and value is not None):
        raise UserError(f"{path} has at {where or 'its top'} a value that may not be published: {str(value)[:80]}.")


def _refuse_places(path: Path, value: Any) -> None:
    for text in _texts(value):
        if text.startswith(("/", "~")) or text.startswith("\\\\") or text[1:3] == ":\\":
            raise UserError(f"{path} contains {text}, a path on a machine. {AGAIN}")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = value.values()
    elif isinstance(value, str):
        yield value
        return
    elif not isinstance(value, list):
        return
    for item in value:
        yield from _texts(item)


def _refuse_contradictions(
    folder: Path, settings: Mapping[str, Any], ledger: Mapping[str, Any], summary: Mapping[str, Any]
) -> None:
    """Refuse files of different runs."""
    for path, value, kind in (
        (folder / LEDGER, ledger, Ledger),
        (folder / SUMMARY, summary, Summary),
        (folder / LEDGER, ledger["run"] or {}, RunOfLedger),
    ):
        _refuse_keys(path, value, list(kind.__annotations__), kind.__optional_keys__)
    if summary["schema"] != SUMMARY_SCHEMA:
        raise UserError(
            f"{folder / SUMMARY} has schema {summary['schema']}, and this version packs {SUMMARY_SCHEMA}. {AGAIN}"
        )
    if not isinstance(summary["hyperparameters"], Mapping):
        raise UserError(f"{folder / SUMMARY} has no hyperparameters by name. {AGAIN}")
    for key in ("dataset", "algorithm"):  # of which the name of an archive's folder is made
        if not isinstance(summary[key], str) or not NAME.fullmatch(summary[key]):
            raise UserError(
                f"{folder / SUMMARY} has {str(summary[key])[:80]!r} as its {key}, which is no name. {AGAIN}"
            )
    try:
        refuse_disagreement(settings, ledger, summary)
    except UserError as error:
        raise UserError(f"The files of {folder} are not from one run: {error}. {AGAIN}") from error


def _digest_of(files: Sequence[Path]) -> str:
    sums = []
    for path in files:
        with path.open("rb") as file:
            sums.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digest(sums)


def digest(words: Sequence[str]) -> str:
    """Return twelve hexadecimal digits over released files, to name them; they reveal no more than those do."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]
