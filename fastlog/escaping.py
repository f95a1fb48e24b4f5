"""Names from outside, as a terminal, a log and JSON may show them: what would command a terminal, or turn a line around
in it, is escaped."""

from __future__ import annotations

import json
import logging
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False).encode


def printable(text: str, keep: str = "", most: int | None = None) -> str:
    r"""The text with ``\x1b``, ``\u202e`` and the like for what is not printable, ends of lines among them.

    ``keep``: characters that stay as they are. ``most``: the text is cut behind this many characters.
    """
    if most is not None and len(text) > most:
        text = text[:most] + "…"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else ascii(one)[1:-1] for one in text)


def in_json(value: Any) -> str:
    """A value as JSON in one line; a program gets back exactly what it was, and letters stay readable."""
    text = _encode(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def logger(name: str) -> logging.Logger:
    """The logger of a module of a client, whose lines any program may send anywhere."""
    made = logging.getLogger(name)
    made.addFilter(_escape_record)
    return made


def _escape_record(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if not text.isprintable():
        record.msg, record.args = printable(text, "\n\t"), ()
    return True


class EscapingFormatter(logging.Formatter):
    """Log lines in which no name can do anything; those of a traceback stay apart."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of the record, control characters escaped but for newlines and tabs."""
        return printable(super().format(record), "\n\t")
