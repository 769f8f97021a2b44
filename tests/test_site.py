"""The documentation's site: it builds without a warning, has every name and document, and links lead on."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import dpfest
from dpfest.errors import UserError
from reports import site

HOME = Path(__file__).resolve().parents[1]
DOCUMENTS = [*HOME.glob("docs/*.md"), *HOME.glob("docs/tutorials/*.py"), *map(HOME.joinpath, site.PAGES)]


def test_every_public_name_has_a_place() -> None:
    listed = [name for names in site.API.values() for name in names]
    assert sorted(listed) == sorted(dpfest.__all__)


def test_every_document_is_in_the_menu() -> None:
    menu = (HOME / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = {
        path.relative_to(HOME / "docs").with_suffix(".md").as_posix() for path in DOCUMENTS if "docs" in path.parts
    }
    assert set(re.findall(r"(\S+\.md)$", menu, re.M)) == pages | set(site.PAGES.values()) | {"API.md"}


def test_links_lead_to_pages_and_what_has_none_stays_as_text() -> None:
    pages = {"README.md": "index.md", "docs/DATA.md": "DATA.md", "docs/map.png": "map.png", "docs/t/a.py": "t/a.md"}
    words = "[data](docs/DATA.md#criteo), ![map](docs/map.png), [code](reports/site.py), [far](https://a.b), [here](#x)"
    found = site.linked(f"{words}\n```text\n[no](link.md)\n```\n", "README.md", pages)
    same = "[far](https://a.b), [here](#x)\n```text\n[no](link.md)\n```\n"
    assert found == f"[data](DATA.md#criteo), ![map](map.png), code, {same}"
    assert site.linked("[home](../../README.md#a)", "docs/t/a.py", pages) == "[home](../index.md#a)"
    with pytest.raises(UserError, match=r"README\.md links to docs/NOT\.md, which is not there"):
        site.linked("[lost](docs/NOT.md)", "README.md", pages)


@pytest.mark.documents
def test_it_builds_strictly(tmp_path: Path) -> None:
    """Marked: `.ci/run` builds it with `make docs`."""
    pytest.importorskip("mkdocs")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=HOME, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    api = (tmp_path / "site" / "API" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="dpfest.{name}"' in api for name in dpfest.__all__)
    assert not re.search(r":(func|class|meth|data|attr|mod):", api)
    pages = [path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")]
    assert all(f"dpfest {version('dpfest')}</title>" in page for page in pages)
    loaded = [
        address for page in pages for address in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(http[^"]+)', page)
    ]
    assert not loaded  # nothing comes from elsewhere


TUTORIALS = sorted((HOME / site.TUTORIALS).glob("*.py"))


@pytest.mark.documents
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path) -> None:
    """Marked: it trains models for a minute or two."""
    folder = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": folder}
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.strip()


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_calls_what_there_is(path: Path) -> None:
    """The quick part of the above: names that it imports, and the commands that it gives."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found = __import__(str(node.module), fromlist=[one.name for one in node.names])
            assert all(hasattr(found, one.name) for one in node.names)
    from cli.examples import EXAMPLES

    commands = re.findall(r'^dpfest\(f?"(\w+)', path.read_text(encoding="utf-8"), re.M)
    assert set(commands) <= set(EXAMPLES)
