"""Requests that real clients send: recorded before a fastlog, and put to an Apache Kafka in the same order.

What the two give other values of, topic and member and producer ids, is learnt from the answers and replaced in the
requests that follow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import kafka
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.index import load_request_schema
from kio.serial import entity_reader

from tests.compat.differential.cases import Case
from tests.compat.differential.run import API, Findings, note
from tests.compat.differential.target import CLOSED, SECONDS_OF_AN_ANSWER, Target, differences, keys_of
from tests.harness import today
from tests.harness.raw_batches import reseal
from tests.harness.server import Server
from tests.integration.test_kafka_clients import CODECS, Confluent, KafkaPython, messages

LEARNT = ("topic_id", "member_id", "producer_id", "leader")
TIMES = ("log_append_time", "timestamp")
COUNT = 40
PATIENCE = 60.0
API_VERSIONS, PRODUCE = 18, 0
PRODUCER_ID = slice(43, 51)


class Event(NamedTuple):
    """A frame that passed: a request, or the answer to one, on one of the connections."""

    connection: int
    is_request: bool
    frame: bytes


class Recorder(Server):
    """A proxy before a broker, which keeps whole frames in the order in which they passed."""

    def __init__(self, port_of: Callable[[], int]) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._port_of = port_of
        self._lock = threading.Lock()
        self._connections = 0

    def serve(self, connection: socket.socket) -> None:
        """Carry one connection's frames both ways."""
        with self._lock:
            number = self._connections
            self._connections += 1
        with socket.create_connection(("127.0.0.1", self._port_of())) as broker:
            self.opened(broker)
            back = threading.Thread(target=self._carry, args=(broker, connection, number, False), daemon=True)
            back.start()
            self._carry(connection, broker, number, True)
            back.join()
            self._sockets.remove(broker)

    def _carry(self, source: socket.socket, target: socket.socket, number: int, is_request: bool) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = today.answer_of(source)
                with self._lock:
                    self.events.append(Event(number, is_request, frame))
                target.sendall(frame)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


# -- what clients do ---------------------------------------------------------------------------------------------------


