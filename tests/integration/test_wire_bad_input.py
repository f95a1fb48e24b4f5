"""Lengths, counts and names that lie: one clear end, nothing allocated for them, nothing lost, nobody else disturbed.

T-19: impossible lengths and counts. T-24: topic names that would leave the log directory, forge a log line, or do not
fit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker

GOOD = raw.entry(b"good")
MAX_REQUEST = 100 * 1024 * 1024
INT32_MAX = 2**31 - 1


def raw_name(length: int, data: bytes = b"") -> bytes:
    """A string that announces any length."""
    return struct.pack(">h", length) + data


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def head(name: bytes) -> bytes:
    return name + struct.pack(">i", 0)


FETCH_REST = struct.pack(">qi", 0, 100)
OFFSETS_REST = struct.pack(">qi", -1, 1)
PRODUCE_REST = struct.pack(">i", len(GOOD)) + GOOD

CLOSING = {
    "length -1": struct.pack(">i", -1),
    "length 0": struct.pack(">i", 0),
    "length 1": struct.pack(">i", 1) + b"\0",
    "length 2^31-1": struct.pack(">i", INT32_MAX),
    "length max + 1": struct.pack(">i", MAX_REQUEST + 1),
    "length -2^31": struct.pack(">i", -(2**31)),
    "produce, topic length -1": raw.frame(raw.PRODUCE, head(raw_name(-1)) + PRODUCE_REST),
    "produce, topic length 0": raw.frame(raw.PRODUCE, head(raw_name(0)) + PRODUCE_REST),
    "produce, topic length 32767": raw.frame(raw.PRODUCE, head(raw_name(32767)) + PRODUCE_REST),
    "fetch, topic length -1": raw.frame(raw.FETCH, head(raw_name(-1)) + FETCH_REST),
    "offsets, topic length -1": raw.frame(raw.OFFSETS, head(raw_name(-1)) + OFFSETS_REST),
    "fetch, topic length 32767": raw.frame(raw.FETCH, head(raw_name(32767)) + FETCH_REST),
    "offsets, topic length 32767": raw.frame(raw.OFFSETS, head(raw_name(32767)) + OFFSETS_REST),
    "multifetch, count -1": raw.frame(raw.MULTIFETCH, struct.pack(">h", -1)),
    "multifetch, count 32767": raw.frame(raw.MULTIFETCH, struct.pack(">h", 32767)),
    "multifetch, count above its parts": raw.frame(raw.MULTIFETCH, struct.pack(">h", 2) + raw.fetch_body("t", 0, 0, 9)),
    "multiproduce, count -1": raw.frame(raw.MULTIPRODUCE, struct.pack(">h", -1)),
    "multiproduce, count 32767": raw.frame(raw.MULTIPRODUCE, struct.pack(">h", 32767)),
    "produce, set size 2^31-1": raw.frame(raw.PRODUCE, raw.place("t", 0) + struct.pack(">i", INT32_MAX) + GOOD),
    "produce, set size -1": raw.frame(raw.PRODUCE, raw.place("t", 0) + struct.pack(">i", -1)),
    "produce, message size 2^31-1": raw.produce_frame("t", 0, struct.pack(">i", INT32_MAX) + GOOD),
}


@pytest.fixture(scope="module")
def watched(broker: Broker) -> Iterator[Broker]:
    """The shared broker with one good message in it; it still serves that message when the module is through."""
    with broker.connect() as client:
        assert client.produce_ack("good", 0, GOOD, raw.FLUSHED).error == 0
    yield broker
    with broker.connect() as client:
        assert client.fetch_ok("good", 0, 0)[: len(GOOD)] == GOOD


@pytest.mark.parametrize("data", CLOSING.values(), ids=CLOSING)
def test_impossible_lengths_close_the_connection(watched: Broker, data: bytes) -> None:
    """Closed without an answer, the directory unchanged, the next connection served."""
    before = listing(watched.log_dirs[0])
    with watched.connect() as client:
        client.send_raw(data)
        assert client.is_closed()
    assert listing(watched.log_dirs[0]) == before
    with watched.connect() as client:
        assert client.fetch_ok("good", 0, 0)[: len(GOOD)] == GOOD


def test_a_fetch_without_a_topic_name_is_an_error(watched: Broker) -> None:
    """A name of length 0 is read as 0.7.2 reads it: FETCH and OFFSETS answer code -1, and the connection goes on."""
    with watched.connect() as client:
        assert client.ask(raw.frame(raw.FETCH, head(raw_name(0)) + FETCH_REST)) == (-1, b"")
        assert client.ask(raw.frame(raw.OFFSETS, head(raw_name(0)) + OFFSETS_REST)) == (-1, bytes(4))
        assert client.fetch_ok("good", 0, 0)[: len(GOOD)] == GOOD


OWN_CLOSING_OR_ERROR = {
    "metadata, 2^31-1 topics": (raw.METADATA, struct.pack(">i", INT32_MAX)),
    "metadata, -2 topics": (raw.METADATA, struct.pack(">i", -2)),
    "metadata, topic length 32767": (raw.METADATA, struct.pack(">i", 1) + raw_name(32767, b"abc")),
    "produce, set size 2^31-1": (
        raw.PRODUCE_ACK,
        struct.pack(">bqhi", 1, -1, -1, -1) + raw.place("t", 0) + struct.pack(">i", INT32_MAX),
    ),
    "held fetch cut short": (raw.HELD_FETCH, struct.pack(">i", 0)),
    "cut points, -1 points": (raw.CUT_POINTS, raw.cut_points_body("good", 0, 0, 14, 10, -1)),
    "create topic, -1 partitions": (raw.CREATE_TOPIC, raw.place("t", -1)),
    "create topic, 2^31-1 partitions": (raw.CREATE_TOPIC, raw.place("t", INT32_MAX)),
}


@pytest.mark.parametrize(("kind", "body"), OWN_CLOSING_OR_ERROR.values(), ids=OWN_CLOSING_OR_ERROR)
def test_impossible_counts_in_own_requests(watched: Broker, kind: int, body: bytes) -> None:
    """An error code or a closed connection, nothing created."""
    with watched.connect() as client:
        client.send_raw(raw.own_frame(kind, body, correlation=3))
        try:
            correlation, answer = client.recv_own()
        except raw.ConnectionClosed:
            pass
        else:
            assert correlation == 3 and answer.error > 0
    assert not watched.has_directory("t", 0)


def test_announced_bytes_cost_nothing(watched: Broker) -> None:
    """60 connections announce 100 MiB each: memory grows with the bytes that came, and others are served."""
    before = sum(watched.memory().values())
    with ExitStack() as stack:
        waiting = [stack.enter_context(watched.connect()) for _ in range(60)]
        for client in waiting:
            client.send_raw(struct.pack(">ih", MAX_REQUEST, raw.PRODUCE))
        with watched.connect() as client:
            assert client.fetch_ok("good", 0, 0)[: len(GOOD)] == GOOD
        assert not any(client.is_closed(within=0.001) for client in waiting)
        assert sum(watched.memory().values()) - before < 20_000_000


# --- topic names ---

REFUSED_UNITS = ["/", "\0", "\1", "\n", "\r", "\t", "\x18", "\x1b", "\x1f", "\x7f", "\x80", "\x85", "\x8f", "\x9f"]
REFUSED_UNITS += ["\ud800", "\ud805", "\udbff", "\udc00", "\udfff", "\ue000", "\uf8ff", "\ufff0", "\ufffa", "\uffff"]
REFUSED_UNITS += ["\U00010000", "\U0001f600", "\U0010ffff"]
WHOLE = [
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "../../../../tmp/x",
    "a/b/c",
    "a" * 256,
    "a" * 1000,
    "a" * 32767,
    "é" * 127,
]
WHOLE += [
    "a" * 254,
    "a" * 255,
    "日" * 85,
    "x\nstarted role=supervisor pid=1",
    "x\r\n\r\nfake",
    "\x1b[2J",
    "//",
    "a/../b",
]
REFUSED = WHOLE + [
    part for unit in REFUSED_UNITS for part in (unit, "a" + unit, unit + "a", "a" + unit + "b", unit * 3)
]
NOT_UTF8 = [b"\xff", b"a\xfe", b"\xc3", b"\xed\xa0", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"a\x80b"]
NOT_UTF8 += [b"\xc0\x80", b"\xf4\x90\x80\x80", b"ok\xe6\x97"]

ACCEPTED = [
    "a",
    "A",
    "0",
    "-",
    "--",
    "-0",
    "a-0",
    "a-0-0",
    "-1",
    "a--1",
    "_",
    "...",
    "..a",
    "a..",
    ".a",
    "a.",
    ".kafka",
]
ACCEPTED += [
    " ",
    " a",
    "a ",
    "a b",
    "con",
    "CON",
    "nul",
    "~",
    "~root",
    "$HOME",
    "%n%s",
    "*",
    "?",
    "a:b",
    "a\\b",
    "'",
    '"',
]
ACCEPTED += ["`id`", ";", "|", "&", "<>", "#", "{}", "a" * 253, "é", "e\u0301", "日本語", "日" * 84, "\u2024", "\u00a0"]
ACCEPTED += ["\u200b", "\u202e", "\ufeff", "\uf900", "\uffef", "\ud7ff", "İ", "ß", "a" * 100 + "é" * 76]


def show(value: str | bytes) -> str:
    return ascii(value)[:40]


def test_there_are_enough_names() -> None:
    """The table holds at least 200 names, none twice."""
    names = [name.encode("utf-8", "surrogatepass") for name in REFUSED + ACCEPTED] + NOT_UTF8
    assert len(names) >= 200
    assert len(set(names)) == len(names)


def test_refused_names(watched: Broker) -> None:
    """Produce closes, fetch and OFFSETS answer -1, own requests answer 100; no file appears anywhere near the logs."""
    names: list[str | bytes] = [*REFUSED, *NOT_UTF8]
    outside = listing(watched.directory)
    before = listing(watched.log_dirs[0])
    with watched.connect() as client:
        for name in names:
            with watched.connect() as producer:
                producer.produce(name, 0, GOOD)
                assert producer.is_closed(), show(name)
            assert client.fetch(name, 0, 0) == (-1, b""), show(name)
            assert client.ask(raw.offsets_frame(name, 0, -1, 1)) == (-1, bytes(4)), show(name)
            assert client.produce_ack(name, 0, GOOD) == (100, -1, -1, -1), show(name)
            assert client.create_topic(name)[0] == 100, show(name)
    assert listing(watched.log_dirs[0]) == before
    assert listing(watched.directory) == outside


def test_names_cannot_forge_log_lines(watched: Broker) -> None:
    """Control characters of a name do not reach the log as they are."""
    names = ["x\nstarted role=forged pid=1", "x\rfastlog-broker: ready port=1", "\x1b[31mred", "a\x00b"]
    for name in names:
        with watched.connect() as client:
            client.produce(name, 0, GOOD)
            assert client.is_closed()
    with watched.connect() as client:
        assert client.produce_ack("good", 0, GOOD).error == 0
    text = watched.log_text()
    assert not [line for line in text.splitlines() if line.startswith(("started", "fastlog-broker: ready port=1"))]
    assert "forged" not in watched.pids(), "escaped, the name may stand in a line"
    assert not any(ord(letter) < 32 and letter != "\n" for letter in text)


def test_accepted_names(watched: Broker) -> None:
    """Each name 0.7.2 accepts makes a topic of its own with a directory of that name, and gives its message back."""
    with watched.connect() as client:
        for number, name in enumerate(ACCEPTED):
            message = raw.entry(b"message %d" % number)
            assert client.produce_ack(name, 0, message, raw.FLUSHED) == (0, 0, 0, len(message)), show(name)
            assert (watched.log_dirs[0] / f"{name}-0").is_dir(), show(name)
        for number, name in enumerate(ACCEPTED):
            assert client.fetch_ok(name, 0, 0) == raw.entry(b"message %d" % number), show(name)
        topics = client.metadata(ACCEPTED).topics
        assert list(topics) == ACCEPTED
        assert {state.error for state in topics.values()} == {0}


def test_accepted_names_survive_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A name that ends in -0, or is nothing else, is still told from its partition number after a restart."""
    names = ["-", "-0", "a-0", "a-0-0", "a--1", " ", "日本語", "...", "a" * 253]
    with Broker(tmp_path_factory.mktemp("names")) as broker:
        with broker.connect() as client:
            for name in names:
                assert client.produce_ack(name, 0, raw.entry(name.encode()), raw.FLUSHED).error == 0
        broker.restart()
        with broker.connect() as client:
            assert set(client.metadata().topics) == set(names)
            for name in names:
                assert raw.deep_payloads(client.read_all(name, 0)) == [name.encode()]
