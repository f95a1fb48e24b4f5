"""What one request may do before others have a turn, and names that are judged without Python."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.topics import valid_topic
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.raw_format import deep_payloads
from tests.harness.workers import Workers, reset

GOOD = raw.entry(b"good")
TURN_PARTS = 512
DESCRIPTORS = 16
"""Of segments that a processor of the harness has."""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path, partitions=4) as running:
        with running.connect() as client:
            assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
            assert client.fetch("t", 0, 0).error == 0
        running.wait_still()
        yield running


@pytest.mark.parametrize("parts", [1, 256, 257, 512, 513, 10_000])
def test_the_parts_of_one_turn(workers: Workers, parts: int) -> None:
    """Each part is looked at and put into the answer; of both together, no more than 512 at a time.

    The first time is that of the request, the second before the loop waits again.
    """
    asked = raw.multifetch_frame([("t", 0, 0, 14)] * parts)
    with workers.connect() as client:
        client.fetch("t", 0, 0)
        workers.wait_still()
        before = workers.processors[0].loop.turns
        client.send_raw(asked)
        one = struct.pack(">ih", len(GOOD) + 2, 0) + GOOD
        assert client.recv_frame() == struct.pack(">h", 0) + one * parts
        assert workers.processors[0].loop.turns - before >= (2 * parts - 1) // TURN_PARTS - 1


def test_others_are_answered_between_the_turns_of_a_request(workers: Workers) -> None:
    """A fetch that comes while requests for very many parts are under way is answered before they are."""
    with ExitStack() as stack:
        many = [stack.enter_context(workers.connect()) for _ in range(4)]
        other = stack.enter_context(workers.connect())
        for client in many:
            client.send_raw(raw.multifetch_frame([("t", 0, 0, 14)] * 32_767))
        for _ in range(20):
            assert other.fetch("t", 0, 0).body == GOOD
        assert workers.count("fetch_requests") >= 21
        for client in many:
            assert len(client.recv_frame()) == 2 + 32_767 * (6 + len(GOOD))
    wait_until("all is given back", lambda: not workers.processors[0].loop.answer_bytes)


@pytest.mark.parametrize("parts", [600, 5000, 32_767])
def test_a_client_that_goes_in_the_middle(workers: Workers, parts: int) -> None:
    """What its request had pinned and made is given back, whichever turn it was in."""
    before = workers.held()
    for pause in (0, 0, 0.0005, 0.001, 0.002, 0.004, 0.008):
        client = workers.connect()
        client.send_raw(raw.multifetch_frame([("t", 0, 0, 14), ("gone", 0, 0, 5)] * (parts // 2)) * 2)
        time.sleep(pause)
        reset(client)
    workers.wait_held(before)
    wait_until("all is given back", lambda: not workers.processors[0].loop.answer_bytes)


@pytest.mark.parametrize("parts", [2, 2000])
def test_requests_that_are_malformed_at_their_end_hold_nothing(workers: Workers, parts: int) -> None:
    """In their first turn or a later one: what they had pinned does not count as taken for those after them."""
    before = workers.held()
    body = raw.multifetch_frame([("t", 0, 0, 14)] * parts)
    for _ in range(DESCRIPTORS):
        with workers.connect() as client:
            client.send_raw(struct.pack(">i", len(body) - 5) + body[4:-1])
            assert client.is_closed()
    workers.wait_held(before)
    with workers.connect() as client:
        assert client.multifetch([("t", 0, 0, 14)]) == [(0, GOOD)]


# -- many small requests -----------------------------------------------------------------------------------------------

SPREAD = 17
"""More partitions than are written together: each part of a request, and each request, costs a write."""


def many(kind: str) -> tuple[bytes, int]:
    """What a loop is busy with for tens of milliseconds at least, in few bytes, and how many bytes answer it."""
    if kind == "parts":
        return raw.multiproduce_frame([(f"u{number % SPREAD}", 0, GOOD) for number in range(32_767)]), 0
    if kind == "produces":
        return b"".join(raw.produce_frame(f"u{number % SPREAD}", 0, GOOD) for number in range(32_767)), 0
    if kind == "offsets":
        return raw.offsets_frame("absent", 0, raw.LATEST, 1) * 32_767, (10 + 8) * 32_767
    return raw.fetch_frame("t", 0, 0, 14) * 65_534, (6 + len(GOOD)) * 65_534


@pytest.mark.parametrize("kind", ["parts", "produces", "offsets", "fetches"])
def test_others_have_turns_while_many_small_requests_are_handled(workers: Workers, kind: str) -> None:
    """As the clock says: one costs no more than its bytes, another a write or a call of Python."""
    asked, answer_bytes = many(kind)
    with workers.connect() as client:
        for number in range(SPREAD):
            assert client.produce_ack(f"u{number}", 0, GOOD).error == 0
        client.fetch("t", 0, 0)
        workers.wait_still()
        before = workers.processors[0].loop.turns
        sending = threading.Thread(target=client.send_raw, args=(asked + raw.fetch_frame("t", 0, 0, 14),))
        sending.start()
        left = answer_bytes + 6 + len(GOOD)
        while left:
            left -= len(client.socket.recv(1 << 20))
        sending.join()
        assert workers.processors[0].loop.turns - before >= 10


def test_turns_change_no_result(workers: Workers) -> None:
    """Whoever sends all at once and whoever sends it in small pieces has the same logs and the same answers."""

    def asked(name: str) -> bytes:
        topics = [f"{name}{number}" for number in range(SPREAD)]
        parts = [(topics[number % SPREAD], 0, raw.entry(b"%d" % number)) for number in range(5000)]
        acked = [
            raw.own_frame(
                raw.PRODUCE_ACK,
                raw.produce_ack_body(
                    topics[number % SPREAD], 0, raw.entry(b"%d" % number, crc=None if number % 50 else 9), 1
                ),
                correlation=number,
            )
            for number in range(1000)
        ]
        ends = [raw.offsets_frame(topic, 0, raw.EARLIEST, 1) for topic in topics]
        return raw.multiproduce_frame(parts) + b"".join(acked + ends) + raw.multiproduce_frame(parts[::-1])

    found = []
    for name, size in (("a", 1 << 30), ("b", 997)):
        data = asked(name)
        with workers.connect() as client:
            for at in range(0, len(data), size):
                client.send_raw(data[at : at + size])
            answers = [client.recv_frame() for _ in range(1000 + SPREAD)]
            client.fetch("t", 0, 0)
            stored = [(workers.directory / f"{name}{number}-0").glob("*.kafka") for number in range(SPREAD)]
            found.append((answers, [next(path).read_bytes().rstrip(b"\0") for path in stored]))
    assert found[0] == found[1]
    assert sum(len(deep_payloads(log)) for log in found[0][1]) == 2 * 5000 + 980


# -- names -------------------------------------------------------------------------------------------------------------

LETTERS = [
    "a", "Z", "0", ".", "-", "_", " ", "~", "\x1f", "\x7f", "\x80", "\x9f", "\xa0", "é", "\u07ff",
    "\u0800", "€", "\u0fff", "\u1000", "\ud7ff", "\ue000", "\uf8ff", "\uf900", "\uffef", "\ufff0", "\uffff",
    "\U00010000", "\U0010ffff", "/", "\0",
]  # fmt: skip
BYTES = [b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xe0\x80\x80", b"\xe2\x82", b"\xed\xa0\x80",
         b"\xed\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x90\x80\x80", b"\xfe", b"\xff"]  # fmt: skip


def names() -> list[bytes]:
    """Every letter alone, among others, and names of lengths about the limits."""
    source = random.Random(3)
    pieces = [letter.encode() for letter in LETTERS] + BYTES
    found = [
        b"",
        b".",
        b"..",
        b"...",
        b".a",
        *pieces,
        *(b"a" + piece for piece in pieces),
        *(piece + b"a" for piece in pieces),
    ]
    found += [source.choice(pieces) * source.randint(1, 3) + source.choice(pieces) for _ in range(300)]
    for letter in ("a", "é", "€"):
        size = len(letter.encode())
        found += [letter.encode() * ((limit + more) // size) for limit in (100, 253, 255) for more in range(-4, 8)]
    return [*found, b"a" * 32_767, b"/" * 32_767]


def is_legal(name: bytes, config: BrokerConfig) -> bool:
    try:
        return valid_topic(name.decode(), config.max_topic_name_length) is None
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("longest", [255, 100])
def test_names_that_are_legal(tmp_path: Path, longest: int) -> None:
    """The loop judges as ``valid_topic`` does, and asks Python for no name."""
    with Workers(tmp_path, max_topic_name_length=longest) as workers, workers.connect() as client:
        config = workers.processors[0].config
        asked = names()
        client.send_raw(raw.multifetch_frame([(name, 0, 0, 9) for name in asked]))  # type: ignore[misc]
        errors = struct.iter_unpack(">ih", client.recv_frame()[2:])
        legal = [error == 0 for _, error in errors]
        wrong = [name for name, ours in zip(asked, legal, strict=True) if ours != is_legal(name, config)]
        assert not wrong


def test_counts_of_partitions(tmp_path: Path) -> None:
    """As configured, for a topic of its own, more where more were made; of more topics than a first table holds."""
    with (
        Workers(tmp_path, partitions=2, partitions_by_topic={"many": 5, "few": 1}) as workers,
        workers.connect() as client,
    ):

        def count(topic: str) -> int:
            parts = client.multifetch([(topic, number, 0, 9) for number in range(12)])
            return [part[0] for part in parts].index(3)

        assert [count(name) for name in ("many", "few", "other")] == [5, 1, 2]
        for number in range(40):
            assert client.produce_ack(f"t{number}", 1, GOOD).error == 0
        assert client.create_topic("few", 4) == (0, 4)
        assert client.create_topic("other", 9) == (0, 9)
        assert [count(name) for name in ("many", "few", "other", "t7", "t99")] == [5, 4, 9, 2, 2]
