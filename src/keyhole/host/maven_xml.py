"""Reads Maven's XML without the dangerous parts of XML.

Called by `maven` and `superpom`. A document type is refused, and with it every entity: neither
files nor memory can be reached through them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element


def parse(text: str | None) -> Element | None:
    """The root element, or None for what is not well-formed or declares a document type."""
    # XML 1.0 §2.8: a declaration is spelled exactly so, in upper case. The parser gets the same
    # characters that are searched here, so that no other encoding can hide it.
    if text is None or "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        return ElementTree.fromstring(text)  # noqa: S314 - no document type, hence no entities
    except (ElementTree.ParseError, ValueError):
        return None


def children(element: Element, name: str | None = None) -> Iterator[Element]:
    """The child elements of this name, or all, whatever their namespace."""
    for child in element:
        if name is None or local_name(child) == name:
            yield child


def local_name(element: Element) -> str:
    """The name without its namespace; Maven accepts settings with and without."""
    return element.tag.rpartition("}")[2]


def text_of(element: Element, name: str) -> str:
    """The trimmed text of the first child of this name."""
    return next(((child.text or "").strip() for child in children(element, name)), "")
