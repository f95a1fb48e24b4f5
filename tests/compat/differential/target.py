"""One of the two brokers that are compared: what it is asked, and what it says, with what must differ made alike."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import socket
import struct
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.harness import today

Late = Callable[["Target"], Any]
"""A value of a request that each of the two has another one for, such as a topic's id."""
Answer = dict[str, Any]

Path = tuple[str, ...]
"""Where a field stands in an answer; an element of a list is in brackets, with what tells it apart."""


class Difference(NamedTuple):
    """A field that differs."""

    path: Path
    kafka: Any
    ours: Any

    @property
    def field(self) -> str:
        """Where it stands, of any element of its lists."""
        return ".".join("[]" if name.startswith("[") else name for name in self.path).replace(".[]", "[]")


CLOSED, SILENT = {"answer": "closes the connection"}, {"answer": "does not answer"}
SECONDS_OF_AN_ANSWER = 3.0
OPEN_SECONDS = 60.0
METADATA, LIST_GROUPS, CREATE_TOPICS, DELETE_TOPICS, DELETE_GROUPS = 3, 16, 19, 20, 42
KEYS = (
    "name", "topic", "topic_name", "group_id", "group", "member_id", "partition_index", "partition_id", "partition",
    "index", "resource_name", "node_id", "broker_id", "api_key", "log_dir", "key",
)  # fmt: skip
"""Fields that tell the elements of a list apart, where the order says nothing."""
DIFFERENT = ("throttle_time", "error_message", "batch_index_error_message", "finalized_features_epoch")
"""Fields that are not compared: errors are told to programs by their numbers, and their words to people."""
ABSENT, THERE = "is not there", "is there"


