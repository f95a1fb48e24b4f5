"""What a processor takes for a request it gives back, however the request or its connection ends.

Every kind of request × every way to break off: memory, pins, descriptors, jobs and connections are counted before and
after, and the next client is served as if nothing had been. The heartbeats are hours apart: nothing is found by chance.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.log import _files
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.workers import Workers, drain, reset

GOOD = raw.entry(b"good")
BAD = raw.entry(b"bad", crc=1)
MEGABYTE = 1 << 20
LARGE = raw.entry(bytes(300_000))
"""A message that gets a buffer of its own."""
SQUEEZED = raw.wrapper(raw.entry(bytes(900_000)) * 3, raw.GZIP)
"""A set that inflates to so much that the helper thread does it."""


def own(kind: int, body: bytes) -> bytes:
    return raw.own_frame(kind, body, correlation=5)


def acked(messages: bytes, acks: int = raw.APPENDED, partition: int = 0, topic: str = "t") -> bytes:
    return own(raw.PRODUCE_ACK, raw.produce_ack_body(topic, partition, messages, acks))


def held(topic: str) -> bytes:
    """A held fetch behind the one message of the topic ``quiet``, or of a topic that nobody writes to."""
    return own(raw.HELD_FETCH, raw.held_fetch_body(topic, 0, 14 if topic == "quiet" else 0, 100, 30_000, 1))


KINDS: dict[str, bytes] = {
    "produce": raw.produce_frame("t", 0, GOOD),
    "multiproduce": raw.multiproduce_frame([("t", 0, GOOD), ("t", 1, GOOD)]),
    "fetch": raw.fetch_frame("t", 0, 0, 100),
    "multifetch": raw.multifetch_frame([("t", 0, 0, 100), ("t", 1, 0, 100)]),
    "offsets": raw.offsets_frame("t", 0, raw.LATEST, 1),
    "appended": acked(GOOD),
    "flushed": acked(GOOD, raw.FLUSHED),
    "held fetch": held("quiet"),
    "metadata": own(raw.METADATA, raw.metadata_body(["t"])),
    "cut points": own(raw.CUT_POINTS, raw.cut_points_body("t", 0, 0, 14, 10, 10)),
    "local read": own(raw.LOCAL_READ, raw.place("t", 0)),
    "create topic": own(raw.CREATE_TOPIC, raw.place("made", 1)),
    "delete topic": own(raw.DELETE_TOPIC, raw.text("none")),
}
MORE: dict[str, bytes] = {
    "large produce": raw.produce_frame("t", 0, LARGE),
    "large appended": acked(LARGE),
    "large flushed": acked(LARGE, raw.FLUSHED),
    "inflated": raw.produce_frame("t", 0, SQUEEZED),
    "inflated, flushed": acked(SQUEEZED, raw.FLUSHED),
    "new partition": raw.produce_frame("u", 1, GOOD),
    "new partition, flushed": acked(GOOD, raw.FLUSHED, 2, "u"),
    "large fetch": raw.fetch_frame("large", 0, 0, 8 * MEGABYTE),
    "large multifetch": raw.multifetch_frame([("large", 0, 0, MEGABYTE)] * 8),
    "small fetches": raw.fetch_frame("large", 0, 0, 16_000) * 500,
    "many partitions": b"".join(raw.produce_frame("t", number % 4, GOOD) for number in range(40)),
    "invalid": raw.produce_frame("t", 0, GOOD) + raw.produce_frame("t", 0, BAD),
    "invalid, acknowledged": acked(BAD),
    "invalid inside": raw.produce_frame("t", 0, raw.wrapper(raw.entry(bytes(900_000)) * 3 + BAD, raw.GZIP)),
    "invalid part": raw.multiproduce_frame([("t", 0, GOOD), ("t", 1, GOOD), ("t", 0, BAD)]),
    "wrong partition": raw.produce_frame("t", 0, GOOD) + raw.produce_frame("t", 9, GOOD),
    "wrong partition, flushed": acked(GOOD, raw.FLUSHED, 9),
    "malformed produce": raw.frame(raw.PRODUCE, b"\0\x05t"),
    "malformed fetch": raw.frame(raw.MULTIFETCH, b"\0\x05t"),
    "malformed own": own(raw.CUT_POINTS, b"\0\x05t"),
    "unknown kind": raw.frame(77, b"what"),
    "today's": raw.frame(18, b"what"),
    "refused size": struct.pack(">i", -1),
    "announced only": struct.pack(">ih", 50 * MEGABYTE, 0) + bytes(150_000),
    "half of a large one": raw.produce_frame("t", 0, LARGE)[:200_000],
}

SETTINGS: dict[str, Any] = {"partitions": 4, "max_request_bytes": 60 * MEGABYTE}
"""Of the broker that these are made for."""

Leave = Callable[[raw.RawClient], None]


def close(client: raw.RawClient) -> None:
    client.close()


def read_all(client: raw.RawClient) -> None:
    """Say that nothing more comes and take every answer."""
    client.finish_sending()
    drain(client)
    client.close()


def read_some(client: raw.RawClient) -> None:
    """Take the beginning of an answer, where there is one, and vanish."""
    client.finish_sending()
    client.socket.recv(3)
    reset(client)


WAYS: dict[str, Leave] = {"reads all": read_all, "closes": close, "resets": reset, "reads some": read_some}


def prepare(workers: Workers) -> None:
    """Store some data, and have everything opened that a processor opens for good."""
    with workers.connect() as client:
        for partition in range(4):
            assert client.produce_ack("t", partition, GOOD, raw.FLUSHED).error == 0
            assert client.fetch("t", partition, 0).error == 0
        assert client.produce_ack("quiet", 0, GOOD, raw.FLUSHED).error == 0
        for partition in (1, 2):
            assert client.produce_ack("u", partition, GOOD, raw.FLUSHED).error == 0
        for _ in range(8):
            assert client.produce_ack("large", 0, raw.entry(bytes(MEGABYTE // 2)) * 2, raw.FLUSHED).error == 0
        assert client.fetch("large", 0, 0, 10).error == 0
        client.produce_ack("t", 0, SQUEEZED)
        assert client.create_topic("made", 1) == (0, 4)
        for partition in range(4):
            assert client.produce_ack("made", partition, GOOD, raw.FLUSHED).error == 0


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """One processor with some data."""
    with Workers(tmp_path_factory.mktemp("log"), **SETTINGS) as running:
        prepare(running)
        yield running


def at_rest(workers: Workers) -> Counter[str]:
    """What is held while nobody is connected."""
    wait_until("nobody is connected", lambda: not workers.held()["connections"])
    return workers.held()


def check_served(workers: Workers) -> None:
    """The next client is served, as if nothing had been."""
    with workers.connect() as client:
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        assert client.fetch("t", 1, 0, 14).body == GOOD
        assert client.offsets("t", 2) == [14, 0]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("request_bytes", [*KINDS.values(), *MORE.values()], ids=[*KINDS, *MORE])
def test_after_a_whole_request(workers: Workers, request_bytes: bytes, way: Leave) -> None:
    before = at_rest(workers)
    for _ in range(3):
        client = workers.connect()
        client.send_raw(request_bytes)
        way(client)
    workers.wait_held(before)
    check_served(workers)
    workers.wait_held(before)


@pytest.mark.parametrize("way", [close, reset], ids=["FIN", "RST"])
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_request_cut_short_at_every_byte(workers: Workers, kind: str, way: Leave) -> None:
    """Nothing of a request that did not come whole is done, whatever came before it; its answers are taken or not."""
    before = at_rest(workers)
    whole = KINDS[kind]
    with workers.connect() as client:
        ends = [client.log_end("t", partition) for partition in range(4)]
        for cut in range(len(whole)):
            leaver = workers.connect()
            leaver.send_raw(whole[:cut])
            way(leaver)
        workers.wait_held({**before, **workers_with_one_client(before)})
        assert [client.log_end("t", partition) for partition in range(4)] == ends
    workers.wait_held(before)


def workers_with_one_client(before: Counter[str]) -> dict[str, int]:
    """Two sockets more, since both ends are in this process."""
    return {"connections": before["connections"] + 1, "socket": before["socket"] + 2}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_behind_whole_requests_takes_none_of_them_back(workers: Workers, kind: str) -> None:
    """The first two are done and answered, then the connection ends; with a large beginning of the next, too."""
    before = at_rest(workers)
    whole = KINDS["appended"]
    with workers.connect() as client:
        for cut in (1, 4, 5, len(KINDS[kind]) - 1):
            end = client.log_end("t", 0)
            leaver = workers.connect()
            leaver.send_raw(whole * 2 + KINDS[kind][:cut])
            leaver.finish_sending()
            answers = drain(leaver)
            leaver.close()
            assert [answers[at + 8 : at + 10] for at in (0, 30)] == [b"\0\0", b"\0\0"]
            assert len(answers) == 60
            assert client.log_end("t", 0) == end + 28
    workers.wait_held(before)


# -- in the hand-over, in a hold, while a flush or a lock or the disk keeps it -----------------------------------------


@pytest.mark.parametrize("way", [close, reset], ids=["FIN", "RST"])
def test_after_connections_that_left_before_they_were_taken(workers: Workers, way: Leave) -> None:
    """They lie in the hand-over queue with what they sent; what was whole is handled, unless it was reset."""
    before = at_rest(workers)
    with workers.connect() as client:
        end = client.log_end("t", 1)
        for _ in range(40):
            leaver = raw.RawClient(workers.port)
            accepted, _ = workers.listener.accept()
            leaver.send_raw(raw.produce_frame("t", 1, GOOD))
            way(leaver)
            with accepted:
                workers.processors[0].hand_over(accepted)
        if way is close:
            wait_until("all of it is in the log", lambda: client.log_end("t", 1) == end + 40 * len(GOOD))
    workers.wait_held(before)


@pytest.mark.parametrize("way", [close, reset, raw.RawClient.finish_sending], ids=["FIN", "RST", "half"])
@pytest.mark.parametrize("topic", ["quiet", "nobody"])
def test_after_held_fetches_that_were_left(workers: Workers, way: Leave, topic: str) -> None:
    """On a partition that is there, and on one that is not; more requests stand behind some of them."""
    before = at_rest(workers)
    leavers = [workers.connect() for _ in range(20)]
    for number, leaver in enumerate(leavers):
        leaver.send_raw(held(topic) + (KINDS["fetch"] + KINDS["appended"]) * (number % 3))
    wait_until("all of them are held", lambda: workers.held()["connections"] == 20)
    for leaver in leavers:
        way(leaver)
    for leaver in leavers:
        if leaver.socket.fileno() >= 0:
            drain(leaver)
            leaver.close()
    workers.wait_held(before)
    check_served(workers)


def slow_flusher(_: Workers) -> None:
    _files.arm("fdatasync@1-=slow:30", "test")


def failed_writes(_: Workers) -> None:
    _files.arm("pwrite@1-=ENOSPC", "test")


def unreadable(_: Workers) -> None:
    _files.arm("pread@1-=EIO,sendfile@1-=EIO", "test")


def short_sends(_: Workers) -> None:
    _files.arm("sendfile@1-=short", "test")


TROUBLE = {function.__name__: function for function in (slow_flusher, failed_writes, unreadable, short_sends)}


@pytest.mark.parametrize("trouble", TROUBLE.values(), ids=TROUBLE)
@pytest.mark.parametrize("way", [read_all, reset], ids=["reads all", "resets"])
def test_after_requests_that_a_disk_holds_up_or_refuses(
    workers: Workers, trouble: Callable[[Workers], None], way: Leave
) -> None:
    before = at_rest(workers)
    trouble(workers)
    try:
        for request in [*KINDS.values(), *MORE.values()]:
            client = workers.connect()
            client.send_raw(request * 2)
            way(client)
        workers.wait_held(before)
    finally:
        _files.arm("", "test")
    check_served(workers)
    workers.wait_held(before)


@pytest.mark.parametrize("way", [close, reset, raw.RawClient.finish_sending], ids=["FIN", "RST", "half"])
def test_after_produces_that_wait_for_room(tmp_path: Path, way: Leave) -> None:
    """What was received is written when there is room again, though nobody waits for it; then the memory is free."""
    with Workers(tmp_path, flusher=False, flush_interval_messages=20) as workers, workers.connect() as client:
        assert client.produce_ack("t", 0, GOOD).error == 0
        workers.wait_still()
        before = workers.held()
        leavers = [workers.connect() for _ in range(4)]
        for leaver in leavers:
            leaver.send_raw(raw.produce_frame("t", 0, GOOD) * 30 + acked(GOOD) * 3 + acked(GOOD, raw.FLUSHED) * 3)
            leaver.wait_received()
        wait_until("they wait", lambda: client.log_end("t", 0) == 20 * len(GOOD))
        for leaver in leavers:
            way(leaver)
        assert workers.held()["memory"] > 4 * 30 * len(GOOD)
        assert client.log_end("t", 0) == 20 * len(GOOD)
        workers.start_flusher()
        client.wait_visible("t", 0, (1 + 4 * 36) * len(GOOD))
        for leaver in leavers:
            if leaver.socket.fileno() >= 0:
                assert len(drain(leaver)) == 6 * 30
                leaver.close()
        opened = {name: count for name, count in workers.held().items() if name.startswith(("t-0/", ".fastlog"))}
        workers.wait_held({**before, **opened})


@pytest.mark.parametrize("way", [close, reset, raw.RawClient.finish_sending], ids=["FIN", "RST", "half"])
@pytest.mark.parametrize("leaver", ["the one over the budget", "one that waits", "both"])
def test_after_requests_that_wait_for_memory(tmp_path: Path, way: Leave, leaver: str) -> None:
    """Whoever leaves, the next has the memory at once; at the end none is taken."""
    frame = acked(raw.entry(bytes(3 * MEGABYTE)))
    with (
        Workers(tmp_path, request_memory_bytes=MEGABYTE, max_message_bytes=10 * MEGABYTE) as workers,
        workers.connect() as small,
    ):
        assert small.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        workers.wait_still()
        before = workers.held()
        over, waiting, last = (workers.connect() for _ in range(3))
        over.send_raw(frame[: 2 * MEGABYTE])
        wait_until("the first has the memory", lambda: workers.held()["memory"] >= 2 * MEGABYTE)
        assert workers.held()["over budget"] == 1
        for client in (waiting, last):
            client.send_raw(frame[: MEGABYTE // 2])
        wait_until("the others wait", lambda: workers.count("over_budget_waits") >= 2)
        for one, leaves in ((over, leaver != "one that waits"), (waiting, leaver != "the one over the budget")):
            if leaves:
                way(one)
        rests = {last: frame[MEGABYTE // 2 :]}
        if leaver == "one that waits":
            rests[over] = frame[2 * MEGABYTE :]
        if leaver == "the one over the budget":
            rests[waiting] = frame[MEGABYTE // 2 :]
        # whichever of them has the memory, the others' bytes stay in their sockets meanwhile
        senders = [threading.Thread(target=client.send_raw, args=(rest,)) for client, rest in rests.items()]
        for sender in senders:
            sender.start()
        for client in rests:
            assert client.recv_own()[1].error == 0
        for sender in senders:
            sender.join()
        assert small.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        for client in (over, waiting, last):
            client.close()
        workers.wait_held(before)
