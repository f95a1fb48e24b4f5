"""How far a long command is: a line on stderr that a terminal sees move, and a log sees every ten seconds.

What is known of the end shows as a share and the time left; on a terminal as a bar, where ``tqdm`` is installed.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping

from fastlog.counts import counted
from fastlog.escaping import in_json
from fastlog.tools.colours import has_colour
from fastlog.tools.report import note

_QUIET_SECONDS = 2.0
_TERMINAL_SECONDS = 0.5
_LOG_SECONDS = 10.0


def animates() -> bool:
    """Whether stderr is a terminal that can rewrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def amount(count: int, size: int, seconds: float) -> str:
    """``12 messages, 345 bytes in 0.10 s``, with the rates."""
    seconds = max(seconds, 1e-6)
    rates = f"{count / seconds:.0f} msg/s, {size / seconds / 1e6:.1f} MB/s"
    return f"{counted(count, 'message')}, {size} bytes in {seconds:.2f} s ({rates})"


def _is_unicode() -> bool:
    return "utf" in (getattr(sys.stderr, "encoding", None) or "").lower()


def _short(number: int) -> str:
    """A number with three digits and an SI prefix: ``1.23 M``."""
    prefixes = ["", "k", "M", "G", "T"]
    value = float(number)
    while value >= 1000 and len(prefixes) > 1:
        value /= 1000
        del prefixes[0]
    return f"{value:.3g} {prefixes[0]}"


class ConsoleProgress:
    """Counts messages and bytes, and shows them from time to time; says nothing in the first two seconds."""

    def __init__(self, verb: str, *, shown: bool) -> None:
        self.verb = verb
        """What was done with them; stands before their number."""
        self.count = 0
        self.size = 0
        self.goal = 0
        """What ``reached`` will be at the end, in bytes of whatever the command works through; 0 when nobody knows."""
        self.reached = 0
        self.started = time.monotonic()
        self._shown = shown
        self._animated = animates()
        self._next = self.started + (_QUIET_SECONDS if self._animated else _LOG_SECONDS)
        self._line_open = False

    @property
    def seconds(self) -> float:
        """Seconds since this was made."""
        return time.monotonic() - self.started

    def add(self, count: int, size: int) -> None:
        """Count what was done; maybe show it."""
        self.count += count
        self.size += size
        if self._shown and time.monotonic() >= self._next:
            self._show()

    def idle(self) -> None:
        """Maybe show how far it is, while nothing is done."""
        self.add(0, 0)

    def say(self, text: str) -> None:
        """Print a line beside the one that moves."""
        note(f"\n{text}" if self._line_open else text)
        self._line_open = False

    def end_line(self) -> None:
        """Leave the line that moves, so that others can be printed."""
        if self._line_open:
            self._line_open = False
            note("")

    def summary(self, text: str = "", as_json: Mapping[str, object] | None = None) -> None:
        """Print the last line: what was done in all, and ``text``; with ``as_json`` also an object on stdout."""
        self.end_line()
        seconds = self.seconds
        note(f"{self.verb} {amount(self.count, self.size, seconds)}{text}")
        if as_json is not None:
            counts = {"messages": self.count, "bytes": self.size, "seconds": round(seconds, 6)}
            print(in_json({**counts, **as_json}), flush=True)

    def _bar(self, text: str) -> str | None:
        """The same with a bar, as wide as the terminal; None where the end is not known, or nobody can draw one."""
        if not self.goal > 0:
            return None
        try:
            from tqdm import tqdm
        except ImportError:
            return None
        width = shutil.get_terminal_size().columns
        drawn: str = tqdm.format_meter(
            min(self.reached, self.goal),
            self.goal,
            self.seconds,
            ncols=width,
            ascii=not _is_unicode(),
            colour="green" if has_colour(sys.stderr) else None,
            bar_format=f"{text.replace('{', '{{').replace('}', '}}')} {{bar}} {{percentage:3.0f}} % {{remaining}} left",
        )
        return drawn

    def _left(self) -> str:
        if not 0 < self.reached < self.goal:
            return ""
        seconds = self.seconds * (self.goal - self.reached) / self.reached
        return f", {100 * self.reached // self.goal} %, {seconds:.0f} s left"

    def _show(self) -> None:
        text = f"{self.verb} {amount(self.count, self.size, self.seconds)}{self._left()}"
        if self._animated:
            self._line_open = True
            bar = self._bar(f"{self.verb} {_short(self.count)} messages, {_short(self.size)}B")
            sys.stderr.write(f"\r{text[:100]:<100}" if bar is None else f"\r{bar}\x1b[K")
            sys.stderr.flush()
        else:
            note(text)
        self._next = time.monotonic() + (_TERMINAL_SECONDS if self._animated else _LOG_SECONDS)
