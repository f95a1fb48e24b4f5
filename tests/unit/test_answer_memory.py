"""Memory for answers has a bound, and who has gone is not answered.

Clients that do not read hold their answers in the processor: how many bytes that is, who waits for it, and what is done
for the ones that have left, is counted.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastlog import record_batches
from fastlog.workers.authorization import Client
from fastlog.workers.kafka07.answers import Answers
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.broker import wait_until
from tests.harness.timing import PATIENCE
from tests.harness.today_client import Client as TodayClient
from tests.harness.workers import Workers, drain, is_silent, reset

GOOD = raw.entry(b"good")
BLOCK = raw.entry(bytes(15_000))
RECORDS = record_batches.build([record_batches.Record(None, b"x" * 50, 1000)])
BUDGET = 1 << 20
PARTS = 40
STUFFING = 60
KEPT = 64 << 10
"""What a connection may keep of an answer that has left."""
SMALL = 16 << 10
"""What a connection may have when the budget is used up."""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path, partitions=4, request_memory_bytes=BUDGET) as running:
        with running.connect() as client:
            assert client.produce_ack("t", 0, BLOCK * PARTS, raw.FLUSHED).error == 0
            assert client.produce_ack("u", 0, GOOD, raw.FLUSHED).error == 0
        yield running


def many_blocks() -> bytes:
    return raw.multifetch_frame([("t", 0, number * len(BLOCK), len(BLOCK)) for number in range(PARTS)])


def answer_to_many_blocks() -> bytes:
    part = struct.pack(">ih", len(BLOCK) + 2, 0) + BLOCK
    return struct.pack(">ih", 2 + PARTS * len(part), 0) + part * PARTS


def metadata(names: int) -> bytes:
    return raw.own_frame(raw.METADATA, raw.metadata_body(["t"] * names), correlation=1)


def answer_bytes(workers: Workers) -> int:
    return workers.processors[0].loop.answer_bytes


def test_clients_that_do_not_read(workers: Workers) -> None:
    """Fifty that ask for 5 MB each hold little more than the budget; others are served, they too once they read."""
    with ExitStack() as stack:
        clients = [stack.enter_context(workers.connect_narrow()) for _ in range(50)]
        for client in clients:
            client.send_raw(many_blocks() * 8)
        workers.wait_still()
        assert answer_bytes(workers) <= BUDGET + (512 << 10) + len(clients) * SMALL
        held = answer_bytes(workers)
        with workers.connect() as other:
            assert other.fetch("u", 0, 0).body == GOOD
            assert other.produce_ack("u", 0, GOOD, raw.FLUSHED).error == 0
            assert other.multifetch([("t", 0, 0, len(BLOCK))] * 3) == [(0, BLOCK)] * 3
            other.send_raw(metadata(1))
            assert other.recv_own()[1].error == 0
            wait_until("it keeps nothing for the next ones", lambda: answer_bytes(workers) <= held + SMALL)
        for client in clients[::10]:
            client.finish_sending()
            assert drain(client) == answer_to_many_blocks() * 8
    wait_until("all is given back", lambda: answer_bytes(workers) == 0)


def test_large_answers_over_budget_are_made_one_at_a_time(workers: Workers) -> None:
    """The second of two waits until the first has left; what is small does not."""
    with ExitStack() as stack:
        fill(workers, stack)
        workers.wait_still()
        first, second = (stack.enter_context(workers.connect_narrow()) for _ in range(2))
        first.send_raw(metadata(9_999))
        wait_until("it has its answer", lambda: workers.held()["over budget"] == 1)
        workers.wait_still()
        before = workers.processors[0].loop.job_steps
        second.send_raw(metadata(9_999))
        with workers.connect() as other:
            other.send_raw(metadata(1))
            assert other.recv_own()[1].error == 0
        assert workers.processors[0].loop.job_steps == before + 1
        assert is_silent(second)
        whole = [client.recv_answer() for client in (first, second)]
        assert whole[0] == whole[1]
    wait_until("all is given back", lambda: answer_bytes(workers) == 0)


def test_large_metadata_of_today_over_budget_is_answered_one_at_a_time(workers: Workers) -> None:
    def asking(names: int) -> bytes:
        return today.request(today.METADATA, 5, {"topics": [{"name": "t"}] * names, "allow_auto_topic_creation": False})

    with ExitStack() as stack:
        fill(workers, stack)
        workers.wait_still()
        first, second = (stack.enter_context(workers.connect_narrow()) for _ in range(2))
        first.send_raw(asking(9_999))
        wait_until("it has its answer", lambda: workers.held()["over budget"] == 1)
        workers.wait_still()
        second.send_raw(asking(9_999))
        workers.wait_still()
        with workers.connect() as other:
            other.send_raw(asking(1))
            assert other.recv_frame()
        assert is_silent(second)
        whole = [client.recv_frame() for client in (first, second)]
        assert whole[0] == whole[1] and len(whole[0]) > BUDGET
    wait_until("all is given back", lambda: answer_bytes(workers) == 0)


@pytest.mark.parametrize("what", ["metadata", "cut points", "local read", "multifetch", "today's produce"])
def test_what_is_reserved_for_an_answer_is_given_back(workers: Workers, what: str) -> None:
    """As much as was taken, while the connection goes on."""
    with workers.connect() as client, TodayClient(workers) as today_client:
        ask = {
            "today's produce": lambda: today_client.produce(*[("none", 0, None)] * 200),
            "metadata": lambda: client.metadata(["t"] * 100),
            "cut points": lambda: client.cut_points("t", 0, 0, 2**62, 1000),
            "local read": lambda: client.local_read("t", 0),
            "multifetch": lambda: client.multifetch([("t", 0, 0, len(BLOCK))] * (10 * PARTS)),
        }[what]
        for _ in range(5):
            assert ask()
            wait_until("it is given back", lambda: answer_bytes(workers) <= KEPT)


def fill(workers: Workers, stack: ExitStack) -> None:
    """Use up the memory for answers by clients that do not read."""
    for _ in range(20):
        client = stack.enter_context(workers.connect_narrow())
        client.send_raw(many_blocks())
    wait_until("it is used up", lambda: answer_bytes(workers) > BUDGET)


def test_few_answers_are_owed_while_their_memory_is_used_up(tmp_path: Path) -> None:
    """A produce that waits for its flush behind 64 others is not taken; each that is answered lets the next one in."""
    acked = raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, GOOD, raw.FLUSHED), correlation=1)
    with Workers(tmp_path, flusher=False, request_memory_bytes=1 << 16) as workers, ExitStack() as stack:
        with workers.connect() as client:
            assert client.produce_ack("t", 0, GOOD).error == 0
        stack.enter_context(workers.connect_narrow()).send_raw(metadata(9_999))
        wait_until("it is made, and uses it up", lambda: workers.count("own_requests") == 2)
        assert answer_bytes(workers) > 1 << 17
        before = workers.count("own_requests")
        client = stack.enter_context(workers.connect())
        client.send_raw(acked * 100)
        wait_until("some are taken", lambda: workers.count("own_requests") >= before + 64)
        workers.wait_still()
        assert workers.count("own_requests") == before + 64
        workers.start_flusher()
        assert [client.recv_own()[1].error for _ in range(100)] == [0] * 100


def test_one_for_which_others_wait_and_that_takes_nothing_is_closed(tmp_path: Path) -> None:
    """Not before others wait for memory: until then nobody minds that it is slow."""
    with (
        Workers(tmp_path, request_memory_bytes=BUDGET, heartbeat_ms=20, stalled_ms=200) as workers,
        ExitStack() as stack,
    ):
        with workers.connect() as client:
            assert client.produce_ack("t", 0, BLOCK * PARTS, raw.FLUSHED).error == 0
        fill(workers, stack)
        assert not workers.count("idle_closed")
        with workers.connect() as other:
            other.send_raw(metadata(9_999))
            assert other.recv_own()[1].error == 0
            other.send_raw(metadata(9_999))
            assert other.recv_own()[1].error == 0
        first = stack.enter_context(workers.connect_narrow())
        first.send_raw(metadata(9_999))
        wait_until("it has its answer", lambda: answer_bytes(workers) > BUDGET and not workers.held()["jobs"])
        with workers.connect() as other:
            other.send_raw(metadata(9_999))
            assert other.recv_own()[1].error == 0
        wait_until("those that hold much are closed", lambda: workers.count("idle_closed") >= 2)


def stuffed(workers: Workers, behind: bytes) -> raw.RawClient:
    """A client that has sent 60 requests for 600 kB each and more, and reads nothing.

    All of it lies with the receiver: an RST takes along what the sender has not got rid of.
    """
    leaver = workers.connect()
    leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    leaver.send_raw(many_blocks() * STUFFING + behind)
    wait_until("all has arrived", lambda: raw.unacknowledged(leaver.socket) == 0)
    wait_until("it is being answered", lambda: workers.count("bytes_out") > len(BLOCK))
    workers.wait_still()
    return leaver


def test_reading_requests_of_one_that_is_gone_are_not_carried_out(workers: Workers) -> None:
    """What it had sent is gone through to its end: a produce behind them is stored, and no byte is read for them."""
    own = metadata(3) + raw.own_frame(raw.LOCAL_READ, raw.place("t", 0), correlation=1)
    held = raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body("u", 0, 14, 100, 30_000, 1), correlation=1)
    leaver = stuffed(workers, own * 5 + held + raw.fetch_frame("t", 0, 0, 100) + raw.produce_frame("u", 0, GOOD))
    before, steps = workers.counts(), workers.processors[0].loop.job_steps
    leaver.close()
    wait_until("it is gone", lambda: not workers.held()["connections"])
    after = workers.counts()
    assert after["bytes_out"] == before["bytes_out"]
    assert after.get("held_fetches", 0) == 0
    assert workers.processors[0].loop.job_steps == steps
    assert after["fetch_requests"] == STUFFING + 1
    assert after["own_requests"] - before["own_requests"] == 11
    assert workers.arena.view(1).log_end == 2 * len(GOOD)
    wait_until("all is given back", lambda: answer_bytes(workers) == 0)


def make_topic_of_today(workers: Workers, name: str) -> None:
    with workers.connect() as client:
        topics = [{"topic_id": None, "name": name}]
        fields = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
        today.asked(client.socket, today.METADATA, 12, topics=topics, **fields)


def test_fetches_of_today_of_one_that_is_gone_are_not_carried_out(workers: Workers) -> None:
    """As those of 0.7: a produce behind them is stored, one behind a malformed one is not, and nothing is looked at."""
    fetch = today.request(today.FETCH, 12, today.fetched(("t", 0, 0)))
    produce = today.request(today.PRODUCE, 9, today.produced(("r", 0, RECORDS)))
    malformed = today.frame(today.FETCH, 12, b"\0" * 5)
    make_topic_of_today(workers, "r")
    leaver = workers.connect()
    leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    leaver.send_raw(fetch * STUFFING + produce + malformed + produce)
    wait_until("all has arrived", lambda: raw.unacknowledged(leaver.socket) == 0)
    wait_until("it is being answered", lambda: workers.count("bytes_out") > len(BLOCK))
    workers.wait_still()
    before = workers.counts()
    leaver.close()
    wait_until("it is gone", lambda: not workers.held()["connections"])
    after = workers.counts()
    assert after["bytes_out"] == before["bytes_out"]
    assert after["fetch_looks"] == before["fetch_looks"]
    assert after["fetch_requests"] == STUFFING
    (log_end,) = (view.log_end for view in workers.arena.views() if (view.topic, view.partition) == ("r", 0))
    assert log_end == len(RECORDS)
    wait_until("all is given back", lambda: answer_bytes(workers) == 0)


def test_a_held_fetch_of_today_of_one_that_is_gone_takes_no_memory_of_others(tmp_path: Path) -> None:
    """It may be the one that is answered above the budget; its client's produces still wait for room in the log."""
    settings = {"flusher": False, "flush_interval_messages": 4, "fetch_max_wait_ms": 10_000_000}
    with Workers(tmp_path, request_memory_bytes=1 << 16, **settings) as workers, ExitStack() as stack:
        make_topic_of_today(workers, "r")
        stack.enter_context(workers.connect_narrow()).send_raw(metadata(9_999))
        wait_until("it is used up", lambda: answer_bytes(workers) > 1 << 17)
        fetch = today.fetched(*[("r", 0, 0)] * 1000, max_wait=10_000_000)
        produce = today.request(today.PRODUCE, 9, today.produced(("r", 0, RECORDS), acks=0))
        leaver = workers.connect()
        leaver.send_raw(today.request(today.FETCH, 12, fetch) + produce * 6)
        wait_until("it waits", lambda: workers.count("held_fetches"))
        assert workers.held()["over budget"] == 1
        reset(leaver)
        wait_until("another one may be answered", lambda: workers.held()["over budget"] == 0)
        assert workers.held()["connections"] == 2
        workers.start_flusher()
        wait_until("what it produced is stored", lambda: workers.held()["connections"] == 1)
        assert workers.arena.view(0).log_end == 6 * len(RECORDS)


