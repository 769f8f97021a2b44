"""The Jinja2 templates of the page and of Markdown."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from reports.algorithms import label
from reports.text import code, markdown, markup
from reports.wording import multiple, number, utility

ENVIRONMENT = Environment(
    loader=PackageLoader(__name__, ""),
    autoescape=select_autoescape(["html.jinja"], default=False),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
ENVIRONMENT.filters |= {
    "by_suffix": lambda files: {file.rpartition(".")[2]: file for file in files},
    "code": code,
    "label": label,
    "markdown": markdown,
    "markup": markup,
    "multiple": multiple,
    "number": number,
    "utility": utility,
}


def render(template: str, **values: Any) -> str:
    """Render a whole document."""
    return ENVIRONMENT.get_template(template).render(values)
