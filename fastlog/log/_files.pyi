"""The compiled twin of ``files.py``; Python sees the injected faults and the record of its calls."""

from typing import Final

OPS: Final[dict[str, int]]

def arm(text: str, role: str) -> None:
    """Take the fault rules of ``text`` that are for ``role``; counts begin at zero.

    Raises:
        ConfigError: a rule is malformed.
    """

def arm_from_environment(role: str) -> None:
    """Take the rules of ``FASTLOG_FAULTS`` for a process of this role."""

def preallocate(fd: int, position: int, n: int) -> None:
    """Have the disk keep room for these bytes of a file, whose size stays; nothing where the file system cannot.

    Raises:
        OSError: it has none.
    """

def reach(name: str) -> None:
    """A named point of Python code was reached: a rule may end the process here, or raise its error."""

def record(path: str | None) -> None:
    """From now on write down what this process and those it forks do with files, and each point, as a line of ``path``.

    Opens, and what changes or syncs something, in the order in which it ended: process id, number in ``OPS``, position,
    size (of an open: its flags), result, name of the file (none where the error was injected), new name; with tabs
    between them. ``None`` ends it.
    """
