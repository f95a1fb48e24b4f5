"""What ``fastlog doctor`` finds: a line for each, with a name that stays and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fastlog.config import BrokerConfig
from fastlog.escaping import printable
from fastlog.tools.colours import GREEN, RED, YELLOW, painted

OK, WARN, BAD = "ok", "warn", "bad"
_COLOURS = {OK: GREEN, WARN: YELLOW, BAD: RED}


class Finding(NamedTuple):
    """How one thing is. ``name`` is empty where it is well, otherwise one of ``docs/commands.md``."""

    check: str
    level: str
    found: str
    name: str = ""
    remedy: str = ""

    def line(self, *, coloured: bool = False) -> str:
        """The finding as one line: level, check, what was found, and what to do."""
        level = painted(f"{self.level:4}", _COLOURS[self.level]) if coloured else f"{self.level:4}"
        remedy = f" -> {self.remedy}" if self.remedy else ""
        return f"{level}  {self.check:11}  {printable(self.found + remedy)}"

    def fields(self) -> dict[str, str]:
        """The finding as an object of ``--json``."""
        return {key: value for key, value in self._asdict().items() if value or key in ("check", "level", "found")}


def ok(check: str, found: str) -> Finding:
    """A finding that asks for nothing."""
    return Finding(check, OK, found)


def warn(check: str, name: str, found: str, remedy: str) -> Finding:
    """A broker runs so, and somebody may be surprised."""
    return Finding(check, WARN, found, name, remedy)


def bad(check: str, name: str, found: str, remedy: str) -> Finding:
    """A broker does not start so, or clients do not reach it, or its data is in danger."""
    return Finding(check, BAD, found, name, remedy)


@dataclass(frozen=True)
class Subject:
    """The broker that is looked at: its settings, and what is known of it before the first check."""

    config: BrokerConfig
    directories: Sequence[Path]
    timeout: float
    pids: Sequence[int] = ()
    """The processes that hold the log directories, as far as they can be seen."""
    is_running: bool = False
    """Somebody holds the locks of the log directories."""
    health: dict[str, Any] = field(default_factory=dict)
    """What ``/health`` says, where there is a monitor that answers."""

    @property
    def shown_pids(self) -> str:
        """The process ids as words for a finding."""
        return f"pids {', '.join(map(str, self.pids))}" if self.pids else "pids not visible to this user"
