"""The documentation's site, a hook of MkDocs (mkdocs.yml, `make docs`): pages from outside docs/, and their links.

README is the first page. Links in the documents are those of a clone; on the site they lead to its pages, and what has
no page (a folder, a file of code) stays as text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from dpfest.errors import UserError

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "tests/README.md": "tests.md",
}
"""Documents outside docs/, and their pages."""

TUTORIALS = Path("docs") / "tutorials"

API: Mapping[str, tuple[str, ...]] = {
    "Train": ("make_private", "PrivateTraining", "Step", "validate", "parameter_groups", "AdamBC", "Tables"),
    "Algorithms": ("DPSGD", "FEST", "AdaFEST", "AdaFESTPlus", "Exponential", "Threshold", "Frozen", "Nonprivate"),
    "Rows chosen beforehand": ("select", "select_rows", "Selection", "SelectionConfig", "OpenVocabulary"),
    "Plan and account": ("plan", "threshold_for", "PrivacyPlan", "Event", "Ledger", "BudgetExceeded", "NoiseKey"),
    "Persons and days": ("UnitConfig", "Units", "Period", "training_steps"),
    "Search": ("plan_search", "select_best", "SearchPlan", "Search", "Best"),
    "Batches": ("PoissonBatches", "ShuffledBatches", "DatasetReader", "Batch", "MicroBatch"),
    "A rule of your own": (
        "PrivateAlgorithm", "Algorithm", "PrivateEngine", "NoisedGradient", "RowGradient", "RowSums", "Rows", "Shard",
        "Diagnostics",
    ),
    "Errors": ("UserError",),
}  # fmt: skip
"""The public names of `dpfest`, by what they are for."""

RUNNER = ("pipelines.train.trained.load", "pipelines.train.trained.Trained")

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ROLE = re.compile(r":[a-z]+:<code>~?")
_CODE = re.compile(r"(^(`{3,}|~{3,}).*?^\2[ ]*$)", re.MULTILINE | re.DOTALL)


def api() -> str:
    """Return the page of public names, whose words are those of the docstrings (mkdocstrings)."""
    lines = ["# Names of the library", "", "`import dpfest`: what is listed here is public, and nothing else is."]
    for title, names in API.items():
        lines += ["", f"## {title}", *(f"\n::: dpfest.{name}" for name in names)]
    lines += ["", "## A trained model", *(f"\n::: {name}" for name in RUNNER)]
    return "\n".join(lines) + "\n"


def linked(text: str, place: str, pages: Mapping[str, str]) -> str:
    """Return a document with the links of the site.

    Args:
        text: Markdown.
        place: its path in a clone, such as docs/DATA.md.
        pages: of each document and picture, by its path in a clone: its path in the site.

    Raises:
        UserError: a link leads to nothing.
    """

    def link(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match.group()
        here = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
        if here in pages:
            own = posixpath.relpath(pages[here], posixpath.dirname(pages[place]) or ".")
            return f"{picture}[{words}]({own}{'#' if anchor else ''}{anchor})"
        if not Path(here).exists():
            raise UserError(f"{place} links to {target}, which is not there.")
        return words

    parts = _CODE.split(text)  # prose, a block, its fence, prose, ...
    return "".join(
        _LINK.sub(link, part) if number % 3 == 0 else part for number, part in enumerate(parts) if number % 3 != 2
    )


def tutorial(path: Path) -> str:
    """Return a tutorial, whose source is a notebook in Python (jupytext), as a page."""
    import jupytext

    cells = jupytext.read(path).cells
    shown = [cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```" for cell in cells]
    shown.append(f"*As a notebook: `jupytext --to notebook {path}` (`pip install jupytext`).*")
    return "\n\n".join(shown) + "\n"


def outside() -> dict[str, str]:
    """Return the pages that do not lie in docs/ as Markdown, by the path of their source in a clone."""
    return PAGES | {str(path): f"tutorials/{path.stem}.md" for path in sorted(TUTORIALS.glob("*.py"))}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version that the pages are of."""
    config.site_name = f"{config.site_name} {version('dpfest')}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose sources are elsewhere."""
    from mkdocs.structure.files import File

    for place, page in outside().items():
        path = Path(place)
        text = tutorial(path) if path.suffix == ".py" else path.read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "API.md", content=api()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make a page's links those of the site."""
    uri = page.file.src_uri
    places = {found: place for place, found in outside().items()}
    pages = {places.get(file.src_uri, f"docs/{file.src_uri}"): file.src_uri for file in files}
    return linked(markdown, places.get(uri, f"docs/{uri}"), pages)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Drop the roles of references in docstrings (:func:`dpfest.plan`), which Markdown does not know."""
    return _ROLE.sub("<code>", html)
