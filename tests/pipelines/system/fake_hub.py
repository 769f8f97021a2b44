"""As much of the Hugging Face hub as its own client needs to fetch a snapshot, on this machine."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit


class FakeHub:
    """Repositories by kind and name, each a folder whose content is its branch main.

    Attributes:
        history: folders of earlier commits.
        url: where it listens.
        requests: method and path of every request, and the range that it asked for.
        cut: of these files, so many more answers break off half-way.
        refused: status and error code of the answer to every request for these repositories.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Path] = {}
        self.history: dict[str, Path] = {}
        self.requests: list[str] = []
        self.cut: dict[str, int] = {}
        self.refused: dict[str, tuple[int, str]] = {}
        self.url = ""

    def add(self, kind: str, name: str, folder: Path) -> None:
        self.repositories[kind, name] = folder

    def commit(self, kind: str, name: str) -> str:
        """Of the branch main; it changes with the content."""
        return self._hash(self.repositories[kind, name])

    def at(self, kind: str, name: str, revision: str) -> Path | None:
        """The content at a revision; None where there is none."""
        folder = self.repositories[kind, name]
        return folder if revision in ("main", self._hash(folder)) else self.history.get(revision)

    def _hash(self, folder: Path) -> str:
        said = [(path, hashlib.sha1((folder / path).read_bytes()).hexdigest()) for path in self.files(folder)]
        return hashlib.sha1(repr(said).encode()).hexdigest()

    @staticmethod
    def files(folder: Path) -> list[str]:
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub listens on a port of its own."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[FakeHub]

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        path, asked = unquote(urlsplit(self.path).path), self.headers.get("Range")
        self.hub.requests.append(f"{self.command} {path}" + (f" {asked}" if asked else ""))
        info = re.fullmatch(r"/api/(model|dataset)s/(.+?)(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"/(datasets/)?(.+)/resolve/([^/]+)/(.+)", path)
        if info:
            kind, name, what, revision = info.groups()
            if folder := self._folder(kind, name, revision or "main"):
                tree = [_entry(folder, file) for file in self.hub.files(folder)]
                about = {"id": name, "sha": self.hub.commit(kind, name), "siblings": []}
                self._send(json.dumps(tree if what == "tree" else about).encode())
        elif file:
            dataset, name, revision, inside = file.groups()
            kind = "dataset" if dataset else "model"
            if folder := self._folder(kind, name, revision):
                if (folder / inside).is_file():
                    self._send_file(folder / inside, revision, asked)
                else:
                    self._refuse(404, "EntryNotFound")
        else:
            self._refuse(404, "")

    def _folder(self, kind: str, name: str, revision: str) -> Path | None:
        if name in self.hub.refused:
            self._refuse(*self.hub.refused[name])
            return None
        if (kind, name) not in self.hub.repositories:
            self._refuse(404, "RepoNotFound")
            return None
        folder = self.hub.at(kind, name, revision)
        if folder is None:
            self._refuse(404, "RevisionNotFound")
        return folder

    def _send_file(self, file: Path, commit: str, asked: str | None) -> None:
        content = file.read_bytes()
        tag = hashlib.sha256(content).hexdigest()
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        more = {"ETag": f'"{tag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if asked:
            more["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        rest, cut = content[start:], self.command == "GET" and self.hub.cut.get(file.name, 0) > 0
        if cut:
            self.hub.cut[file.name] -= 1
            self.close_connection = True
        self._send(rest, 206 if asked else 200, more, rest[: len(rest) // 2] if cut else rest)

    def _refuse(self, status: int, code: str) -> None:
        self._send(b"{}", status, {"X-Error-Code": code, "X-Error-Message": f"refused {code}"})

    def _send(
        self, content: bytes, status: int = 200, more: dict[str, str] | None = None, body: bytes | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if body is None else body)


def _entry(folder: Path, name: str) -> dict[str, Any]:
    content = (folder / name).read_bytes()
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
