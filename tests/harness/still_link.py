"""One broker's link of a producer without its thread: a test takes each of its turns, and moves its clock.

So what a link does at a moment, and until when it would sleep, is known to the nanosecond, and no load changes it.
What goes over the wire is real: the test is the broker behind a listening socket.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import pytest

from fastlog._segment import payloads
from fastlog.client.addresses import Address
from fastlog.errors import FastlogError
from fastlog.producer import link as link_module
from fastlog.producer import refusals as refusals_module
from fastlog.producer._buffer import Buffer, Quota
from fastlog.producer._frames import Chunk
from fastlog.producer._outbox import READABLE, Outbox
from fastlog.producer.brokers import BrokerAddress, Directory, frame_header
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import Delivery
from fastlog.producer.ledger import Ledger
from fastlog.producer.link import Link
from fastlog.producer.waiting import OneShotEvent, OwnedThread
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.frames import FrameReader
from tests.harness.timing import PATIENCE

_MOST_TURNS = 20
NEVER = -1
"""What a link that waits for nothing but a wake-up says it sleeps until."""


class Clock:
    """Stands still until the test moves it. It begins with a whole second: eighths of one are exact from there."""

    def __init__(self) -> None:
        self._ms = (int(time.monotonic()) + 10) * 1000

    def monotonic(self) -> float:
        return self._ms / 1000

    def monotonic_ns(self) -> int:
        return self._ms * 1_000_000

    def move(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass."""
        self._ms += ms


class StillOutbox(Outbox):
    """Sleeps not at all, and notes until when it would; what is taken is taken at the clock's time."""

    clock: Clock
    slept: list[tuple[bool, bool, int]]
    is_readable = False

    def sleep(self, fd: int, for_writing: bool, full: bool, until_ns: int) -> int:
        self.slept.append((for_writing, full, until_ns))
        waiting = select.poll()
        if fd >= 0:
            waiting.register(fd, select.POLLIN)
        self.is_readable = bool(fd >= 0 and waiting.poll(0))
        return READABLE if self.is_readable else 0

    def take(self, everything: bool = False, max_bytes: int = 2**58) -> list[Chunk]:
        chunks = super().take(everything, max_bytes)
        for chunk in chunks:
            chunk.taken_ns = self.clock.monotonic_ns()
        return chunks


class Peer:
    """The broker's end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._reader = FrameReader(2**24)
        connection.settimeout(PATIENCE)

    def request(self) -> wire07.ProduceAckRequest | wire07.ProduceRequest:
        """Read and decode the next request."""
        while (body := self._reader.frame_or_none()) is None:
            data = self.connection.recv(1 << 16)
            assert data, "the producer ended the connection"
            self._reader.feed(data)
        request = wire07.decode_request(body)
        assert isinstance(request, wire07.ProduceAckRequest | wire07.ProduceRequest)
        return request

    def messages(self) -> list[bytes]:
        """Those of the next request, which is not answered."""
        return payloads(self.request().message_set)

    def is_at_end(self) -> bool:
        """Whether the producer has ended the connection, or its half of it."""
        return self.connection.recv(1) == b""

    def is_quiet(self) -> bool:
        """Whether the broker's end has received nothing."""
        waiting = select.poll()
        waiting.register(self.connection, select.POLLIN)
        return not waiting.poll(0)