def test_a_held_fetch_of_today_that_waits_for_memory_keeps_no_file_pinned(workers: Workers) -> None:
    """What it found before it had to wait is found anew then."""
    with ExitStack() as stack, workers.connect() as client, workers.connect() as producer:
        fetch = today.fetched(("u", 0, len(GOOD)), max_wait=60_000)
        client.send_raw(today.request(today.FETCH, 12, fetch))
        wait_until("it waits for what comes", lambda: workers.count("held_fetches"))
        with ExitStack() as first:
            fill(workers, first)
            stack.enter_context(workers.connect_narrow()).send_raw(metadata(9_999))
            wait_until("no other may go over the budget", lambda: workers.held()["over budget"] == 1)
            assert producer.produce_ack("u", 0, BLOCK * 10, raw.FLUSHED).error == 0
            workers.wait_still()
            assert is_silent(client)
        _, answer = today.decoded(today.FETCH, 12, today.answer_of(client.socket))
        assert answer.responses[0].partitions[0].high_watermark == len(GOOD) + 10 * len(BLOCK)
        wait_until("nothing is pinned", lambda: workers.held()["pins"] == 0)


def test_a_topic_is_deleted_for_one_that_is_gone(workers: Workers) -> None:
    """It is not only read: a thread takes it up, whoever waits for the answer."""
    leaver = stuffed(workers, raw.own_frame(raw.DELETE_TOPIC, raw.text("none"), correlation=1))
    steps = workers.processors[0].loop.job_steps
    leaver.close()
    wait_until("it is gone", lambda: not workers.held()["connections"])
    assert workers.processors[0].loop.job_steps == steps + 1


