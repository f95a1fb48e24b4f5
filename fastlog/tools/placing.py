"""Putting a file in place as a whole: whoever finds it finds all of it, also after a power loss."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def placed(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which has another name until it is complete and on the disk; nothing is left when that fails.

    A device or a pipe is written to as it is, and behind a link stands the file that it leads to.

    Raises:
        OSError: it could not be written, and what was at the path is still there; or only its name could not be synced.
    """
    if path.exists() and not path.is_file():  # nothing that another file may take the place of
        with path.open("wb") as out:
            yield out
        return
    path = path.resolve()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)  # the name, too
        finally:
            os.close(directory)
    finally:
        temporary.unlink(missing_ok=True)
