"""Text into HTML and SVG: every string is escaped unless it was made here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# What XML cannot hold, and what turns the direction of the text around it: titles come from files.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_EMPTY = {"meta", "br", "col"}


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """Return the text of ``value`` so that it means itself, in content and between double quotes."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(printable(str(value))))


def printable(text: str) -> str:
    """The text with a mark in the place of each character that cannot be shown."""
    return _UNPRINTABLE.sub("\ufffd", text)


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Put parts together; those that are no markup are escaped, ``between`` too."""
    return Markup(escaped(between).join(escaped(part) for part in parts))


def command_line(text: str) -> Markup:
    """A command whose words are only broken where one is wider than the page: no line ends inside of an option."""
    return element("code", join((element("span", word) for word in text.split(" ")), " "))


def element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element. Children that are None are left out, and so are such attributes.

    In names of attributes a trailing ``_`` is dropped and others become ``-``: ``class_``, ``font_size``. Numbers are
    written with two decimals at most, which for coordinates is far below what can be seen.
    """
    written = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        written.append(f" {name}" if value is True else f' {name}="{escaped(_attribute(value))}"')
    opening = f"{tag}{''.join(written)}"
    if tag in _EMPTY and not children:
        return Markup(f"<{opening}/>")
    content = "".join(escaped(child) for child in children if child is not None)
    return Markup(f"<{opening}>{content}</{tag}>")


def _attribute(value: object) -> object:
    if not isinstance(value, float):
        return value
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