def _confluent(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic("confluent-made", 2, 1)]).values():
        made.result(PATIENCE)
    admin.describe_cluster().result(PATIENCE)
    client = Confluent()
    for number, codec in enumerate(CODECS):
        client.produce(address, f"confluent-kafka-{codec}", codec, messages(COUNT), "all" if number % 2 else "1")
        assert client.read(address, f"confluent-kafka-{codec}", 0) == messages(COUNT)
    settings = {"bootstrap.servers": address, "group.id": "confluent", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.subscribe(["confluent-kafka-none"])
    read = 0
    while read < COUNT // 2:
        message = consumer.poll(1)
        read += message is not None and not message.error()
    consumer.commit(asynchronous=False)
    consumer.close()
    admin.list_consumer_groups().result(PATIENCE)
    for one in admin.describe_consumer_groups(["confluent"]).values():
        one.result(PATIENCE)
    for one in admin.delete_consumer_groups(["confluent"]).values():
        one.result(PATIENCE)
    for gone in admin.delete_topics(["confluent-made"]).values():
        gone.result(PATIENCE)


def _kafka_python(address: str) -> None:
    client = KafkaPython()
    for number, codec in enumerate(CODECS):
        client.produce(address, f"kafka-python-{codec}", codec, messages(COUNT), "all" if number % 2 else "1")
        assert client.read(address, f"kafka-python-{codec}", 0) == messages(COUNT)
    consumer = kafka.KafkaConsumer(
        "kafka-python-none",
        bootstrap_servers=address,
        group_id="python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=int(PATIENCE * 1000),
    )
    for _ in range(COUNT // 2):
        next(consumer)
    consumer.commit()
    consumer.close()


CLIENTS: dict[str, Callable[[str], None]] = {"confluent-kafka": _confluent, "kafka-python": _kafka_python}


def make_topics(name: str, target: Target) -> None:
    """Those that a client writes to: Apache Kafka makes them while a client asks until they are there."""
    for codec in CODECS:
        target.make(f"{name}-{codec}")


# -- putting it to the other -------------------------------------------------------------------------------------------


class Ids:
    """What one calls what the other calls otherwise."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def learn(self, ours: Any, kafkas: Any, name: str = "") -> None:
        """Walk through two answers to the same request."""
        if dataclasses.is_dataclass(ours) and type(ours) is type(kafkas):
            for field in dataclasses.fields(ours):
                self.learn(getattr(ours, field.name), getattr(kafkas, field.name), field.name)
        elif isinstance(ours, tuple) and isinstance(kafkas, tuple):
            there = dict(zip(keys_of(kafkas, self.known), kafkas, strict=True))
            for key, one in zip(keys_of(ours, self.known), ours, strict=True):
                if key in there:
                    self.learn(one, there[key], name)
        elif name in LEARNT and ours not in (None, "", -1) and kafkas not in (None, "", -1):
            self.known[ours] = kafkas

    def replaced(self, value: Any, name: str = "") -> Any:
        """A request with the other's names of things."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return dataclasses.replace(
                value, **{field.name: self.replaced(getattr(value, field.name), field.name) for field in fields}
            )
        if isinstance(value, tuple):
            return tuple(self.replaced(one, name) for one in value)
        if name == "records" and value is not None and len(value) >= 61:
            return self._batch(bytes(value))
        if isinstance(value, uuid.UUID) or (isinstance(value, str) and name in ("member_id", "leader")):
            return self.known.get(value, value)
        return value

    def _batch(self, data: bytes) -> bytes:
        (producer,) = struct.unpack(">q", data[PRODUCER_ID])
        if producer not in self.known:
            return data
        return reseal(data[:43] + struct.pack(">q", self.known[producer]) + data[51:])


def replay(name: str, events: Sequence[Event], target: Target, ours: Target) -> tuple[int, Findings]:
    """Put a recorded run to the other broker; how many requests, and where its answers differ from those recorded."""
    make_topics(name, target)
    ids, found, count = Ids(), {}, 0
    connections: dict[int, socket.socket] = {}
    waiting: dict[int, queue.SimpleQueue[tuple[int, int]]] = {}
    with contextlib.ExitStack() as stack:
        for event in events:
            if event.connection not in connections:
                made = socket.create_connection(("127.0.0.1", target.port), timeout=SECONDS_OF_AN_ANSWER * 10)
                connections[event.connection] = stack.enter_context(made)
                waiting[event.connection] = queue.SimpleQueue()
            connection = connections[event.connection]
            if event.is_request:
                key, version, frame, has_answer = _renamed(event.frame, ids)
                connection.sendall(frame)
                count += 1
                if has_answer:
                    waiting[event.connection].put((key, version))
                continue
            key, version = waiting[event.connection].get_nowait()
            case = Case(key, version, f"recorded of {name}", {})
            try:
                data = today.answer_of(connection)
            except (OSError, EOFError):
                note(found, case, differences(CLOSED, ours.plain(key, version, event.frame)))
                break
            ids.learn(today.decoded(key, version, event.frame)[1], today.decoded(key, version, data)[1])
            note(found, case, differences(target.plain(key, version, data), ours.plain(key, version, event.frame)))
    return count, found


def _renamed(frame: bytes, ids: Ids) -> tuple[int, int, bytes, bool]:
    key, version = struct.unpack(">hh", frame[4:8])
    entity = load_request_schema(key, version)
    head, size = entity_reader(entity.__header_schema__)(frame[4:], 0)
    fields, _ = entity_reader(entity)(frame[4:], size)
    data = today.written(ids.replaced(fields))
    made = today.frame(key, version, data, correlation=head.correlation_id, client=head.client_id)
    return key, version, made, not (key == PRODUCE and fields.acks == 0)


def sessions(ours: Callable[[int], contextlib.AbstractContextManager[int]]) -> Iterator[tuple[str, list[Event]]]:
    """Each client's run against a new fastlog, which ``ours`` starts with the port that it is to advertise."""
    for name, run in CLIENTS.items():
        ports: list[int] = []
        with Recorder(lambda ports=ports: ports[0] if ports else 0) as recorder, ours(recorder.port) as port:  # type: ignore[misc]
            ports.append(port)
            make_topics(name, Target("fastlog", port))
            run(recorder.address)
        # a broker asks its advertised address by a request of its own who answers there
        others = {event.connection for event in recorder.events if event.is_request and _key(event.frame) not in API}
        yield name, [event for event in recorder.events if event.connection not in others]


def _key(frame: bytes) -> int:
    return int.from_bytes(frame[4:6], "big")
