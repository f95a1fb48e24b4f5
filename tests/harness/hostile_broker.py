"""A broker that lies, with the books of what it said: for tests that ask a client where its results come from."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from functools import cache

from fastlog.errors import InvalidRequestError
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import hostile_answers as lies
from tests.harness import raw_client as raw
from tests.harness import wire07
from tests.harness.frames import FrameReader
from tests.harness.hostile_answers import Reply, whole
from tests.harness.server import Server

OWN = (wire07.ProduceAckRequest, wire07.HeldFetchRequest, rq.MetadataRequest, rq.LocalReadRequest)
_ACK_BODY_BYTES = 26
_ACK_BYTES = 4 + _ACK_BODY_BYTES
_HEAVY = 0.01
_EARLY = 0.02
_MAX_FRAME_BYTES = 2**24


class HostileBroker(Server):
    """Answers each request with what the generator chooses, on any number of connections, while the block lasts.

    ``truth``: how many answers are left as they should be. ``metadata_truth``: the same for metadata, without which no
    other request comes. ``own`` False: a 0.7 broker. ``decoy``: a directory with other segment files, told to readers.
    """

    def __init__(
        self,
        seed: int,
        *,
        own: bool = True,
        truth: float = 0.3,
        metadata_truth: float = 0.7,
        decoy: str = "/dev/t-0",
    ) -> None:
        super().__init__()
        self.lies = 0
        """Answers given that are not what an honest broker would say."""
        self.acknowledged: set[bytes] = set()
        """Payloads in sets that some answer, honest or not, rightly says are appended."""
        self._random = random.Random(seed)
        self._own = own
        self._truth = truth
        self._metadata_truth = metadata_truth
        self._decoy = decoy
        self._lock = threading.Lock()

    def serve(self, connection: socket.socket) -> None:
        """Answer requests, wrongly as a rule."""
        reader = FrameReader(_MAX_FRAME_BYTES)
        told = _Told()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        early = self._early()
        if early:
            connection.sendall(early)
        while data := connection.recv(65536):
            reader.feed(data)
            for body in reader.frames():
                reply = self._reply(body, told)
                for pause, piece in reply.pieces:
                    if pause:
                        time.sleep(pause)
                    connection.sendall(piece)
                if not reply.stays:
                    return

    def _early(self) -> bytes:
        """An answer before there is a request. A client of 0.7 cannot tell it from one to its first request."""
        with self._lock:
            if self._random.random() >= _EARLY:
                return b""
            self.lies += 1
            poison = raw.entry(lies.POISON if self._own else b"a")
            return self._random.choice(
                [
                    wire07.encode_held_fetch(rs.HeldFetchAnswer(2**31 - 1, 0, 0, 0, poison)),
                    wire07.encode_produce_ack(rs.ProduceAckAnswer(2**31 - 1, 0, 0, 0, 10)),
                    self._random.randbytes(3),
                    b"\0",
                ]
            )

    def _reply(self, body: bytes, told: _Told) -> Reply:
        with self._lock:
            source = self._random
            try:
                request = wire07.decode_request(body)
            except InvalidRequestError:  # one of today's protocol: whoever finds no topic looks for it there, too
                return Reply(stays=False)
            if not self._own and isinstance(request, OWN):
                return Reply(stays=False)
            if isinstance(request, wire07.ProduceRequest):
                return self._unasked()
            truth = self._metadata_truth if isinstance(request, rq.MetadataRequest) else self._truth
            honest, frame = self._answer(request, source.random() < truth)
            reply = whole(frame)
            if not honest and source.random() < 0.9:
                reply = lies.spoiled(source, frame, isinstance(request, OWN))
            self.lies += not honest
            if isinstance(request, wire07.ProduceAckRequest):
                told.request(request.correlation_id, raw.deep_payloads(request.message_set))
                self.acknowledged.update(told.answer(reply.data))
            return reply

    def _unasked(self) -> Reply:
        """The reply to a produce request that asks for no answer."""
        if self._random.random() < self._truth:
            return Reply()
        self.lies += 1
        return whole(self._random.randbytes(self._random.choice((1, 4, 30))), stays=self._random.random() < 0.5)

    def _answer(self, request: rq.Request, honest: bool) -> tuple[bool, bytes]:
        """A well-formed answer, and whether there is nothing wrong with what it says."""
        source = self._random
        data = source.choice(_sets())
        if source.random() < _HEAVY:
            data = source.choice(_heavy())
        if honest:
            data = lies.HONEST
        match request:
            case wire07.FetchRequest():
                return honest, wire07.encode_fetch(0, data)
            case wire07.MultiFetchRequest():
                count = len(request.fetches) if honest else source.choice([2, 2, 0, 1, 3, 100])
                return honest, wire07.encode_multifetch(wire07.FetchAnswer(0, data) for _ in range(count))
            case wire07.HeldFetchRequest():
                watermark = len(data) if honest else source.choice([0, len(data), 2**63 - 1, -1])
                return honest, wire07.encode_held_fetch(
                    rs.HeldFetchAnswer(request.correlation_id, 0, watermark, 0, data)
                )
            case rq.OffsetsRequest():
                offsets = [0] if honest else source.choice([[], [5], [-1], [2**63 - 1], [1] * 9])
                return honest, rs.encode_offsets(0, offsets)
            case rq.LocalReadRequest():
                directories = (self._decoy, "/dev/t-0", "/proc/self/t-0", "t-0", "/tmp/../t-0", "\0/t-0", "/" * 4000)
                bases = source.choice([(), (0,), (0, 1, 2), (-5, 0), (2**63 - 1,)])
                return False, rs.encode_local_read(
                    rs.LocalReadAnswer(
                        request.correlation_id, 0, source.choice(directories), "kafka-0.7", 0, 2**62, bases
                    )
                )
            case wire07.ProduceAckRequest():
                place = (max(request.partition, 0), 0, len(request.message_set))
                return honest, wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 0, *place))
            case rq.MetadataRequest():
                return honest, self._metadata(request, honest)
        raise AssertionError(request)

    def _metadata(self, request: rq.MetadataRequest, honest: bool) -> bytes:
        source = self._random

        def claim(true: int) -> int:
            return true if honest else source.choice([true, true, -1, 0, 1, 2**31 - 1])

        name = "t" if honest else source.choice(["t", "", "u" * 300])
        part = rs.PartitionMetadata(0, 0, 0, 0, len(lies.HONEST))
        parts = (part,) if honest else (part,) * source.choice([0, 1, 1, 2, 1000])
        topics = (rs.TopicMetadata(name, 0, claim(2), parts),) if request.topics != () else ()
        limits = (claim(10**6), claim(10**8), claim(1000))
        return rs.encode_metadata(rs.MetadataAnswer(request.correlation_id, 0, 0, "h", -1, *limits, 1000, 1005, topics))


class _Told:
    """What one connection was told about its requests, also by pieces of answers that only together make sense."""

    def __init__(self) -> None:
        self._asked: dict[bytes, list[bytes]] = {}
        self._stream = b""

    def request(self, correlation_id: int, payloads: list[bytes]) -> None:
        """Somebody wants to know whether these are appended."""
        self._asked[struct.pack(">iih", _ACK_BODY_BYTES, correlation_id, 0)] = payloads

    def answer(self, data: bytes) -> list[bytes]:
        """The payloads that a client must take for appended, now that it gets these bytes as well."""
        if not self._asked:
            return []
        self._stream += data
        found = []
        for head in list(self._asked):
            at = self._stream.find(head)
            if 0 <= at <= len(self._stream) - _ACK_BYTES:
                found += self._asked.pop(head)
        self._stream = self._stream[-_ACK_BYTES:]
        return found


@cache
def _sets() -> list[bytes]:
    return lies.message_sets()


@cache
def _heavy() -> list[bytes]:
    return lies.heavy_sets()


@cache
def known_payloads() -> frozenset[bytes]:
    """What a client may show that read from it."""
    return frozenset().union(*map(lies.payloads_within, (*_sets(), *_heavy())))