def test_a_malformed_request_of_one_that_is_gone_ends_its_requests(workers: Workers) -> None:
    """As it does for one that is there: what is behind it is not stored."""
    produce = raw.produce_frame("u", 0, GOOD)
    leaver = stuffed(workers, produce + raw.frame(raw.MULTIFETCH, b"\0\2" + raw.place("t", 0)) + produce)
    leaver.close()
    wait_until("it is gone", lambda: not workers.held()["connections"])
    assert workers.arena.view(1).log_end == 2 * len(GOOD)


@pytest.mark.parametrize("kind", ["fetch", "multifetch"])
def test_an_empty_name_in_a_request_of_one_that_is_gone_does_not_end_its_requests(workers: Workers, kind: str) -> None:
    """It has an answer of its own for one that is there, and what is behind it is stored."""
    nameless = raw.fetch_frame("", 0, 0, 100) if kind == "fetch" else raw.multifetch_frame([("", 0, 0, 100)] * 2)
    leaver = stuffed(workers, nameless + raw.produce_frame("u", 0, GOOD))
    leaver.close()
    wait_until("it is gone", lambda: not workers.held()["connections"])
    assert workers.arena.view(1).log_end == 2 * len(GOOD)


def test_a_job_of_one_that_is_gone_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits behind another one when its client leaves; a creation is no answer, and is done."""
    made: list[str] = []
    first, go = threading.Event(), threading.Event()

    def answer(self: Answers, body: bytes, client: Client) -> bytes | bool | None:
        made.append(body[14:15].decode())
        if len(made) == 1:
            first.set()
            assert go.wait(PATIENCE)
        return inner(self, body, client)

    inner = Answers.answer
    monkeypatch.setattr(Answers, "answer", answer)
    with Workers(tmp_path, partitions=4) as workers, workers.connect() as client:
        client.send_raw(raw.own_frame(raw.METADATA, raw.metadata_body(["a"]), correlation=1))
        assert first.wait(PATIENCE)
        leavers = [workers.connect() for _ in range(3)]
        for number, leaver in enumerate(leavers):
            asked = raw.own_frame(raw.METADATA, raw.metadata_body(["b"]), correlation=1)
            leaver.send_raw(asked + raw.produce_frame("made", number, GOOD))
        wait_until("they wait", lambda: workers.held()["jobs"] == 4)
        for leaver in leavers:
            reset(leaver)
        workers.wait_still()
        go.set()
        assert client.recv_own()[1].error == 0
        wait_until("they are gone", lambda: workers.held()["connections"] == 1)
        assert made == ["a"]
        stored = {view.partition: view.log_end for view in workers.arena.views() if view.topic == "made"}
        assert [stored[number] for number in range(3)] == [len(GOOD)] * 3


def test_an_answer_is_no_larger_than_its_size_can_say(workers: Workers) -> None:
    """Of parts that do not fit, each comes with another request; a small one behind them still fits."""
    most, one = 2**31 - 1, len(BLOCK) * PARTS
    count = most // one + 2
    with workers.connect_narrow() as client:
        client.send_raw(raw.multifetch_frame([*[("t", 0, 0, one)] * count, ("u", 0, 0, 100)]))
        size, error = struct.unpack(">ih", client.recv_exactly(6))
        assert error == 0
        assert (size - 2 - 6 * (count + 1) - len(GOOD)) % one == 0
        assert most - one - (2 << 20) < size <= most
