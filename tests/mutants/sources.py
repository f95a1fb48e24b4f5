"""Source text without what is no code: comments and strings are blanks, so every column stays where it was."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

SUFFIXES = (".py", ".pyx", ".pxd", ".h")

_PYTHON = re.compile(
    r"(?P<string>[rRbBfFuU]{0,2}(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^\\'\n])*'|\"(?:\\.|[^\\\"\n])*\"))"
    r"|(?P<comment>#[^\n]*)",
    re.DOTALL,
)
_C = re.compile(
    r"(?P<string>'(?:\\.|[^\\'\n])*'|\"(?:\\.|[^\\\"\n])*\")"
    r"|(?P<comment>/\*.*?\*/|//[^\n]*|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*)",
    re.DOTALL | re.MULTILINE,
)
_NOT_NEWLINE = re.compile(r"[^\n]")


def masked(text: str, suffix: str) -> str:
    """Return the text with blanks where comments and strings stood; of the same length, with the same lines.

    A string leaves its quotes, so that an argument still looks like one.
    """

    def blank(found: re.Match[str]) -> str:
        hidden = _NOT_NEWLINE.sub(" ", found[0])
        return f'"{hidden[1:-1]}"' if found["string"] else hidden

    return (_C if suffix == ".h" else _PYTHON).sub(blank, text)


@cache
def source_lines(path: Path) -> tuple[list[str], list[str]]:
    """Return the lines of a file, and the same lines masked, without the blanks at their ends."""
    text = path.read_text()
    return text.splitlines(), [line.rstrip() for line in masked(text, path.suffix).splitlines()]


def code_lines(path: Path) -> set[int]:
    """Return the indexes of the lines that run: no declarations, imports, signatures, decorators or ``cdef extern``."""
    _, lines = source_lines(path)
    if path.suffix == ".h":
        return _c_bodies(lines)
    found: set[int] = set()
    depth = 0
    skipped_below: int | None = None  # the indentation of a block that only declares
    in_import = False
    for index, line in enumerate(lines):
        stripped = line.strip()
        begins = depth == 0
        depth += sum(line.count(c) for c in "([{") - sum(line.count(c) for c in ")]}")
        if not stripped:
            continue
        indent = len(line) - len(line.lstrip())
        if begins:
            in_import = bool(re.match(r"(from\b.*\bc?import|c?import)\b", stripped))
            if skipped_below is not None and indent <= skipped_below:
                skipped_below = None
            if skipped_below is None and re.match(r"cdef (extern|enum|struct)|ctypedef|cpdef enum", stripped):
                skipped_below = indent
            declares = bool(re.match(r"(async def|def|class|cdef class|@|cimport|global|nonlocal)\b|@", stripped))
            declares |= bool(re.match(r"c?p?def\b[^=]*\(.*", stripped)) and "=" not in stripped.partition("(")[0]
            statement_declares = declares
        if not in_import and skipped_below is None and not statement_declares:
            found.add(index)
    return found


def _c_bodies(lines: list[str]) -> set[int]:
    """The lines inside the braces of C functions; one-line functions count whole."""
    found = set()
    depth = 0
    in_function = False
    for index, line in enumerate(lines):
        if depth == 0 and "{" in line:
            in_function = bool(re.search(r"\)\s*\{", line))
        if in_function and (depth > 0 or line.rstrip().endswith("}")):
            found.add(index)
        depth += line.count("{") - line.count("}")
    return found
