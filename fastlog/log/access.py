"""Who may read the files of a log: the umask of the processes that make them, and a look at what is there already.

Every file and directory of a log is made with a mode that leaves it to the umask who else may read it, so nothing that
makes one has to know. Nobody but the owner ever gets the right to write.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UMASKS = {"owner": 0o077, "group": 0o027, "all": 0o022}
"""By the setting ``log.access``: directories get 0700, 0750 or 0755, files 0600, 0640 or 0644."""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Inside, this process and the ones it starts make files with this umask; for the main thread."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def umask_like(directory: Path) -> int:
    """The umask that gives new files to whoever may use this directory: for tools that do not know the setting.

    Raises:
        OSError: the directory cannot be looked at.
    """
    return UMASKS["all"] | (0o777 & ~stat.S_IMODE(directory.stat().st_mode))


def opened_wider(log_directory: Path, access: str) -> str | None:
    """A line for people when a log directory that was there already is open to more users than the setting says.

    Raises:
        OSError: it cannot be looked at.
    """
    mask = UMASKS[access]
    mode = stat.S_IMODE(log_directory.stat().st_mode)
    if not mode & mask:
        return None  # then nobody gets at what is in it, whatever the modes there
    inside = 0
    with os.scandir(log_directory) as listing:
        for item in listing:
            if item.is_dir(follow_symlinks=False):
                inside += bool(stat.S_IMODE(item.stat(follow_symlinks=False).st_mode) & mask)
    take_away = {0o077: "go-rwx", 0o027: "g-w,o-rwx", 0o022: "go-w"}[mask]
    return (
        f"log directory open to other users path={log_directory} mode={mode:04o} partitions_as_open={inside}"
        f" log.access={access}: chmod -R {take_away} closes it"
    )
