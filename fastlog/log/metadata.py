"""What a broker knows of its topics besides their bytes: the log ``__fastlog_metadata``, and the state it stands for.

One partition of record batches, written by the coordinator alone. A record's key says what it is about (``topic:NAME``
or ``producer-ids``), its value is one change as JSON:

    {"version": 1, "change": "creating", "topic": "t", "id": "<22 characters>", "partitions": 3, "settings": {…}}
    {"version": 1, "change": "created", "topic": "t", "id": …, "partitions": 3, "settings": {…}}
    {"version": 1, "change": "deleting", "topic": "t", "id": …}
    {"version": 1, "change": "deleted", "topic": "t", "id": …}
    {"version": 1, "change": "producer-ids", "next": 1000}

Intent, work, done: *creating* is flushed before a directory is made, and *created* when all of them and their names
are; *deleting* is flushed before a directory is renamed, and *deleted* when the name is free. What is open when a
coordinator ends, its successor finishes. A topic id is never used again, so that a change is about one topic for ever,
whoever has its name.

From time to time the log begins anew (``internal_logs``): a segment whose first batch is a *snapshot*, the changes that
make the whole state, behind one of that name; the next batch says that it has come to its end.

Settings are those that the topic was given, by Kafka's names; what each does stands in ``topic_settings``.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastlog import record_batches
from fastlog.errors import FastlogError, LogError
from fastlog.log import internal_logs
from fastlog.log.files import FileOps
from fastlog.log.formats import log_format
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.kafka_files import topic_id_text
from fastlog.record_batches import Record
from fastlog.segment_files import list_segments, partition_directory_name

TOPIC = "__fastlog_metadata"
TOPIC_ID = b"fastlog-metadata"
"""16 bytes, the same in every broker: nobody but the broker itself ever asks for it."""
VERSION = 1
CREATING, CREATED, DELETING, DELETED, PRODUCER_IDS = "creating", "created", "deleting", "deleted", "producer-ids"
SNAPSHOT, SNAPSHOT_END = internal_logs.SNAPSHOT.decode(), internal_logs.SNAPSHOT_END.decode()

log = logging.getLogger(__name__)

Change = Mapping[str, Any]
END_OF_SNAPSHOT: Change = {"version": VERSION, "change": SNAPSHOT_END}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of record batches, and how far it has come: CREATING, CREATED or DELETING."""

    name: str
    topic_id: bytes
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    phase: str = CREATED


@dataclass(slots=True)
class Metadata:
    """The state after some changes. For one thread."""

    topics: dict[str, Topic] = field(default_factory=dict)
    next_producer_id: int = 0

    def apply(self, change: Change) -> None:
        """Take one change in.

        Raises:
            LogError: it is of a newer version, or is none.
        """
        try:
            if change["version"] != VERSION:
                raise LogError(
                    f"{TOPIC} was written by a newer version of fastlog: start that one", found=change["version"]
                )
            kind = change["change"]
            if kind == PRODUCER_IDS:
                self.next_producer_id = max(self.next_producer_id, int(change["next"]))
                return
            if kind == SNAPSHOT:
                self.topics.clear()
                return
            if kind == SNAPSHOT_END:
                return
            name, topic_id = str(change["topic"]), _parse_id(change["id"])
            known = self.topics.get(name)
            if kind in (CREATING, CREATED):
                settings = {str(key): str(value) for key, value in change["settings"].items()}
                self.topics[name] = Topic(name, topic_id, int(change["partitions"]), settings, kind)
            elif known is None or known.topic_id != topic_id:
                return  # about a topic that another one of this name has followed
            elif kind == DELETING:
                self.topics[name] = replace(known, phase=DELETING)
            elif kind == DELETED:
                del self.topics[name]
            else:
                raise LogError(f"{TOPIC} holds a change that is none", found=kind)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LogError(f"{TOPIC} holds a record that is not understood: {error!r}") from error

    def changes(self) -> list[Change]:
        """The changes that make this state, whatever stood before: a snapshot."""
        made: list[Change] = [{"version": VERSION, "change": SNAPSHOT}]
        if self.next_producer_id:
            made.append(producer_ids(self.next_producer_id))
        for topic in self.topics.values():
            made.append(topic_change(CREATED if topic.phase == DELETING else topic.phase, topic))
            if topic.phase == DELETING:
                made.append(topic_change(DELETING, topic))
        return made


def topic_change(kind: str, topic: Topic) -> Change:
    """A change of a topic, which names all of it where a state is to be made from it."""
    change: dict[str, Any] = {"version": VERSION, "change": kind, "topic": topic.name}
    change["id"] = topic_id_text(topic.topic_id)
    if kind in (CREATING, CREATED):
        change |= {"partitions": topic.partitions, "settings": dict(topic.settings)}
    return change


def producer_ids(following: int) -> Change:
    """The change that takes all producer ids below ``following``."""
    return {"version": VERSION, "change": PRODUCER_IDS, "next": following}


def records(changes: Iterable[Change], now_ms: int) -> list[Record]:
    """The records of the metadata log that these changes become."""
    return [
        Record(
            (f"topic:{change['topic']}" if "topic" in change else change["change"]).encode(),
            json.dumps(change, ensure_ascii=False, separators=(",", ":")).encode(),
            now_ms,
        )
        for change in changes
    ]


def decode(batch: bytes | memoryview) -> list[Change]:
    """The changes of a batch.

    Raises:
        LogError: a record is not understood.
    """
    try:
        return [json.loads(record.value or b"") for record in record_batches.records(batch)]
    except (ValueError, FastlogError) as error:
        raise LogError(f"{TOPIC} holds a record that is not understood: {error!r}") from error


def read_metadata(directories: Sequence[Path], files: FileOps) -> Metadata:
    """The state that stands in the log directories: what is whole, up to where recovery would cut.

    Read by the supervisor before it recovers, and by a coordinator up to the end that is visible. Empty where there
    is no such log.

    Raises:
        LogError: it holds what this version does not understand, or stands in two directories.
        OSError: it cannot be read.
    """
    name = partition_directory_name(TOPIC, 0)
    found = [directory / name for directory in directories if (directory / name).is_dir()]
    if len(found) > 1:
        raise LogError(f"{TOPIC} stands in two log directories: {found[0]} and {found[1]}; remove the wrong one")
    state = Metadata()
    for directory in found:
        for segment in list_segments(directory, log_format(RECORD_BATCHES).suffix):
            data = files.read_file(segment.path, internal_logs.MOST_SEGMENT_BYTES)
            whole = 0
            for batch in internal_logs.whole_batches(data):
                whole += len(batch)
                for change in decode(batch):
                    state.apply(change)
            if whole < len(data):
                return state  # where recovery cuts
    return state


def _parse_id(text: str) -> bytes:
    try:
        topic_id = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error
    if len(topic_id) != 16:
        raise ValueError(text)
    return topic_id
