"""Which cluster a log directory belongs to: ``meta.properties``, as Apache Kafka writes it.

    version=1
    cluster.id=<22 characters: a random UUID in base64url>
    node.id=<the broker's id>

A broker is a cluster of one. Its id is made at its first start and never changes: clients that meet another id at the
same address know that they talk to another cluster. Each log directory has the file, so that one which is moved here
from elsewhere is noticed.
"""

from __future__ import annotations

import base64
import logging
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

from fastlog.errors import LogError
from fastlog.log.files import FileOps
from fastlog.segment_files import META_PROPERTIES_NAME

VERSION = "1"
MAX_BYTES = 1 << 16
_REMEDY = "restore it from a backup, or remove it to have a new one made"
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)

log = logging.getLogger(__name__)


def settle_cluster_id(directories: Sequence[Path], broker_id: int, files: FileOps) -> str:
    """The id of the cluster that the log directories belong to, which stands in each of them, durably, from now on.

    The caller holds their locks. A directory without the file gets that of the others; where none has one, an id is
    made. The node's id follows ``brokerid``: a cluster of one has no other node that it could be.

    Raises:
        LogError: two of them belong to different clusters, or a file is not understood; says what to do.
        OSError: a file cannot be read or written.
    """
    found = {directory: _read(directory / META_PROPERTIES_NAME, files) for directory in directories}
    by_id = {values["cluster.id"]: directory for directory, values in found.items() if values is not None}
    if len(by_id) > 1:
        (one, first), (other, second), *_ = by_id.items()
        raise LogError(
            f"the log directories belong to different clusters: {first} to {one}, {second} to {other}; remove "
            f"{META_PROPERTIES_NAME} from the one that is to join the other's",
            path=str(second),
        )
    cluster_id = next(iter(by_id), None) or new_id()
    for directory, values in found.items():
        if values is not None and values.get("node.id") == str(broker_id):
            continue
        if values is not None and "node.id" in values:
            line = "the broker id of the log directory changes path=%s from=%s to=%d"
            log.info(line, directory / META_PROPERTIES_NAME, values["node.id"], broker_id)
        content = {**(values or {}), "version": VERSION, "cluster.id": cluster_id, "node.id": str(broker_id)}
        content.pop("broker.id", None)  # what version 0 calls it
        text = "".join(f"{name}={value}\n" for name, value in sorted(content.items()))
        files.replace_file(directory / META_PROPERTIES_NAME, text.encode(), "meta.write")
        files.fsync_dir(directory)
    return cluster_id


def new_id() -> str:
    """A random id in Kafka's spelling: a UUID in base64url, 22 characters, which does not begin with a dash."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        if not made.startswith("-"):  # commands would take it for an option
            return made


def _read(path: Path, files: FileOps) -> dict[str, str] | None:
    try:
        text = files.read_file(path, MAX_BYTES).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise LogError(
            "not UTF-8: restore it from a backup, or remove it to have a new one made", path=str(path)
        ) from None
    lines = (line.strip() for line in text.splitlines())
    pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "!"))]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    if values.get("version") not in ("0", VERSION) or not _CLUSTER_ID.fullmatch(values.get("cluster.id", "")):
        raise LogError(f"names no version 0 or 1 and no cluster.id of 22 characters: {_REMEDY}", path=str(path))
    return values
