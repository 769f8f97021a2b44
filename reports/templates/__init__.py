"""The Jinja2 templates of the page, of Markdown, and of the sentences that word a claim's finding."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from reports.algorithms import algorithm, label
from reports.text import code, markdown, markup
from reports.wording import multiple, number, plural, signed, significant, utility

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
    "knob": lambda name: algorithm(name).knob,
    "label": label,
    "markdown": markdown,
    "markup": markup,
    "multiple": multiple,
    "number": number,
    "plural": plural,
    "signed": signed,
    "significant": significant,
    "utility": utility,
}


def render(template: str, **values: Any) -> str:
    """Render a whole document."""
    return ENVIRONMENT.get_template(template).render(values)


def sentences(macro: str, **values: Any) -> str:
    """Render a macro of `evidence.md.jinja` as sentences on one line."""
    text = getattr(ENVIRONMENT.get_template("evidence.md.jinja").module, macro)(**values)
    return re.sub(r"[ \n]+", " ", text).strip()
