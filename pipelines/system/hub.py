"""Models and texts by their name on the Hugging Face hub: from the local cache, downloaded only where permitted.

A folder that exists is itself, whatever it is called.  A name is looked up in the cache that all programs of the hub
share (``HF_HUB_CACHE``), without a request to anyone; what is there is used as it is, so that the same command trains
on the same files tomorrow.  What is not there comes over the network under ``hub.download=true`` alone.
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
    """The files that are used of a repository.

    Attributes:
        kind: of the repository.
        choices: patterns of the files that there must be; of several such lists, the first that the repository has.
        by_hand: the files to fetch where somebody does that.
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
    """The folder that a place stands for: a path that exists, or else a repository (``owner/name`` or ``name``, with
    ``@revision`` where that is not main) in the hub's local cache.

    Args:
        place: a path or the name of a repository; what can be neither is returned as a path.
        wanted: the files that a repository's folder must hold.
        hub: whether they may be fetched.

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
    """Settings in which each repository is named with the commit that the local cache has of it.

    Args:
        section: settings of a model or of data, among them perhaps ``path`` and ``tokenizer``.
        path: what kind of repository ``path`` names.
    """
    settings = dict(section)
    kinds: dict[str, Kind] = {"path": path, "tokenizer": "model"}
    for name, kind in kinds.items():
        repository = _named(place, kind) if isinstance(place := settings.get(name), str) else None
        if repository and (folder := repository.cached()):
            settings[name] = f"{repository.name}@{folder.name}"
    return settings


def _named(place: str, kind: Kind) -> Repository | None:
    """The repository that a place names; None where it is a path that exists, or can be nothing but a path."""
    match = _NAME.fullmatch(place)
    if match is None or Path(place).exists():
        return None
    return Repository(kind, match["repository"], match["revision"] or "main")


def _fetched(repository: Repository, folder: Path | None, wanted: Wanted) -> Path:
    """The folder of the files, fetched; at the commit of which other files are there, so that all fit together."""
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
    """The first file that a folder lacks, of each choice; nothing where it holds all of one."""
    first = [next((one for one in patterns if not _holds(folder, one)), "") for patterns in wanted.choices]
    return " or ".join(dict.fromkeys(first)) if all(first) else ""


def _holds(folder: Path, pattern: str) -> bool:
    """Whether files of a pattern are there; of weights in several files all, and their index."""
    names = [path.name for path in folder.glob(pattern) if path.exists()]
    counts = [int(part[1]) for name in names if (part := re.search(r"-of-(\d+)\.(safetensors|bin)$", name))]
    return bool(names) and (not counts or (len(counts) >= max(counts) and any(folder.glob(INDEX))))


def _not_permitted(repository: Repository, folder: Path | None, wanted: Wanted) -> UserError:
    cache = repository.client.constants.HF_HUB_CACHE
    held = "nothing" if folder is None else f"no {_lacking(folder, wanted)}"
    kind = " --repo-type dataset" if wanted.kind == "dataset" else ""
    revision = "" if repository.revision == "main" else f" --revision {repository.revision}"
    return UserError(
        f"There is no folder {repository}, and of the {wanted.kind} of that name on the Hugging Face hub the local "
        f"cache {cache} holds {held}. Nothing is fetched unasked: correct the path; or add hub.download=true, which "
        f"needs a network; or fetch the files yourself, `hf download {repository.name}{kind}{revision} "
        f"{wanted.by_hand}`, and give the same name."
    )


@functools.cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
