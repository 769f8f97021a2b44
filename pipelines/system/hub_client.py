"""A repository of the Hugging Face hub: its cached files and downloads, through the hub's own client."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpfest.errors import UserError

if TYPE_CHECKING:
    from pipelines.system.progress import Reporter

Kind = Literal["model", "dataset"]

INSTALL = "install the text models' dependencies with pip install -e '.[text]'"

INDEX = "*.index.json"
"""The index of weights that are split over several files."""


@dataclass(frozen=True)
class Repository:
    """A repository at a revision: a branch, a tag or a commit."""

    kind: Kind
    name: str
    revision: str

    def __str__(self) -> str:
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"

    @property
    def client(self) -> Any:
        """Import the hub's own package; raises UserError where it is missing."""
        try:
            import huggingface_hub.errors
        except ImportError as error:
            raise UserError(
                f"There is no folder {self}, and names on the Hugging Face hub need the package huggingface_hub: "
                f"{INSTALL}."
            ) from error
        return huggingface_hub

    def cached(self) -> Path | None:
        """Return the folder of the revision in the local cache, complete or not, without network access."""
        try:
            return self._snapshot(self.revision, [], local_files_only=True)
        except (OSError, ValueError):  # not cached, or not a valid name of a repository
            return None

    def fetch(self, commit: str | None, patterns: tuple[str, ...]) -> Path:
        """Download files at a commit, or at the revision's latest, and return the folder.

        Raises:
            UserError: the download fails.
        """
        from pipelines.system.progress import progress

        source, revision = self.client.constants.ENDPOINT, commit or self.revision
        for library in ("httpx", "httpx2"):  # which otherwise log every request
            logging.getLogger(library).setLevel(logging.WARNING)
        with progress(f"downloading {self} from {source}") as report:
            try:
                more = {"local_files_only": False, "tqdm_class": _bar(report)}
                return self._snapshot(revision, [*patterns, INDEX], **more)
            except Exception as error:  # network failures share no type
                reason = self._reason(error, revision)
                raise UserError(f"{self} cannot be downloaded from {source}: {reason}.") from error

    def _snapshot(self, revision: str, patterns: list[str], **more: Any) -> Path:
        folder = self.client.snapshot_download(
            self.name, repo_type=self.kind, revision=revision, allow_patterns=patterns, **more
        )
        return Path(folder)

    def _reason(self, error: BaseException, revision: str) -> str:
        errors = self.client.errors
        while isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:
            error = error.__cause__  # the reason why it could not be fetched
        if isinstance(error, errors.OfflineModeIsEnabled):
            return "the environment variable HF_HUB_OFFLINE forbids it"
        if isinstance(error, errors.GatedRepoError):
            return "accept its owner's terms on its page, and run `hf auth login` here"
        if isinstance(error, errors.RepositoryNotFoundError):
            return f"there is no {self.kind} of that name (or it is private, and needs `hf auth login`)"
        if isinstance(error, errors.RevisionNotFoundError):
            return f"it has no revision {revision}"
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        return f"{reason}; complete files are kept, and the same command downloads the others"


def _bar(report: Reporter) -> type[Any]:
    """Return a substitute for the client's progress bar, which passes the bytes of all bars to a reporter."""
    from tqdm.auto import tqdm

    most = 0

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            settings.pop("name", None)
            super().__init__(*arguments, **settings | {"file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal most
            shown = super().update(n)
            if self.unit == "B" and self.total:
                most = max(most, int(self.n))
                report(most, max(most, int(self.total)))
            return shown

    return Bar
