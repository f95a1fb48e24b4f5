"""A connection after each error that it can meet: the next request is answered as ever, and neighbours notice nothing.

Where the connection closes, as Kafka 0.7's does, it is closed behind the answers that it still owes, and a new one is
served.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fastlog.log import _files
from tests.harness import raw_client as raw
from tests.harness.workers import Workers, drain, is_silent

pytestmark = pytest.mark.usefixtures("no_faults")

GOOD, BAD = raw.entry(b"good"), raw.entry(b"bad", crc=1)
LARGE = raw.entry(bytes(40_000))
SQUEEZED = raw.wrapper(raw.entry(bytes(400_000)) * 4 + BAD, raw.GZIP)
"""Invalid inside, and so large that the helper finds that."""


def own(kind: int, body: bytes, version: int = 1) -> bytes:
    return raw.own_frame(kind, body, version=version, correlation=6)


def acked(messages: bytes = GOOD, acks: int = raw.APPENDED, partition: int = 0, topic: str | bytes = "t") -> bytes:
    return own(raw.PRODUCE_ACK, raw.produce_ack_body(topic, partition, messages, acks))


class Error(NamedTuple):
    """A request that is refused under ``faults``: its code where it is answered, None where it closes."""

    request: bytes
    code: int | None
    faults: str = ""
    error_at: int = 8
    """Where the code stands in the answer, size and correlation id before it."""


def fails(request: bytes, code: int, faults: str = "") -> Error:
    """A request of 0.7 whose answer has a code."""
    return Error(request, code, faults, 4)


def closes(request: bytes, faults: str = "") -> Error:
    return Error(request, None, faults)


ANSWERED: dict[str, Error] = {
    "invalid": Error(acked(BAD), 2),
    "invalid inside": Error(acked(SQUEEZED), 2),
    "too large": Error(acked(raw.entry(bytes(50_001))), 102),
    "wrong partition": Error(acked(partition=9), 3),
    "illegal name": Error(acked(topic="a/b"), 100),
    "a name with the first half of a pair": Error(acked(topic=b"a\xed\xa0\x80"), 100),
    "a name with the last letter for private use": Error(acked(topic="a\uf8ff"), 100),
    "a name with a control character": Error(acked(topic="a\x9f"), 100),
    "a feature that is not there": Error(own(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, GOOD, 1, (1, 1, 1))), 105),
    "malformed": Error(own(raw.PRODUCE_ACK, b"\1"), 107),
    "a set larger than its request": Error(own(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, GOOD)[:-1]), 107),
    "a set smaller than its request": Error(own(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, GOOD) + b"x"), 107),
    "an acknowledgement that is none": Error(acked(acks=3), 107),
    "a last message that is cut": Error(acked(GOOD + GOOD[:-1]), 2),
    "another version of produce": Error(own(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, GOOD), 2), 104),
    "another version": Error(own(raw.HELD_FETCH, b"", 7), 104),
    "no room to write": Error(acked(), 103, "pwrite@1=ENOSPC"),
    "a write cut short and refused": Error(acked(), 103, "pwrite@1=short,pwrite@2=EIO"),
    "no room for a directory": Error(acked(topic="n"), 103, "create.directory@1=ENOSPC"),
    "no room for a topic": Error(own(raw.CREATE_TOPIC, raw.place("n", 1)), 103, "create.segment@1=ENOSPC"),
    "a negative size": fails(raw.fetch_frame("t", 0, 0, -1), 4),
    "out of range": fails(raw.fetch_frame("t", 0, 1 << 50), 1),
    "inside a message": fails(raw.fetch_frame("t", 0, 3), 2),
    "unreadable": fails(raw.fetch_frame("t", 0, 0, 50), -1 & 0xFFFF, "pread@1-3=EIO"),
    "held, out of range": Error(own(raw.HELD_FETCH, raw.held_fetch_body("t", 0, 1 << 50, 9, 9, 9)), 1),
    "held, malformed": Error(own(raw.HELD_FETCH, b"\0"), 107),
    "held, cut": Error(own(raw.HELD_FETCH, raw.held_fetch_body("t", 0, 0, 9, 9, 9)[:-1]), 107),
    "held, with more behind it": Error(own(raw.HELD_FETCH, raw.held_fetch_body("t", 0, 0, 9, 9, 9) + b"x"), 107),
    "offsets of a wrong partition": fails(raw.offsets_frame("t", 9, raw.LATEST, 1), 3),
    "offsets of an illegal name": fails(raw.offsets_frame("a/b", 0, raw.LATEST, 1), -1 & 0xFFFF),
    "cut points out of range": Error(own(raw.CUT_POINTS, raw.cut_points_body("t", 0, 5, 1 << 50, 1, 1)), 1),
    "local read of a wrong partition": Error(own(raw.LOCAL_READ, raw.place("t", 9)), 3),
}
CLOSING: dict[str, Error] = {
    "invalid": closes(raw.produce_frame("t", 0, BAD)),
    "invalid inside": closes(raw.produce_frame("t", 0, SQUEEZED)),
    "an invalid part": closes(raw.multiproduce_frame([("t", 3, b""), ("t", 1, BAD)])),
    "wrong partition": closes(raw.produce_frame("t", 9, GOOD)),
    "illegal name": closes(raw.produce_frame("a/b", 0, GOOD)),
    "malformed": closes(raw.frame(raw.PRODUCE, b"\0")),
    "a fetch of a name below nothing": closes(raw.frame(raw.FETCH, b"\xff\xff" + bytes(18))),
    "a fetch that is cut": closes(raw.frame(raw.FETCH, raw.fetch_frame("t", 0, 0)[6:-1])),
    "a produce without a correlation id": closes(raw.frame(raw.PRODUCE_ACK, b"\0\1\0\0\0")),
    "malformed fetch": closes(raw.frame(raw.MULTIFETCH, b"\0\1")),
    "malformed offsets": closes(raw.frame(raw.OFFSETS, b"\0\1")),
    "no correlation id": closes(raw.frame(raw.METADATA, b"\0")),
    "unknown": closes(raw.frame(99, b"\0")),
    "impossible size": closes(struct.pack(">i", 1)),
    "no room to write": closes(raw.produce_frame("t", 0, GOOD), "pwrite@3=ENOSPC"),
    "no room for a directory": closes(raw.produce_frame("n", 0, GOOD), "create.directory@1=ENOSPC"),
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with (
        Workers(tmp_path_factory.mktemp("log"), partitions=4, max_message_bytes=50_000) as running,
        running.connect() as client,
    ):
        for partition in range(2):
            assert client.produce_ack("t", partition, GOOD, raw.FLUSHED).error == 0
        assert client.produce_ack("large", 0, LARGE * 10, raw.FLUSHED).error == 0
        assert client.fetch("t", 0, 0).error == 0
        yield running


def check_all_is_well(client: raw.RawClient) -> None:
    """One request of each kind, on a connection that an error was on."""
    end = client.log_end("t", 0)
    assert client.produce_ack("t", 0, GOOD, raw.FLUSHED) == (0, 0, end, end + 14)
    assert client.fetch("t", 0, end) == (0, GOOD)
    assert client.multifetch([("t", 0, end, 14), ("large", 0, 0, 50)]) == [(0, GOOD), (0, LARGE[:50])]
    assert client.offsets("t", 0, raw.LATEST, 1) == [end + 14]
    assert client.held_fetch("t", 0, end) == (0, end + 14, 0, GOOD)
    assert client.fetch_ok("large", 0, 0) == LARGE * 10
    assert client.local_read("t", 0).high_watermark == end + 14
    client.produce("t", 1, GOOD)
    client.wait_visible("t", 1, client.log_end("t", 1))


@pytest.mark.parametrize("case", ANSWERED.values(), ids=ANSWERED)
def test_a_connection_goes_on_after_an_error_that_is_answered(workers: Workers, case: Error) -> None:
    """Once, three times in a row, and with what follows it in the same piece."""
    with workers.connect() as client, workers.connect() as neighbour:
        assert neighbour.offsets("t", 0, raw.EARLIEST) == [0]
        for follows in (b"", b"", raw.offsets_frame("t", 0, raw.EARLIEST, 1) + acked(acks=raw.FLUSHED)):
            _files.arm(case.faults, "test")
            client.send_raw(case.request + follows)
            size = client.recv_exactly(4)
            answer = size + client.recv_exactly(int.from_bytes(size, "big"))
            assert int.from_bytes(answer[case.error_at : case.error_at + 2], "big") == case.code
            _files.arm("", "test")
            if follows:
                assert raw.decode_offsets(client.recv_answer().body) == [0]
                assert client.recv_own()[1].error == 0
            assert is_silent(client)
        check_all_is_well(client)
        check_all_is_well(neighbour)


@pytest.mark.parametrize("case", CLOSING.values(), ids=CLOSING)
def test_a_connection_is_closed_behind_what_it_owes(workers: Workers, case: Error) -> None:
    """Two acknowledgements are owed, one for a flush; what follows the error is not looked at."""
    with workers.connect() as neighbour:
        for follows in (b"", raw.produce_frame("t", 2, GOOD)):
            end = neighbour.log_end("t", 0)
            with workers.connect() as client:
                _files.arm(case.faults, "test")
                owed = acked() + acked(acks=raw.FLUSHED)
                if case.faults.startswith("pwrite"):
                    client.send_raw(acked())  # each of them a write of its own
                    assert client.recv_own()[1].error == 0
                    owed = acked(acks=raw.FLUSHED)
                    client.send_raw(owed)
                    assert client.recv_own()[1].error == 0
                    client.send_raw(case.request + follows)
                    assert drain(client) == b""
                else:
                    client.send_raw(owed + case.request + follows)
                    answers = drain(client)
                    assert answers[:60] == b"".join(
                        struct.pack(">iihiqq", 26, 6, 0, 0, at, at + 14) for at in (end, end + 14)
                    )
                    assert len(answers) <= 60 + 6
                _files.arm("", "test")
            assert neighbour.log_end("t", 0) == end + 28
            assert neighbour.log_end("t", 2) == 0
            check_all_is_well(neighbour)
        with workers.connect() as client:
            check_all_is_well(client)


def offline(tmp_path: Path) -> Workers:
    return Workers(tmp_path, processors=2, partitions=2)


def test_a_partition_that_takes_no_appends_any_more(tmp_path: Path) -> None:
    """Its producers are told, on every processor and again and again; it is read, and the others go on."""
    with offline(tmp_path) as workers, workers.connect(0) as first, workers.connect(1) as second:
        for partition in (0, 1):
            assert first.produce_ack("t", partition, GOOD, raw.FLUSHED).error == 0
        _files.arm("fdatasync@1=EIO", "test")
        assert first.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 101
        _files.arm("", "test")
        for client in (first, second, first):
            for acks in (raw.APPENDED, raw.FLUSHED):
                assert client.produce_ack("t", 0, GOOD, acks).error == 101
            assert client.fetch("t", 0, 0) == (0, GOOD)
            assert client.offsets("t", 0) == [14, 0]
            assert client.held_fetch("t", 0, 14, max_wait_ms=10) == (0, 14, 0, b"")
            assert client.produce_ack("t", 1, GOOD, raw.FLUSHED).error == 0
            client.send_raw(acked(partition=1) + acked(partition=0) + acked(partition=1))
            assert [client.recv_own()[1].error for _ in range(3)] == [0, 101, 0]
        with workers.connect() as plain:
            plain.send_raw(raw.produce_frame("t", 1, GOOD) + raw.produce_frame("t", 0, GOOD))
            assert plain.is_closed()


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EFBIG", "EIO"])
def test_a_log_is_written_on_where_a_write_failed(tmp_path: Path, error: str) -> None:
    """Behind a write that failed, and one that came short and then failed, offsets go on without a gap."""
    with Workers(tmp_path) as workers, workers.connect() as client:
        end = 0
        for faults in (f"pwrite@1={error}", f"pwrite@1=short,pwrite@2={error}", "pwrite@1=short"):
            assert client.produce_ack("t", 0, GOOD) == (0, 0, end, end + 14)
            end += 14
            _files.arm(faults, "test")
            answer = client.produce_ack("t", 0, LARGE)
            if error in faults:
                assert answer[0] == 103
            else:
                assert answer == (0, 0, end, end + len(LARGE))
                end += len(LARGE)
            _files.arm("", "test")
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED) == (0, 0, end, end + 14)
        assert client.read_all("t", 0) == GOOD * 3 + LARGE + GOOD


def test_what_came_together_with_a_failed_write_is_written_as_it_came(workers: Workers) -> None:
    """Of several sets that wait to be written at once, one is refused: those behind it are whole, and told where."""
    sets = [raw.entry(bytes([65 + number]) * size) for number, size in enumerate((100, 30, 250))]
    with workers.connect() as client:
        first = client.produce_ack("together", 0, GOOD).next_offset
        _files.arm("pwrite@1=ENOSPC", "test")
        client.send_raw(b"".join(acked(one, topic="together") for one in sets))
        answers = [client.recv_own()[1] for _ in sets]
        _files.arm("", "test")
        assert [answer.error for answer in answers] == [103, 0, 0]
        places = [struct.unpack(">iqq", answer.body)[1:] for answer in answers[1:]]
        ends = [first, first + len(sets[1]), first + len(sets[1] + sets[2])]
        assert places == [(ends[0], ends[1]), (ends[1], ends[2])]
        assert client.produce_ack("together", 0, b"", raw.FLUSHED).error == 0
        assert client.fetch("together", 0, first) == (0, sets[1] + sets[2])


def test_who_waits_for_an_answer_has_one_when_a_set_before_it_failed_that_has_none(workers: Workers) -> None:
    """They were to be written at once; the connection closes, as after every failed produce of 0.7."""
    with workers.connect() as client:
        assert client.produce_ack("mixed", 0, GOOD).error == 0
        _files.arm("pwrite@1=ENOSPC", "test")
        client.send_raw(raw.produce_frame("mixed", 0, GOOD) + acked(topic="mixed"))
        assert client.recv_own()[1].error == 103
        _files.arm("", "test")
        assert client.is_closed()


@pytest.mark.parametrize("before", [b"", acked()], ids=["alone", "behind another"])
def test_an_empty_set_is_where_the_log_ends(workers: Workers, before: bytes) -> None:
    """Behind what was sent before it, though that came in the same piece and is written together."""
    with workers.connect() as client:
        end = client.log_end("t", 0)
        client.send_raw(before + acked(b"", acks=raw.FLUSHED) + acked(acks=raw.FLUSHED))
        answers = [client.recv_own()[1] for _ in range(2 + bool(before))]
        assert [answer.error for answer in answers] == [0] * len(answers)
        end += len(GOOD) * bool(before)
        assert [struct.unpack(">iqq", answer.body[:20]) for answer in answers[-2:]] == [
            (0, end, end),
            (0, end, end + len(GOOD)),
        ]


@pytest.mark.parametrize("acks", [raw.APPENDED, raw.FLUSHED])
def test_a_request_that_waits_for_a_thread_is_lost_with_what_came_before_it(workers: Workers, acks: int) -> None:
    """The write of what precedes it fails, which closes the connection: nobody waits for the rest of it."""
    large = raw.wrapper(raw.entry(bytes(400_000)) * 4, raw.GZIP)
    with workers.connect() as neighbour:
        end = neighbour.log_end("t", 0)
        with workers.connect() as client:
            _files.arm("pwrite@1=EIO", "test")
            client.send_raw(raw.produce_frame("t", 0, GOOD) + acked(large, acks))
            answers = drain(client)
            _files.arm("", "test")
        assert answers == struct.pack(">iihiqq", 26, 6, 103, 0, -1, -1)
        assert neighbour.log_end("t", 0) == end
        check_all_is_well(neighbour)
