"""Colour, where a terminal has it and nobody has said that there should be none.

Source: no-color.org for ``NO_COLOR``, which counts when it is not empty.
"""

from __future__ import annotations

import os
from typing import TextIO

RED, GREEN, YELLOW, BOLD = 31, 32, 33, 1


def has_colour(stream: TextIO) -> bool:
    """Whether what is printed there may have colours."""
    try:
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    except ValueError:  # it is closed
        return False


def painted(text: str, *styles: int) -> str:
    """The text as a terminal shows it in these colours; it has nothing in it that commands a terminal."""
    return f"\x1b[{';'.join(map(str, styles))}m{text}\x1b[0m"
