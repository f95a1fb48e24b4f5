"""The C client of RabbitMQ's streams against a small twin of the broker: no figure unless every message was counted."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from perf.ceiling import programs
from perf.peers import PeerFailed, base, rabbitmq

PUBLISH, CONFIRM, PUBLISH_ERROR, SUBSCRIBE, DELIVER, CREDIT, DELETE, TUNE, CLOSE = 2, 3, 4, 7, 8, 9, 14, 20, 22
ANSWER = 0x8000


class Twin:
    """Speaks the broker's side of one connection: the handshake, then what ``publishing`` or ``chunks`` say."""

    def __init__(self, publishing: Callable[[list[int]], list[bytes]], chunks: list[bytes]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.publishing = publishing
        self.chunks = chunks
        self.messages: list[bytes] = []
        self.keys: list[int] = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self.connection, _ = self.listener.accept()
            with self.connection:
                while True:
                    self.take()

    def read(self, size: int) -> bytes:
        data = self.connection.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise EOFError
        return data

    def say(self, key: int, body: bytes) -> None:
        self.connection.sendall(struct.pack(">iHH", 4 + len(body), key, 1) + body)

    def take(self) -> None:
        (size,) = struct.unpack(">i", self.read(4))
        data = self.read(size)
        key, version = struct.unpack_from(">HH", data)
        assert version == 1
        self.keys.append(key)
        if key == PUBLISH:
            for reply in self.publishing(self.parse(data[4:])):
                self.connection.sendall(reply)
        elif key not in (CREDIT, TUNE):
            code = 2 if key == DELETE else 1
            self.say(key | ANSWER, struct.pack(">iH", struct.unpack_from(">i", data, 4)[0], code))
            if key == 19:
                self.say(TUNE, struct.pack(">ii", 1 << 20, 60))
            if key == SUBSCRIBE:
                for chunk in self.chunks:
                    self.say(DELIVER, b"\1" + chunk)

    def parse(self, body: bytes) -> list[int]:
        publisher, count = struct.unpack_from(">Bi", body)
        assert publisher == 1
        ids, at = [], 5
        for _ in range(count):
            number, size = struct.unpack_from(">qi", body, at)
            ids.append(number)
            self.messages.append(body[at + 12 : at + 12 + size])
            at += 12 + size
        assert at == len(body)
        return ids


def frame(key: int, body: bytes) -> bytes:
    return struct.pack(">iHH", 4 + len(body), key, 1) + body


def confirms(ids: list[int]) -> list[bytes]:
    return [frame(CONFIRM, struct.pack(f">Bi{len(ids)}q", 1, len(ids), *ids))]


def chunk(messages: list[bytes], entries: int | None = None, kind: int = 0) -> bytes:
    """A chunk as the broker stores it; ``entries`` may claim another count."""
    data = b"".join(struct.pack(">i", len(message)) + message for message in messages)
    count = len(messages) if entries is None else entries
    return struct.pack(">bbHIqqqIIII", 0x50, kind, count, count, 0, 1, 0, 0, len(data), 0, 0) + data


@pytest.fixture
def twins() -> Iterator[Callable[..., Twin]]:
    made: list[Twin] = []

    def make(publishing: Callable[[list[int]], list[bytes]] = confirms, chunks: tuple[bytes, ...] = ()) -> Twin:
        made.append(Twin(publishing, list(chunks)))
        return made[-1]

    yield make
    for twin in made:
        twin.listener.close()
        twin.thread.join(30)


def client(twin: Twin, mode: str, messages: int, *options: str) -> base.Figures:
    program = programs.build(rabbitmq.HERE / "stream_client.c", directory=rabbitmq.BUILD)
    command = [str(program), mode, "--port", str(twin.port), "--messages", str(messages), "--timeout", "20", *options]
    return base.figures(base.run("stream_client", command, timeout=60), messages)


def test_every_message_is_sent_and_confirmed(twins: Callable[..., Twin]) -> None:
    """As data sections of AMQP 1.0, in batches, the last one smaller; a small window only makes it wait."""
    twin = twins()
    figures = client(twin, "produce", 1234, "--batch", "50", "--size", "100", "--window", "70")
    assert figures["rate"] == pytest.approx(1234 / figures["seconds"], rel=0.01)
    assert twin.keys.count(PUBLISH) == 25
    assert len(twin.messages) == 1234
    assert all(message.startswith(b"\0Su\xa0\x64") and len(message) == 105 for message in twin.messages)
    assert len(set(twin.messages)) > 1000


def test_a_long_message_has_a_long_length(twins: Callable[..., Twin]) -> None:
    """From 256 bytes on the section's length takes four."""
    twin = twins()
    client(twin, "produce", 3, "--size", "300")
    assert [message[:8] for message in twin.messages] == [b"\0Su\xb0" + struct.pack(">i", 300)] * 3


def test_confirms_in_pieces_are_waited_for(twins: Callable[..., Twin]) -> None:
    """The clock ends with the last one, however they are cut and whatever stands between them."""

    def slowly(ids: list[int]) -> list[bytes]:
        heartbeat = frame(23, b"")
        data = b"".join(heartbeat + confirms([number])[0] for number in ids)
        return [data[at : at + 5] for at in range(0, len(data), 5)]

    assert client(twins(slowly), "produce", 60, "--batch", "20")["messages"] == 60


def test_a_refused_message_ends_the_run(twins: Callable[..., Twin]) -> None:
    """And so does a broker that closes, before all is confirmed."""
    refused = frame(PUBLISH_ERROR, struct.pack(">BiqH", 1, 1, 0, 18))
    with pytest.raises(PeerFailed, match=r"refused a message \(code 18\)"):
        client(twins(lambda ids: [refused]), "produce", 100)
    closed = frame(CLOSE, struct.pack(">iHH", 1, 15, 0))
    with pytest.raises(PeerFailed, match="clos"):
        client(twins(lambda ids: [closed]), "produce", 100)


def test_all_chunks_are_counted(twins: Callable[..., Twin]) -> None:
    """Credit is given back for each, and the broker's own notes count nothing."""
    chunks = (chunk([b"x" * 205] * 300), chunk([b"notes"], kind=1), chunk([b"x" * 205] * 700))
    twin = twins(chunks=chunks)
    assert client(twin, "consume", 1000)["messages"] == 1000
    twin.thread.join(30)
    assert twin.keys.count(CREDIT) == 3


BAD = {
    "fewer than claimed": chunk([b"x" * 205] * 9, entries=10),
    "a batch inside": chunk([b"x" * 205] * 9)[:48] + b"\xff" * 400,
    "cut short": chunk([b"x" * 205] * 10)[:-1],
    "no header": b"\x50\0\0",
    "another format": b"\x51" + chunk([b"x" * 205] * 10)[1:],
    "too many": chunk([b"x" * 205] * 11),
    "short messages": chunk([b"x" * 100] * 10),
}


@pytest.mark.parametrize("name", BAD)
def test_a_chunk_that_is_wrong_is_no_figure(twins: Callable[..., Twin], name: str) -> None:
    """Whatever is wrong with it, the client fails instead of counting on."""
    with pytest.raises(PeerFailed, match="stream_client"):
        client(twins(chunks=(BAD[name],)), "consume", 10)


def test_options_are_checked() -> None:
    """Status 2 and the usage."""
    program = str(programs.build(rabbitmq.HERE / "stream_client.c", directory=rabbitmq.BUILD))
    for wrong in ([], ["serve"], ["produce", "--port"], ["produce", "--port", "0"], ["consume", "--no", "1"]):
        with pytest.raises(PeerFailed, match=r"status 2\nstream_client: .*\nusage: "):
            base.run("stream_client", [program, *wrong])
