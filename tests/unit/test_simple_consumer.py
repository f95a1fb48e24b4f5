"""The simple consumer against a broker that does what a test says: dies, refuses, speaks plain 0.7, holds odd bytes."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from fastlog._segment import pack
from fastlog.codecs import GZIP, SNAPPY
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.errors import (
    ConfigError,
    InvalidFetchSizeError,
    InvalidMessageError,
    MessageTooLargeError,
    MissingDependencyError,
    OffsetOutOfRangeError,
    WrongPartitionError,
    error_for,
)
from fastlog.message import encode_set
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.consumers import PAYLOADS, consumer_of, with_log
from tests.harness.fake_broker import FakeBroker

# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_fetch_gives_messages_in_every_form(own: bool) -> None:
    with with_log(pack(PAYLOADS), own=own) as fake, consumer_of(fake) as consumer:
        found = consumer.fetch("t", 0, 0)
        assert found
        assert found.payloads() == PAYLOADS
        assert [message.payload for message in found] == [message.payload for message in found.shallow()] == PAYLOADS
        assert found.next_offset == len(fake.logs["t", 0])
        batch = consumer.fetch_numpy("t", 0, 0)
        assert [batch.payload(number) for number in range(len(batch))] == PAYLOADS
        assert batch.next_offset == found.next_offset
        assert batch.next_offsets.tolist() == [message.next_offset for message in found]
        record = consumer.fetch_arrow("t", 0, 0)
        assert record.column("payload").to_pylist() == PAYLOADS
        assert record.column("offset").to_pylist() == [message.offset for message in found]
        assert record.schema.metadata == {b"topic": b"t"}
        empty = consumer.fetch("t", 0, found.next_offset)
        assert not empty
        assert (list(empty), empty.next_offset, len(empty.to_numpy()), empty.to_arrow().num_rows) == (
            [],
            found.next_offset,
            0,
            0,
        )


@pytest.mark.parametrize("fetch_bytes", [1, 3, 22, 23, 24, 100, 10_000])
def test_iterating_gives_all_whatever_the_fetch_size(own: bool, fetch_bytes: int) -> None:
    """Also when a fetch is smaller than a message, or than its length field."""
    data = pack(PAYLOADS[:50]) + encode_set(PAYLOADS[50:150], GZIP) + pack(PAYLOADS[150:], 0, 0)
    with with_log(data, own=own) as fake, consumer_of(fake, fetch_bytes=fetch_bytes) as consumer:
        messages = list(consumer.messages("t", 0))
        assert [message.payload for message in messages] == PAYLOADS
        assert [payload for batch in consumer.batches("t", 0) for payload in batch] == PAYLOADS
        batches = list(consumer.numpy_batches("t", 0))
        assert [batch.payload(number) for batch in batches for number in range(len(batch))] == PAYLOADS
        assert batches[-1].next_offset == len(data)
        offsets = [offset for batch in batches for offset in batch.next_offsets.tolist()]
        assert offsets == [message.next_offset for message in messages]
        wrapper = len(pack(PAYLOADS[:50]))
        assert {message.offset for message in messages[50:150]} == {wrapper}
        assert {message.next_offset for message in messages[50:149]} == {wrapper}


def test_shallow_iteration_leaves_wrappers_closed() -> None:
    data = pack([b"a"]) + encode_set([b"b", b"c"], SNAPPY) + pack([b"d"])
    with with_log(data) as fake, consumer_of(fake) as consumer:
        found = list(consumer.messages("t", 0, shallow=True))
        assert [message.codec for message in found] == [0, SNAPPY, 0]
        assert [message.offset for message in found[1:]] == [message.next_offset for message in found[:-1]]
        assert found[-1].next_offset == len(data)


def test_who_stops_inside_a_wrapper_gets_it_again() -> None:
    data = pack([b"a"]) + encode_set([b"b", b"c"], GZIP)
    with with_log(data) as fake, consumer_of(fake) as consumer:
        stopped = next(message for message in consumer.messages("t", 0) if message.payload == b"b")
        again = consumer.messages("t", 0, stopped.next_offset)
        assert [message.payload for message in again] == [b"b", b"c"]


def test_earliest_and_latest(own: bool) -> None:
    with with_log(pack(PAYLOADS), own=own) as fake, consumer_of(fake) as consumer:
        end = len(fake.logs["t", 0])
        assert consumer.get_offsets_before("t", 0, LATEST) == [end]
        assert consumer.get_offsets_before("t", 0, EARLIEST, 5) == [0]
        assert len(list(consumer.messages("t", 0, EARLIEST))) == len(PAYLOADS)
        assert list(consumer.messages("t", 0, LATEST)) == []
        with pytest.raises(ConfigError, match="-3"):
            next(consumer.messages("t", 0, -3))


def test_iterating_with_a_wait_sees_what_comes_later(own: bool) -> None:
    with with_log(pack([b"a"]), own=own) as fake, consumer_of(fake) as consumer:
        found = consumer.messages("t", 0, wait=5)
        assert next(found).payload == b"a"
        timer = threading.Timer(0.05, lambda: fake.logs.update({("t", 0): pack([b"a", b"b"])}))
        timer.start()
        assert next(found).payload == b"b"
        timer.join()
        found.close()  # type: ignore[attr-defined]
        started = time.monotonic()
        assert len(list(consumer.messages("t", 0, wait=0.1))) == 2
        assert time.monotonic() - started >= 0.1


def test_iterating_ends_at_what_was_appended() -> None:
    """Bytes that are appended and not yet visible are waited for; a partition that is offline is not."""
    log = pack([b"a", b"b"])
    first = len(pack([b"a"]))
    state = rs.STATE_OK
    asked = 0

    def hook(request: rq.Request) -> bytes | None:
        nonlocal asked, state
        if isinstance(request, rq.MetadataRequest) and request.topics == ("t",):
            asked += 1
            known = rs.PartitionMetadata(0, state, 0, first, len(log))
            return rs.encode_metadata(
                rs.MetadataAnswer(
                    request.correlation_id, 0, 0, "h", 1, 10**6, 10**8, 30_000, 1000, 1005,
                    (rs.TopicMetadata("t", 0, 1, (known,)),),
                )
            )  # fmt: skip
        if isinstance(request, wire07.HeldFetchRequest) and asked:
            fake.logs["t", 0] = log  # flushed now
        return None

    with with_log(log[:first], hook=hook) as fake, consumer_of(fake) as consumer:
        assert [message.payload for message in consumer.messages("t", 0)] == [b"a", b"b"]
        asked, state = 0, rs.STATE_OFFLINE
        fake.logs["t", 0] = log[:first]
        fake.hook = lambda request: hook(request) if isinstance(request, rq.MetadataRequest) else None
        assert [message.payload for message in consumer.messages("t", 0)] == [b"a"]


def test_the_next_fetch_is_on_its_way_while_one_is_read() -> None:
    """After the first message of an iteration the broker has been asked for the second piece, and not for more."""
    with with_log(pack(PAYLOADS)) as fake, consumer_of(fake, local="off", fetch_bytes=500) as consumer:
        found = consumer.messages("t", 0)
        next(found)
        deadline = time.monotonic() + 5
        while fake.seen["HeldFetchRequest"] < 2 and time.monotonic() < deadline:
            time.sleep(0.002)
        assert fake.seen["HeldFetchRequest"] == 2
        assert len(list(found)) == len(PAYLOADS) - 1


def test_multifetch_keeps_each_part_its_error(own: bool) -> None:
    fake = with_log(pack([b"abc", b"d" * 100]), own=own)
    fake.hook = lambda request: (
        wire07.encode_multifetch(
            [
                wire07.FetchAnswer(0, fake.logs["t", 0][fetch.offset :][: fetch.max_bytes])
                if fetch.topic == "t"
                else wire07.FetchAnswer(WrongPartitionError.code)
                for fetch in request.fetches
            ]
        )
        if isinstance(request, wire07.MultiFetchRequest)
        else None
    )
    with fake, consumer_of(fake) as consumer:
        whole, cut, bad, grown = consumer.multifetch([("t", 0, 0), ("t", 0, 0, 50), ("u", 7, 0, 50), ("t", 0, 13, 20)])
        assert whole.payloads() == [b"abc", b"d" * 100]
        assert cut.payloads() == [b"abc"]
        assert cut.next_offset == 13
        assert grown.payloads() == [b"d" * 100]
        assert isinstance(bad.error, WrongPartitionError)
        for use in (list, lambda part: part.payloads(), lambda part: part.next_offset, lambda part: part.to_numpy()):
            with pytest.raises(WrongPartitionError, match="u, partition 7"):
                use(bad)
        assert consumer.multifetch([]) == []


# -- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [-1, 1, 2, 3, 4, 106, 999])
def test_an_error_code_is_its_exception(own: bool, code: int) -> None:
    """With topic, partition and offset in the text; out of range says where the log begins and ends, when known."""

    def hook(request: rq.Request) -> bytes | None:
        match request:
            case wire07.FetchRequest():
                return wire07.encode_fetch(code)
            case wire07.HeldFetchRequest():
                return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, code, 500, 100))
            case rq.OffsetsRequest():
                return rs.encode_offsets(code)
        return None

    with FakeBroker(own=own, hook=hook) as fake, consumer_of(fake) as consumer:
        with pytest.raises(type(error_for(code)), match="t, partition 2, offset 7") as caught:
            consumer.fetch("t", 2, 7)
        assert caught.value.code == code  # type: ignore[attr-defined]
        assert ("from 100 to 500" in str(caught.value)) == (own and code == OffsetOutOfRangeError.code)
        with pytest.raises(type(error_for(code))):
            next(consumer.messages("t", 2, 7))
        with pytest.raises(type(error_for(code)), match="t, partition 2"):
            consumer.get_offsets_before("t", 2, LATEST)


def test_a_message_above_the_limit_is_a_clear_error() -> None:
    data = pack([b"small"]) + pack([bytes(2000)])
    with with_log(data, max_message_bytes=1500) as fake, consumer_of(fake, fetch_bytes=100) as consumer:
        found = consumer.messages("t", 0)
        assert next(found).payload == b"small"
        with pytest.raises(MessageTooLargeError, match=r"t, partition 0, offset 15, .*2010 bytes.*1510"):
            next(found)
    with with_log(data, max_message_bytes=1500) as fake, consumer_of(fake, max_message_bytes=2000) as consumer:
        assert [len(payload) for payload in consumer.fetch("t", 0, 0, 50).payloads()] == [5]
        assert [len(payload) for payload in consumer.fetch("t", 0, 15, 50).payloads()] == [2000]


def test_a_plain_broker_has_the_limit_of_0_7() -> None:
    with with_log(pack([bytes(1_000_001)]), own=False) as fake:
        with (
            consumer_of(fake, fetch_bytes=1000) as consumer,
            pytest.raises(MessageTooLargeError, match=r"1000011 bytes.*1000010"),
        ):
            consumer.fetch("t", 0, 0)
        with consumer_of(fake, fetch_bytes=1000, max_message_bytes=1_000_001) as consumer:
            assert len(consumer.fetch("t", 0, 0).payloads()[0]) == 1_000_001


def test_damage_comes_after_what_is_whole(own: bool) -> None:
    data = pack([b"a", b"b"]) + pack([b"c"])[:-1] + b"x" + pack([b"d"])
    bad_at = len(pack([b"a", b"b"]))
    with with_log(data, own=own) as fake, consumer_of(fake) as consumer:
        found = []
        with pytest.raises(InvalidMessageError, match=str(bad_at)):
            for message in consumer.messages("t", 0):
                found.append(message.payload)
        assert found == [b"a", b"b"]
        batch = consumer.fetch_numpy("t", 0, 0)
        assert (len(batch), batch.next_offset) == (2, bad_at)
        for call in (consumer.fetch, consumer.fetch_numpy, consumer.fetch_arrow):
            with pytest.raises(InvalidMessageError, match=f"t, partition 0, offset {bad_at}"):
                call("t", 0, bad_at)
        with pytest.raises(InvalidMessageError):
            consumer.fetch("t", 0, 0).payloads()


def test_arrays_hold_whole_wrappers_only() -> None:
    """A wrapper that is damaged inside is left out, and is an error where it comes first."""
    from fastlog.codecs import compress

    bad = pack([compress(GZIP, pack([b"in"]) + b"\0\0\0\6\1\0\0\0\0\1")], GZIP)
    data = pack([b"a"]) + bad
    with with_log(data) as fake, consumer_of(fake) as consumer:
        batch = consumer.fetch_numpy("t", 0, 0)
        assert (len(batch), batch.next_offset) == (1, 11)
        with pytest.raises(InvalidMessageError, match="wrapper at offset 11"):
            consumer.fetch_numpy("t", 0, 11)
        with pytest.raises(InvalidMessageError):
            list(consumer.numpy_batches("t", 0))


def test_the_log_may_not_end_inside_a_message(own: bool) -> None:
    with (
        with_log(pack([b"abc"])[:-1], own=own) as fake,
        consumer_of(fake) as consumer,
        pytest.raises(InvalidMessageError, match="12 of 13 bytes"),
    ):
        consumer.fetch("t", 0, 0)
    with with_log(b"\0\0\0", own=own) as fake, consumer_of(fake) as consumer:
        assert not consumer.fetch("t", 0, 0)  # fewer bytes than a length: no message yet, as in 0.7


def test_a_hopeless_offset_is_said_not_read(own: bool) -> None:
    with with_log(pack(PAYLOADS), own=own) as fake, consumer_of(fake) as consumer:
        with pytest.raises((InvalidMessageError, MessageTooLargeError), match=r"start of one|start of a message"):
            consumer.fetch("t", 0, 3)
        with pytest.raises(OffsetOutOfRangeError):
            consumer.fetch("t", 0, 10**9)


@pytest.mark.parametrize(
    "options",
    [{"local": "yes"}, {"fetch_bytes": 0}, {"fetch_bytes": 2**31}, {"timeout": 0}, {"port": 0}, {"port": 65536},
     {"max_message_bytes": 0}],
)  # fmt: skip
def test_impossible_settings_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SimpleConsumer(**options)


def test_pyarrow_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with (
        with_log(pack([b"a"])) as fake,
        consumer_of(fake) as consumer,
        pytest.raises(MissingDependencyError, match=r"pip install 'fastlog-broker\[arrow\]'"),
    ):
        consumer.fetch_arrow("t", 0, 0)


def test_a_set_that_is_too_small_says_so() -> None:
    """In a multifetch part that the caller cut itself, as 0.7 does; a fetch grows instead."""
    data = memoryview(pack([b"abc"]))[:8]
    from fastlog.consumer.fetched import MessageSet

    with pytest.raises(InvalidFetchSizeError):
        list(MessageSet("t", 0, 0, data))
    with pytest.raises(InvalidFetchSizeError):
        list(MessageSet("t", 0, 0, data).shallow())


def test_arrays_do_not_change_under_the_reader() -> None:
    with with_log(pack(PAYLOADS)) as fake, consumer_of(fake, fetch_bytes=100_000) as consumer:
        first = consumer.fetch_numpy("t", 0, 0)
        copy = np.array(first.buffer)
        consumer.fetch_numpy("t", 0, 0)
        assert (first.buffer == copy).all()
        with pytest.raises(ValueError, match="read-only"):
            first.buffer[0] = 1
