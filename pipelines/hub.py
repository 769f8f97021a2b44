"""Models and texts by their name on the Hugging Face hub: found in its local cache, and fetched only where permitted.

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
from typing import Any, Literal

from dpfest.errors import UserError

Kind = Literal["model", "dataset"]

_NAME = re.compile(r"(?P<repository>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>[\w./-]+))?", re.ASCII)


@dataclass
class HubConfig:
    """What may come over the network.

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
TOKENIZER = Wanted("model", (("config.json", "tokenizer.json"),), _MODEL_FILES)
WEIGHTS = Wanted("model", (("config.json", "model*.safetensors"), ("config.json", "pytorch_model*.bin")), _MODEL_FILES)
_INDEX = "*.index.json"
"""Which file holds what, where weights are in several."""


@dataclass(frozen=True)
class _Repository:
    """A repository at a revision: a branch, a tag or a commit."""

    kind: Kind
    name: str
    revision: str

    def __str__(self) -> str:
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"

    @property
    def client(self) -> Any:
        """The hub's own package."""
        try:
            import huggingface_hub.errors
        except ImportError as error:
            from pipelines.data.text_tokens import INSTALL

            raise UserError(
                f"There is no folder {self}, and names on the Hugging Face hub need its package huggingface_hub: "
                f"{INSTALL}."
            ) from error
        return huggingface_hub

    def cached(self) -> Path | None:
        """The folder of the revision in the local cache, whole or not; no request is made."""
        try:
            return self._snapshot(self.revision, [], local_files_only=True)
        except (OSError, ValueError):  # there is none, or no repository can have such a name
            return None

    def fetch(self, commit: str | None, patterns: tuple[str, ...]) -> Path:
        """The folder of the revision once files at a commit, or at its latest, have been fetched into it."""
        source, revision = self.client.constants.ENDPOINT, commit or self.revision
        print(f"{self}: downloading {', '.join(patterns)} from {source} …", file=sys.stderr, flush=True)
        if not sys.stderr.isatty():
            self.client.utils.disable_progress_bars()
        try:
            return self._snapshot(revision, [*patterns, _INDEX], local_files_only=False)
        except Exception as error:  # the failures of a network have no type in common
            reason = self._reason(error, revision)
            raise UserError(f"{self} cannot be downloaded from {source}: {reason}.") from error

    def _snapshot(self, revision: str, patterns: list[str], *, local_files_only: bool) -> Path:
        folder = self.client.snapshot_download(
            self.name,
            repo_type=self.kind,
            revision=revision,
            allow_patterns=patterns,
            local_files_only=local_files_only,
        )
        return Path(folder)

    def _reason(self, error: BaseException, revision: str) -> str:
        errors = self.client.errors
        while isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:
            error = error.__cause__  # it is not in the cache, because it could not be fetched
        if isinstance(error, errors.OfflineModeIsEnabled):
            return "the environment variable HF_HUB_OFFLINE forbids it"
        if isinstance(error, errors.GatedRepoError):
            return "its owner's terms must be accepted on its page, and `hf auth login` be run here"
        if isinstance(error, errors.RepositoryNotFoundError):
            return f"there is no {self.kind} of that name (or it is private, and needs `hf auth login`)"
        if isinstance(error, errors.RevisionNotFoundError):
            return f"it has no revision {revision}"
        said = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        return f"{said}; files that have arrived whole are kept, and the same command goes on with the others"


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


def _named(place: str, kind: Kind) -> _Repository | None:
    """The repository that a place names; None where it is a path that exists, or can be nothing but a path."""
    found = _NAME.fullmatch(place)
    if found is None or Path(place).exists():
        return None
    return _Repository(kind, found["repository"], found["revision"] or "main")


def _fetched(repository: _Repository, folder: Path | None, wanted: Wanted) -> Path:
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
    return bool(names) and (not counts or (len(counts) >= max(counts) and any(folder.glob(_INDEX))))


def _not_permitted(repository: _Repository, folder: Path | None, wanted: Wanted) -> UserError:
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
