"""A broker of threads and byte strings, for what a real one does not do on request: dying at a chosen answer,
speaking plain 0.7, lying. It checks nothing that it is sent.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

from fastlog._segment import payloads
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.frames import FrameReader
from tests.harness.hostile_answers import Reply
from tests.harness.server import Server

Answer = Callable[[rq.Request], bytes | None]


TODAY = b"\x00\x12"
"""What the first request of today's clients begins with: ApiVersions."""


class FakeBroker(Server):
    """Serves ``logs`` (by topic and partition) on a port of its own while the ``with`` block lasts.

    ``own`` False: closes the connection on fastlog's own requests, as 0.7 does. ``hook(request)`` runs before each
    request is handled: bytes it returns are the answer; raising ``ConnectionError`` closes the connection. ``after``
    is the same, once the request has been handled and before it is answered. ``pieces``, where it is set, says in what
    pieces an answer goes out, and whether the connection stays.
    """

    def __init__(
        self,
        *,
        own: bool = True,
        partitions: int = 1,
        max_message_bytes: int = 1_000_000,
        hook: Answer | None = None,
        after: Answer | None = None,
    ) -> None:
        super().__init__()
        self.broker_id = 0
        self.own = own
        self.partitions = partitions
        self.max_message_bytes = max_message_bytes
        self.hook = hook
        self.after = after
        self.pieces: Callable[[rq.Request, bytes], Reply | None] | None = None
        self.logs: dict[tuple[str, int], bytes] = {}
        self.made: dict[tuple[str, int], int] = {}
        """When a log was made, in ms, as far as the broker tells."""
        self.refused: dict[str, int] = {}
        """Topics that are not described, with the error code in place of it."""
        self.seen: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.sets: list[bytes] = []
        self._lock = threading.Lock()

    def make_anew(self, topic: str, partition: int, log: bytes, made: int) -> None:
        """As a broker that comes back at once with another log: nobody sees the new one on an old connection."""
        with self._lock:
            self.made[topic, partition], self.logs[topic, partition] = made, log
            self.cut()

    def serve(self, connection: socket.socket) -> None:
        """Answer requests until the client leaves, or a hook ends the connection."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = FrameReader(2**31 - 1)
        while data := connection.recv(1 << 16):
            reader.feed(data)
            for body in reader.frames():
                if body.startswith(TODAY):
                    return  # as a broker that knows nothing of today's protocol
                request = wire07.decode_request(body)
                self.seen[type(request).__name__] += 1
                answer = self._answered(request)
                if answer and not self._give(connection, request, answer):
                    return

    def _give(self, connection: socket.socket, request: rq.Request, answer: bytes) -> bool:
        reply = self.pieces(request, answer) if self.pieces else None
        if reply is None:
            connection.sendall(answer)
        else:
            for pause, piece in reply.pieces:
                time.sleep(pause)
                connection.sendall(piece)
            if not reply.stays:
                return False
        self.answered[type(request).__name__] += 1
        return True

    def _answered(self, request: rq.Request) -> bytes | None:
        if not self.own and hasattr(request, "correlation_id"):
            raise ConnectionError
        answer = self.hook(request) if self.hook else None
        if answer is None:
            with self._lock:
                answer = self._handled(request)
            changed = self.after(request) if self.after else None
            answer = changed if changed is not None else answer
        return answer

    def _append(self, topic: str, partition: int, message_set: bytes) -> tuple[int, int, int]:
        partition = max(partition, 0)
        log = self.logs.get((topic, partition), b"")
        self.logs[topic, partition] = log + message_set
        self.sets.append(message_set)
        return partition, len(log), len(log) + len(message_set)

    def _handled(self, request: rq.Request) -> bytes | None:
        match request:
            case wire07.ProduceRequest():
                self._append(request.topic, request.partition, request.message_set)
                return None
            case wire07.ProduceAckRequest():
                placed = self._append(request.topic, request.partition, request.message_set)
                return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 0, *placed))
            case wire07.FetchRequest():
                return wire07.encode_fetch(*self._fetched(request))
            case wire07.MultiFetchRequest():
                return wire07.encode_multifetch(map(self._fetched, request.fetches))
            case wire07.HeldFetchRequest():
                log = self.logs.get((request.topic, request.partition), b"")
                if request.partition >= self._count(request.topic):
                    return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 3, 0, 0))
                if request.offset > len(log):
                    return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 1, len(log), 0))
                if request.offset == len(log) and request.max_wait_ms:
                    threading.Event().wait(min(0.05, request.max_wait_ms / 1000))  # shorter than asked is allowed
                found = log[request.offset :][: request.max_bytes]
                return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 0, len(log), 0, found))
            case rq.OffsetsRequest():
                end = len(self.logs.get((request.topic, request.partition), b""))
                borders = [end, 0] if end and request.time != rq.TIME_EARLIEST else [0]
                return rs.encode_offsets(0, borders[: request.max_count])
            case rq.CutPointsRequest():
                log = self.logs.get((request.topic, request.partition), b"")
                return rs.encode_cut_points(rs.CutPointsAnswer(request.correlation_id, 0, cut_points(log, request)))
            case rq.MetadataRequest():
                return self._metadata(request)
            case rq.CreateTopicRequest():
                self.logs.setdefault((request.topic, 0), b"")
                return rs.encode_create_topic(rs.CreateTopicAnswer(request.correlation_id, 0, request.partitions or 1))
        raise ConnectionError

    def _count(self, topic: str) -> int:
        """How many partitions the topic may have."""
        return max([self.partitions, *(number + 1 for name, number in list(self.logs) if name == topic)])

    def _fetched(self, request: wire07.FetchRequest) -> wire07.FetchAnswer:
        log = self.logs.get((request.topic, request.partition), b"")
        if request.partition >= self._count(request.topic):
            return wire07.FetchAnswer(3)
        if request.offset > len(log):
            return wire07.FetchAnswer(1)
        return wire07.FetchAnswer(0, log[request.offset :][: request.max_bytes])

    def _metadata(self, request: rq.MetadataRequest) -> bytes:
        names = {topic for topic, _ in self.logs} if request.topics is None else set(request.topics)
        topics = []
        for name in sorted(names):
            if name in self.refused:
                topics.append(rs.TopicMetadata(name, self.refused[name], 0))
                continue
            found = tuple(
                rs.PartitionMetadata(partition, rs.STATE_OK, 0, len(log), len(log), self.made.get((name, partition), 0))
                for (topic, partition), log in sorted(self.logs.items())
                if topic == name
            )
            topics.append(rs.TopicMetadata(name, 0, self.partitions, found))
        return rs.encode_metadata(
            rs.MetadataAnswer(
                correlation_id=request.correlation_id,
                error=0,
                broker_id=self.broker_id,
                advertised_host="127.0.0.1",
                port=self.port,
                max_message_bytes=self.max_message_bytes,
                max_request_bytes=100 * 2**20,
                max_wait_ms=30_000,
                lowest_own_id=rq.LOWEST_OWN,
                highest_own_id=rq.HIGHEST_OWN,
                topics=tuple(topics),
            ),
            request.version,
        )


def cut_points(log: bytes, request: rq.CutPointsRequest) -> tuple[int, ...]:
    """The boundaries that are asked for, by walking from the start of the log."""
    points: list[int] = []
    at = 0
    while at < request.end and len(points) < request.max_points:
        if at >= (points[-1] + request.step_bytes if points else request.start):
            points.append(at)
        at += 4 + int.from_bytes(log[at : at + 4], "big")
    if at == request.end and len(points) < request.max_points:
        points.append(at)
    return tuple(points)


def stored(broker: FakeBroker, topic: str = "t", partition: int = 0) -> list[bytes]:
    """The payloads of a partition's log."""
    return payloads(broker.logs.get((topic, partition), b""))


def stalled(release: threading.Event) -> Callable[[rq.Request], bytes | None]:
    """A hook that holds produce requests back."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest | wire07.ProduceRequest):
            release.wait(60)
        return None

    return hook