class StillLink:
    """The link, and everything around it that a producer has. ``accept`` gives the broker's end of a connection."""

    def __init__(self, clock: Clock, acks: int, fields: dict[str, Any], options: dict[str, Any]) -> None:
        self.clock = clock
        self.told: list[Delivery] = []
        self.slept: list[tuple[bool, bool, int]] = []
        self.ups: list[bool] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.port: int = self._listener.getsockname()[1]
        self._peers: list[Peer] = []
        config = ProducerConfig(
            **{"broker_list": f"127.0.0.1:{self.port}", "producer_type": "async", "queue_time_ms": 3_600_000, **fields}
        )
        self.quota = Quota(config.queue_messages, config.queue_bytes)
        report = self.told.append if options.get("reports", True) else None
        self.ledger = Ledger(self.quota, report, options.get("on_failed"))
        directory = Directory(
            BrokerAddress(7, Address("127.0.0.1", self.port)), config.connect_timeout_ms / 1000, "a hint"
        )
        self.directory = directory
        self.config = config
        self.acks = acks
        self.link = Link(directory, config, self.ledger, acks, config.max_message_bytes)
        self.link.on_state_change = lambda: self.ups.append(self.link.is_up)
        outbox = self.link.outbox
        assert isinstance(outbox, StillOutbox)
        self._outbox = outbox
        outbox.slept = self.slept
        self._buffers: dict[tuple[str, int], Buffer] = {}

    def close(self) -> None:
        """End the link as its thread would."""
        for peer in self._peers:
            peer.connection.close()
        self._listener.close()
        if not self.link.finished.is_set():
            self.link.abort(FastlogError("the test is over"))
            assert not self.link._step()
            self.link._end()

    def put(self, messages: Sequence[bytes], partition: int = 0, *, topic: str = "t", batch: int = 1, codec: int = 0,
            ticket: object = None, seal: bool = True) -> None:  # fmt: skip
        """Leave messages, ``batch`` to a request, to the link."""
        buffer = self._buffers.get((topic, partition))
        if buffer is None:
            header = frame_header(topic, partition, self.acks)
            buffer = self._buffers[topic, partition] = Buffer(
                self.link.outbox, 7, topic, partition, codec, header, self.acks > 0, batch, 1 << 20, 1_000_000
            )
        buffer.extend(list(messages), 0, ticket, seal, True)

    def step(self) -> Self:
        """Let the link take its turns until nothing is there to be read."""
        for _ in range(_MOST_TURNS):
            assert self.link._step(), "the link ended"
            if not self._outbox.is_readable:
                return self
        raise AssertionError("it reads, and what there is to be read stays there")

    def turn(self) -> Self:
        """Let the link take one turn."""
        assert self.link._step(), "the link ended"
        return self

    def ends(self) -> bool:
        """Whether the link ends with its next turns; it has then done what there is to do at the end."""
        for _ in range(_MOST_TURNS):
            if not self.link._step():
                self.link._end()
                return True
            if not self._outbox.is_readable:
                return False
        raise AssertionError("it reads, and what there is to be read stays there")

    def accept(self) -> Peer:
        """The broker's end of the connection that the link has made."""
        self._listener.settimeout(PATIENCE)
        peer = Peer(self._listener.accept()[0])
        self._peers.append(peer)
        return peer

    def refuse(self) -> None:
        """Refuse connections, as if no broker ran."""
        self._listener.close()

    def listen_again(self) -> None:
        """Accept connections again."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=16)

    def say(self, peer: Peer, *data: bytes) -> Self:
        """Let bytes reach the link's connection; the next turn finds them."""
        for piece in data:
            peer.connection.sendall(piece)
        return self.wait_readable()

    def answer(self, peer: Peer, *codes: int, offset: int = 0) -> Self:
        """Read ``count`` requests and answer them."""
        answers = b""
        for code in codes:
            request = peer.request()
            assert isinstance(request, wire07.ProduceAckRequest)
            answers += answer_to(request, code, offset)
        return self.say(peer, answers)

    def waits_to_write(self) -> bool:
        """Whether its last sleep would have ended with room on the connection."""
        return self.slept[-1][0]

    def wait_readable(self) -> Self:
        """What was sent to the link, or the end, has reached its socket."""
        connection = self.link._connection
        assert connection is not None
        waiting = select.poll()
        waiting.register(connection.fileno(), select.POLLIN)
        assert waiting.poll(PATIENCE * 1000)
        return self

    def end(self, peer: Peer) -> Self:
        """Close the broker's end, after which the link's sees it."""
        peer.connection.close()
        return self.wait_readable()

    def sleeps_ms(self) -> float:
        """For how long the link would sleep now, to the microsecond; ``NEVER`` when only a wake-up ends that."""
        until = self.slept[-1][2]
        return NEVER if until < 0 else round((until - self.clock.monotonic_ns()) / 1e6, 3)

    def is_full(self) -> bool:
        """Whether the link would sleep through new messages."""
        return self.slept[-1][1]

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection now."""
        return self.link._connection is not None

    def flush(self) -> OneShotEvent:
        """Ask for a flush."""
        return self.link.request_flush()

    def counts(self) -> tuple[int, int, int]:
        """How many messages are delivered, have failed, and are in flight."""
        return self.link.delivered, self.link.failed, self.link.in_flight


def answer_to(request: wire07.ProduceAckRequest, code: int = 0, offset: int = 0) -> bytes:
    """The answer of a broker that stored a request at an offset, or refuses it."""
    if code:
        return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, code, request.partition, -1, -1))
    end = offset + len(request.message_set)
    return wire07.encode_produce_ack(
        rs.ProduceAckAnswer(request.correlation_id, 0, max(request.partition, 0), offset, end)
    )


@contextmanager
def still_link(
    *,
    acks: int = rq.ACKS_APPENDED,
    chance: float = 1.0,
    reports: bool = True,
    on_failed: Any = None,
    **fields: Any,
) -> Iterator[StillLink]:
    """A link in a test's hands. ``chance``: where a time is shortened by chance, it is this much of it."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        times = SimpleNamespace(monotonic=clock.monotonic, monotonic_ns=clock.monotonic_ns)
        patch.setattr("random.uniform", lambda low, high: min(max(low, chance), high))
        for module in (link_module, refusals_module):
            patch.setattr(module, "time", times)
        patch.setattr(OwnedThread, "start", lambda thread: None)

        def outbox(*arguments: Any) -> StillOutbox:
            made = StillOutbox(*arguments)
            made.clock = clock
            return made

        patch.setattr(link_module, "Outbox", outbox)
        made = StillLink(clock, acks, fields, {"reports": reports, "on_failed": on_failed})
        try:
            yield made
        finally:
            made.close()
