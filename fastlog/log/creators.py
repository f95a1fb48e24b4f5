"""Who this broker was in ZooKeeper: ``.fastlog-creators`` in the log directory.

    {"version": 1, "directory": [<device>, <inode>], "boot": "<id of the machine's boot>",
     "creators": ["<host>-<ms>", …]}

A node of ZooKeeper that one of these creators made is left over from an earlier start: whoever holds the lock on the
directory knows that the process behind it is gone, and need not wait for its session to end. A copy of the directory,
or a machine that was cloned, proves no such thing: there the file counts for nothing. The file is a help, not a truth;
without it the start waits for the session.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from fastlog.log.files import FileOps
from fastlog.segment_files import CREATORS_NAME

VERSION = 1
MAX_BYTES = 1 << 16
KEPT = 32
"""A start that fails at once may be tried many times while one session ends."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


def add_creator(log_directory: Path, creator: str, files: FileOps) -> tuple[str, ...]:
    """Write down what this start is called, durably, and return what earlier ones were; the caller holds the lock.

    Call it before the name is written to ZooKeeper. What cannot be written is logged: the next start has to wait then.
    """
    status = log_directory.stat()
    place: dict[str, object] = {"directory": [status.st_dev, status.st_ino], "boot": _boot()}
    former = _read(log_directory / CREATORS_NAME, place, files)
    content = {"version": VERSION, **place, "creators": [creator, *former][:KEPT]}
    data = json.dumps(content, ensure_ascii=False).encode() + b"\n"
    try:
        files.replace_file(log_directory / CREATORS_NAME, data, "creators.write")
        files.fsync_dir(log_directory)
    except OSError as error:
        log.warning("not written path=%s reason=%s", log_directory / CREATORS_NAME, error.strerror)
    return former


def _read(path: Path, place: dict[str, object], files: FileOps) -> tuple[str, ...]:
    try:
        content = json.loads(files.read_file(path, MAX_BYTES))
        if content["version"] != VERSION or {name: content[name] for name in place} != place:
            return ()
        creators = content["creators"]
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning("not understood path=%s reason=%r: a node of an earlier start is waited for", path, error)
        return ()
    return tuple(item for item in creators if isinstance(item, str)) if isinstance(creators, list) else ()


def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