class Target:
    """A broker and a connection to it. ``memory`` has what was learnt of its answers, by names of the cases'."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.memory: dict[str, Any] = {}
        self._connection: socket.socket | None = None

    def close(self) -> None:
        """End the connection; the next request has a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self) -> socket.socket:
        """A connection that knows that it is of today."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=OPEN_SECONDS)
        today.asked(connection, today.API_VERSIONS, 0)
        connection.settimeout(SECONDS_OF_AN_ANSWER)
        return connection

    def asked(self, key: int, version: int, fields: Mapping[str, Any]) -> Any:
        """What it says to a request of a case's preparation; it has to be answered."""
        connection = self._ready()
        connection.settimeout(OPEN_SECONDS)
        try:
            connection.sendall(today.request(key, version, resolved(fields, self)))
            return today.decoded(key, version, today.answer_of(connection))[1]
        finally:
            connection.settimeout(SECONDS_OF_AN_ANSWER)

    def answer(self, key: int, version: int, fields: Mapping[str, Any]) -> Answer:
        """What it says to a request that is compared."""
        return self.answer_of_frame(key, version, today.request(key, version, resolved(fields, self)))

    def answer_of_frame(self, key: int, version: int, frame: bytes) -> Answer:
        """What it says to the bytes of a request."""
        connection = self._ready()
        try:
            connection.sendall(frame)
            data = today.answer_of(connection)
        except TimeoutError:
            self.close()
            return SILENT
        except (EOFError, ConnectionError):
            self.close()
            return CLOSED
        return self.plain(key, version, data)

    def plain(self, key: int, version: int, data: bytes) -> Answer:
        """The fields of an answer, made alike."""
        _, found = today.decoded(key, version, data)
        made: Answer = self._alike("", found)
        return made

    def _ready(self) -> socket.socket:
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    # -- topics --------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Delete what groups and topics there are, but for the broker's own, and wait until the topics are gone."""
        groups = [row.group_id for row in self.asked(LIST_GROUPS, 2, {}).groups]
        self.asked(DELETE_GROUPS, 1, {"groups_names": groups})
        every = {"topics": None, "allow_auto_topic_creation": False}
        until = time.monotonic() + OPEN_SECONDS
        while names := [row.name for row in self.asked(METADATA, 5, every).topics if not row.is_internal]:
            self.asked(DELETE_TOPICS, 5, {"topic_names": names, "timeout": today.seconds(30)})
            assert time.monotonic() < until, names
            time.sleep(0.2)

    def make(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Make a topic, and wait until it can be used."""
        fields = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": []}
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        request = {"timeout": today.seconds(30), "validate_only": False, "topics": [{**fields, "configs": rows}]}
        found = self.asked(CREATE_TOPICS, 4, request)
        assert found.topics[0].error_code in (0, 36), found
        self.wait_for(topic, partitions)

    def wait_for(self, topic: str, partitions: int) -> None:
        """Return when a topic has its partitions, each with a leader; its id is remembered."""
        asked = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": False}
        until = time.monotonic() + OPEN_SECONDS
        while True:
            (found,) = self.asked(METADATA, 12, {**asked, "include_topic_authorized_operations": False}).topics
            rows = found.partitions
            if found.error_code == 0 and len(rows) == partitions and all(row.error_code == 0 for row in rows):
                self.memory[f"id of {topic}"] = found.topic_id
                self.wait_until_led(topic, partitions)
                return
            assert time.monotonic() < until, found
            time.sleep(0.01)

    def wait_until_led(self, topic: str, partitions: int) -> None:
        """Return when each partition of a topic is served: Kafka names a leader before that takes its part up."""
        rows = [{"partition_index": each, "current_leader_epoch": -1, "timestamp": -1} for each in range(partitions)]
        asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": rows}]}
        until = time.monotonic() + OPEN_SECONDS
        while any(row.error_code for row in self.asked(today.LIST_OFFSETS, 5, asked).topics[0].partitions):
            assert time.monotonic() < until, topic
            time.sleep(0.01)

    # -- what must differ ----------------------------------------------------------------------------------------------

    def _alike(self, name: str, value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {
                field.name: self._alike(field.name, getattr(value, field.name))
                for field in dataclasses.fields(value)
                if field.name not in DIFFERENT
            }
        if isinstance(value, tuple):
            return keyed([self._alike(name, one) for one in value if not _is_internal(one)])
        if isinstance(value, enum.Enum):
            return f"{value.value} {value.name}"
        if isinstance(value, datetime.timedelta):
            value = value / datetime.timedelta(milliseconds=1)
        if isinstance(value, datetime.datetime):
            value = value.timestamp() * 1000
        if name == "records":
            return batches(value)
        if isinstance(value, bytes):
            value = value.hex()
        return self._same(name, value)

    def _same(self, name: str, value: Any) -> Any:
        """A word for what each has another value of."""
        if isinstance(value, uuid.UUID):
            return "an id"
        if name == "port" and value is not None and value > 0:
            return "a port"
        if name in ("cluster_id", "log_dir", "documentation") and value:
            return "words"
        if name in ("producer_id", "session_id") and value is not None and value >= (name == "session_id"):
            return "an id"
        if name in ("log_append_time", "total_bytes", "usable_bytes") and value is not None and value > 0:
            return "a number"
        if isinstance(value, str) and value and value in self.memory.get("members", ()):
            return "a member's id"
        if name in ("member_id", "leader") and isinstance(value, str) and len(value) > 36:
            return "a member's id"
        return value


def _is_internal(value: Any) -> bool:
    """Whether an element of a list is a topic of a broker's own with its partitions: each broker has others."""
    name = getattr(value, "name", None)
    return isinstance(name, str) and name.startswith("__") and hasattr(value, "partitions")


def resolved(value: Any, target: Target) -> Any:
    """A request's fields for one of the two."""
    if callable(value):
        return value(target)
    if isinstance(value, Mapping):
        return {name: resolved(one, target) for name, one in value.items()}
    if isinstance(value, list):
        return [resolved(one, target) for one in value]
    return value


def keyed(values: list[Any]) -> Any:
    """A list as a dictionary by what tells its elements apart, since their order says nothing."""
    return dict(zip(keys_of(values), values, strict=True))


def keys_of(values: Sequence[Any], names: Mapping[Any, Any] | None = None) -> list[str]:
    """What tells each element of a list apart, in brackets; ``names`` has other words for some."""
    found: list[str] = []
    for value in values:
        read = value.get if isinstance(value, dict) else lambda name, value=value: getattr(value, name, None)  # type: ignore[misc]
        keys = [read(name) for name in KEYS] if isinstance(value, dict) or dataclasses.is_dataclass(value) else [value]
        key = next((one for one in keys if one is not None), "")
        text = f"[{(names or {}).get(key, key)}]"
        while text in found:
            text = text[:-1] + " again]"
        found.append(text)
    return found


def batches(data: bytes | None) -> str | None:
    """The batches of a fetch in words: offset, epoch, codec, count, a checksum, and the bytes of a part behind them."""
    if data is None:
        return None
    found, at = [], 0
    while len(data) - at >= 61:
        base, length, epoch, _, _, attributes = struct.unpack_from(">qiibIh", data, at)
        count = int.from_bytes(data[at + 57 : at + 61], "big")
        # the producer's id is another one in each, and part of the batch's own checksum
        content = zlib.crc32(data[at + 21 : at + 43] + data[at + 51 : at + 12 + length])
        found.append(f"offset {base} epoch {epoch} attributes {attributes} records {count} content {content:08x}")
        at += 12 + length
    return ", ".join(found) + (f" and {len(data) - at} bytes" if at < len(data) else "")


def differences(kafka: Any, ours: Any, path: Path = ()) -> list[Difference]:
    """Every field that differs."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        names = [*kafka, *(name for name in ours if name not in kafka)]
        pairs = [(name, kafka.get(name, ABSENT), ours.get(name, ABSENT)) for name in names]
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        pairs = [(f"[{at}]", *pair) for at, pair in enumerate(zip(kafka, ours, strict=True))]
    else:
        return [] if kafka == ours else [Difference(path, short(kafka), short(ours))]
    return [one for name, *pair in pairs for one in differences(*pair, (*path, name))]


def short(value: Any) -> Any:
    """A value of an answer; of what has fields, that it is there, and its error."""
    if isinstance(value, dict):
        code = value.get("error_code")
        return THERE if code is None else f"{THERE}, error {code}"
    return value
