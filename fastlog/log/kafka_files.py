"""The small files that a partition of record batches has beside its segments, byte for byte as Apache Kafka's.

    partition.metadata         version: 0
                               topic_id: 4pBfYjW2Q2mQ8gJ0jz2c5g    16 bytes in URL-safe base 64, without padding

    leader-epoch-checkpoint    0                      the version
                               2                      how many lines follow
                               0 0                    an epoch, and the first offset that was appended in it
                               1 1734

Source: Apache Kafka 4.2 (PartitionMetadataFile, LeaderEpochCheckpointFile).
"""

from __future__ import annotations

import base64
import binascii
import logging
import uuid
from pathlib import Path

from fastlog.log.files import FileOps

METADATA_NAME = "partition.metadata"
EPOCHS_NAME = "leader-epoch-checkpoint"
NO_TOPIC_ID = bytes(16)
MAX_BYTES = 1 << 20
MESSAGES = uuid.UUID("3c0a5d5e-6f5b-5d0c-9c3f-0f0e7a0b0c07")
"""Where the ids of topics of 0.7 come from."""

log = logging.getLogger(__name__)


def topic_id_text(topic_id: bytes) -> str:
    """Return a topic id of 16 bytes as Kafka writes it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def messages_topic_id(topic: str, created_ms: int) -> bytes:
    """The id that clients of today know a topic of 0.7 by, whose oldest partition was made then.

    It stands nowhere: a name and a time make it again at each start, and another one for a topic that was deleted and
    made anew.
    """
    return uuid.uuid5(MESSAGES, f"{created_ms}/{topic}").bytes


def write_metadata(directory: Path, topic_id: bytes, files: FileOps) -> None:
    """Say whose partition a directory is; the bytes are durable then, the name with the next sync of the directory.

    Raises:
        OSError: the former file, if any, is still in place.
    """
    text = f"version: 0\ntopic_id: {topic_id_text(topic_id)}\n"
    files.replace_file(directory / METADATA_NAME, text.encode(), "metadata_file.write")


def read_topic_id(directory: Path, files: FileOps) -> bytes:
    """Return the topic id that a directory names; zeros when it names none, or what cannot be one, which is logged.

    Raises:
        OSError: there is a file and it cannot be read.
    """
    path = directory / METADATA_NAME
    try:
        lines = files.read_file(path, MAX_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return NO_TOPIC_ID
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        if fields.get("version") == "0":
            topic_id = base64.b64decode(fields.get("topic_id", "") + "==", altchars=b"-_", validate=True)
            if len(topic_id) == len(NO_TOPIC_ID):
                return topic_id
    except (binascii.Error, ValueError):
        pass
    log.warning("topic id not understood path=%s", path)
    return NO_TOPIC_ID


def write_epochs(directory: Path, epochs: list[tuple[int, int]], files: FileOps) -> None:
    """Put the leader epochs of a partition, each with its first offset, in place; durable as ``write_metadata``.

    Raises:
        OSError: the former file, if any, is still in place.
    """
    text = f"0\n{len(epochs)}\n" + "".join(f"{epoch} {offset}\n" for epoch, offset in epochs)
    files.replace_file(directory / EPOCHS_NAME, text.encode(), "epochs_file.write")


def read_epochs(directory: Path, files: FileOps) -> list[tuple[int, int]]:
    """Return the leader epochs of a partition, each with its first offset; none without a file, or with a damaged one.

    Raises:
        OSError: there is a file and it cannot be read.
    """
    path = directory / EPOCHS_NAME
    try:
        words = [line.split() for line in files.read_file(path, MAX_BYTES).decode("ascii", "replace").splitlines()]
    except FileNotFoundError:
        return []
    try:
        epochs = [(int(epoch), int(offset)) for epoch, offset in words[2:]]
        if words[0] == ["0"] and words[1] == [str(len(epochs))] and epochs == sorted(epochs):
            return epochs
    except (ValueError, IndexError):
        pass
    log.warning("leader epochs not understood path=%s", path)
    return []


def next_epochs(epochs: list[tuple[int, int]], log_end: int) -> list[tuple[int, int]]:
    """Return the epochs after another one has begun at a log end; those that began behind it have no record."""
    last = epochs[-1][0] if epochs else -1
    return [*(item for item in epochs if item[1] < log_end), (last + 1, log_end)]
