"""Models and texts by their name on the Hugging Face hub: from the local cache, downloaded only where permitted.

An existing folder takes precedence over a repository of the same name.  Repositories are looked up in the hub's shared
cache (``HF_HUB_CACHE``) without network access; cached files are used unchanged, so that a command trains on the same
files every time.  Files that the cache lacks are downloaded only under ``hub.download=true``.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.system.hub_client import INDEX, Kind, Repository

_NAME = re.compile(r"(?P<repository>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>[\w./-]+))?", re.ASCII)


@dataclass
class HubConfig:
    """Downloads from the Hugging Face hub.

    Attributes:
        download: fetch what `model.path`, `data.tokenizer` and `data.path` name on the hub and its cache lacks.
    """

    download: bool = False


@dataclass(frozen=True)
class Wanted:
    """The files of a repository that dpfest uses.

    Attributes:
        kind: kind of the repository.
        choices: lists of patterns of required files; the first list that the repository satisfies counts.
        by_hand: the files to name to a user who downloads by hand.
    """

    kind: Kind
    choices: tuple[tuple[str, ...], ...]
    by_hand: str


_MODEL_FILES = "config.json tokenizer.json model.safetensors"
TOKENIZER_FILES = Wanted("model", (("config.json", "tokenizer.json"),), _MODEL_FILES)
WEIGHT_FILES = Wanted(
    "model", (("config.json", "model*.safetensors"), ("config.json", "pytorch_model*.bin")), _MODEL_FILES
)


def local_folder(place: str, wanted: Wanted, hub: HubConfig) -> Path:
    """Return the folder of an existing path, or of a repository in the hub's local cache (``owner/name`` or ``name``,
    with ``@revision`` unless that is main).

    Args:
        place: a path or the name of a repository; a text that cannot be a name is returned as a path.
        wanted: the files that a repository's folder must hold.
        hub: whether they may be downloaded.

    Raises:
        UserError: they are not in the cache and may not or cannot be fetched, or the repository has none.
    """
    repository = _named(place, wanted.kind)
    if repository is None:
        return Path(place)
    folder = repository.cached()
    if folder is None or _lacking(folder, wanted):
        if not hub.download:
            raise _not_permitted(repository, folder, wanted)
        folder = _fetched(repository, folder, wanted)
    _say_once(f"{repository}: commit {folder.name}, in {folder}")
    return folder


def pinned(section: Mapping[str, Any], path: Kind) -> dict[str, Any]:
    """Return settings in which each repository is named with its commit in the local cache.

    Args:
        section: settings of a model or of data, possibly with ``path`` and ``tokenizer``.
        path: kind of the repository that ``path`` names.
    """
    settings = dict(section)
    kinds: dict[str, Kind] = {"path": path, "tokenizer": "model"}
    for name, kind in kinds.items():
        repository = _named(place, kind) if isinstance(place := settings.get(name), str) else None
        if repository and (folder := repository.cached()):
            settings[name] = f"{repository.name}@{folder.name}"
    return settings


def _named(place: str, kind: Kind) -> Repository | None:
    """Return the repository that a place names, or None for an existing path or a text that cannot be a name."""
    match = _NAME.fullmatch(place)
    if match is None or Path(place).exists():
        return None
    return Repository(kind, match["repository"], match["revision"] or "main")


def _fetched(repository: Repository, folder: Path | None, wanted: Wanted) -> Path:
    """Download the files and return their folder; at the commit of files already cached, so that all fit together."""
    for patterns in wanted.choices:
        folder = repository.fetch(folder.name if folder else None, patterns)
        if not _lacking(folder, wanted):
            return folder
    assert folder is not None
    raise UserError(
        f"{repository} on the hub (commit {folder.name}) has no {_lacking(folder, wanted)}: name another "
        f"{wanted.kind}, or a folder of your own that holds all files."
    )


def _lacking(folder: Path, wanted: Wanted) -> str:
    """Return the first missing file of each choice; empty where one choice is complete."""
    first = [next((one for one in patterns if not _holds(folder, one)), "") for patterns in wanted.choices]
    return " or ".join(dict.fromkeys(first)) if all(first) else ""


def _holds(folder: Path, pattern: str) -> bool:
    """Whether files of a pattern exist; for weights in several files, all of them and their index."""
    names = [path.name for path in folder.glob(pattern) if path.exists()]
    counts = [int(part[1]) for name in names if (part := re.search(r"-of-(\d+)\.(safetensors|bin)$", name))]
    return bool(names) and (not counts or (len(counts) >= max(counts) and any(folder.glob(INDEX))))


def _not_permitted(repository: Repository, folder: Path | None, wanted: Wanted) -> UserError:
    cache = repository.client.constants.HF_HUB_CACHE
    held = "nothing" if folder is None else f"no {_lacking(folder, wanted)}"
    kind = " --repo-type dataset" if wanted.kind == "dataset" else ""
    revision = "" if repository.revision == "main" else f" --revision {repository.revision}"
    return UserError(
        f"There is no folder {repository}, and the local cache {cache} has {held} of the {wanted.kind} of that name on "
        "the Hugging Face hub. Correct the path; or set hub.download=true to download the files, which needs a "
        f"network; or download them yourself: `hf download {repository.name}{kind}{revision} {wanted.by_hand}`."
    )


@functools.cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
