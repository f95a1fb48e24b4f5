"""What lies in the log directory of an Apache Kafka that is stopped.

    meta.properties                     the ids of the cluster, the node and the directory
    .kafka_cleanshutdown                it was stopped in order
    <topic>-<number>/                   partitions; those that are on their way out, or in, end in .<id>-delete,
                                        -future or -stray
    __cluster_metadata-0/               which topics there are (``kraft_log``); 3.x with ZooKeeper has none
    log-start-offset-checkpoint         where partitions begin

Source: Apache Kafka 4.2 (LogManager, MetaProperties); 3.x has the same.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path

from fastlog.errors import LogError
from fastlog.log.files import FileOps
from fastlog.log.kafka_files import NO_TOPIC_ID, read_topic_id
from fastlog.log.log_starts import Starts, read_log_starts
from fastlog.moving.kraft_log import DIRECTORY_NAME, read_kraft_state
from fastlog.moving.kraft_records import KraftState
from fastlog.segment_files import (
    CLEAN_MARKER_NAME,
    META_PROPERTIES_NAME,
    partition_directory_name,
    split_directory_name,
)

MOVED_META_NAME = f"{META_PROPERTIES_NAME}.moved-to-fastlog"
PASSING_NAME = re.compile(r".*\.[0-9a-f]{32}-(delete|future|stray)", re.ASCII)
MAX_META_BYTES = 1 << 16


@dataclass(slots=True)
class KafkaDirectory:
    """What was found in one log directory of one broker of Apache Kafka's."""

    path: Path
    meta: dict[str, str]
    is_clean: bool
    state: KraftState | None
    state_end: int
    starts: Starts
    partitions: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """By topic and number: the topic's id, or zeros where none is named."""
    passing: list[str] = field(default_factory=list)
    """Directories that are none of a partition that is served."""

    @property
    def node_id(self) -> int:
        """The broker's id; -1 where it is not said."""
        text = self.meta.get("node.id", self.meta.get("broker.id", ""))
        return int(text) if text.isascii() and text.isdigit() else -1

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty where it is not said."""
        return self.meta.get("cluster.id", "")

    def directory(self, topic: str, partition: int) -> Path:
        """The directory of a partition, whether it exists or not."""
        return self.path / partition_directory_name(topic, partition)


def read_kafka_directory(path: Path, files: FileOps) -> KafkaDirectory:
    """Look at a log directory: names, and what the metadata log says.

    Raises:
        LogError: it is none, or its metadata log is not understood.
        OSError: it cannot be read.
    """
    meta = read_meta(path, files)
    state, end = read_kraft_state(path, files) or (None, 0)
    found = KafkaDirectory(path, meta, (path / CLEAN_MARKER_NAME).exists(), state, end, read_log_starts(path, files))
    for item in files.listdir(path):
        if not item.is_dir(follow_symlinks=False) or item.name == DIRECTORY_NAME:
            continue
        name = split_directory_name(item.name)
        if name is None or PASSING_NAME.fullmatch(item.name):
            found.passing.append(item.name)
        else:
            found.partitions[name] = read_topic_id(path / item.name, files)
    return found


def read_meta(path: Path, files: FileOps) -> dict[str, str]:
    """The fields of ``meta.properties``.

    Raises:
        LogError: there is none: no Kafka was there, or it has been moved away.
        OSError: it cannot be read.
    """
    try:
        text = files.read_file(path / META_PROPERTIES_NAME, MAX_META_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        reason = "no log directory of Apache Kafka: it has no meta.properties"
        if (path / MOVED_META_NAME).exists():
            reason = "it was moved to fastlog before; what is left here can be removed"
        raise LogError(reason, path=str(path)) from None
    lines = (line.strip() for line in text.splitlines())
    pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "!"))]
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_uuid(text: str) -> bytes | None:
    """The 16 bytes of an id in Kafka's spelling; None where it is none."""
    try:
        found = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except ValueError:
        return None
    return found if len(found) == len(NO_TOPIC_ID) else None
