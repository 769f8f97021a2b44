"""SVG figures with unique ids, rounded coordinates and tooltips on their markers, which can be inlined in a page.

Matplotlib derives ids from coordinates, so two figures can share some. Here ids are `<name>-<n>` in the order of the
file: they are unique in a page and reproducible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_FOOTER = "data-footer"  # height of the footer that `dress` added, in the viewBox's units
_POINTS = 72.0  # an inch
_COORDINATES = ("d", "x", "y", "points")
_REFERENCE = re.compile(r"^#(.+)$|url\(#([^)]+)\)")
_LONG = re.compile(r"-?\d+\.\d{3,}")

ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def tidy(svg: bytes, name: str, hovers: Mapping[str, Sequence[str]], footer: float) -> str:
    """Return matplotlib's figure with ids `<name>-<n>`, a title on every marker that has a tooltip, and coordinates in
    hundredths of a point, a third shorter.

    `hovers` holds tooltips by the id of an artist, one for each of its markers; `footer` is in inches.
    """
    root = ElementTree.fromstring(svg)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for group in root.iter(f"{{{_SVG}}}g"):
        _add_titles(group, hovers.get(group.get("id", ""), ()))
    for element in root.iter():
        for attribute in _COORDINATES:
            if value := element.get(attribute):
                element.set(attribute, _LONG.sub(lambda found: f"{float(found[0]):.2f}", value))
    _rename(root, name)
    root.set(_FOOTER, f"{footer * _POINTS:.6g}")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def inline(svg: str, label: str, name: str | None = None) -> str:
    """Return a tidied figure as an element of a page, without its footer: the page has caption, data and command.

    `name` makes its ids `<name>-<n>`, for a figure that is in the page twice.
    """
    root = ElementTree.fromstring(svg)
    if name:
        _rename(root, name)
    left, top, width, height = (float(value) for value in root.get("viewBox", "").split())
    height -= float(root.attrib.pop(_FOOTER, "0"))
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("viewBox", f"{left:g} {top:g} {width:g} {height:g}")
    root.set("style", f"max-width:{1.6 * width:.0f}px")
    root.set("role", "img")
    root.set("aria-label", label)
    for definitions in root.findall(f"{{{_SVG}}}defs"):
        for sheet in definitions.findall(f"{{{_SVG}}}style"):  # which would also style the page
            definitions.remove(sheet)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.get("class") == "footer":
                parent.remove(child)
    _shorten(root)
    return ElementTree.tostring(root, encoding="unicode")


def _shorten(root: ElementTree.Element) -> None:
    """Remove ids that nothing refers to, and the space between elements."""
    referred = {
        one
        for element in root.iter()
        for value in element.attrib.values()
        for found in _REFERENCE.findall(value)
        for one in found
    }
    for element in root.iter():
        if element.get("id") not in referred:
            element.attrib.pop("id", None)
        if not element.tag.endswith(("}text", "}tspan")):
            element.text = (element.text or "").strip()
            for child in element:
                child.tail = None


def _add_titles(group: ElementTree.Element, words: Sequence[str]) -> None:
    """Add titles, which browsers show as tooltips, if there is one per marker."""
    markers = [*group.iter(f"{{{_SVG}}}use")] or [group]
    if len(markers) == len(words):
        for marker, text in zip(markers, words, strict=True):
            title = ElementTree.Element(f"{{{_SVG}}}title")
            title.text = text
            marker.insert(0, title)


def _rename(root: ElementTree.Element, name: str) -> None:
    with_id = [element for element in root.iter() if "id" in element.attrib]
    renamed = {element.attrib["id"]: f"{name}-{number}" for number, element in enumerate(with_id, 1)}
    for element in with_id:
        if element.attrib["id"].startswith("footer"):
            element.set("class", "footer")
        element.set("id", renamed[element.attrib["id"]])
    for element in root.iter():
        for attribute, value in element.attrib.items():
            if attribute == _LINK and value.startswith("#"):  # other links contain an image
                element.set(attribute, "#" + renamed[value.removeprefix("#")])
            elif "url(#" in value:
                element.set(attribute, re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{renamed[m[1]]})", value))
