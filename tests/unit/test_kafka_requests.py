"""Today's requests on raw bytes, and their answers as another implementation of the same schemas reads them."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.log._append import end_life
from fastlog.workers.kafka import control, kinds
from fastlog.workers.kafka._exchange import transitions
from fastlog.workers.kafka._kinds import Kinds, named
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.processor import CLUSTER_ID
from tests.harness.shared_log import SharedLog
from tests.harness.timing import PATIENCE
from tests.harness.workers import Workers, drain, is_silent

VERSIONS = {"client_software_name": "test", "client_software_version": "1.2.3"}
NO_OPERATIONS = -(2**31)
GOING, ASKED = 200, 4000
ROW_BYTES = 26


def each(key: int) -> list[int]:
    """The versions of a request that are served."""
    api = kinds.APIS[key]
    return list(range(api.served, api.last + 1))


def named_topics(*names: str | None) -> dict[str, Any]:
    """METADATA of these topics."""
    return {
        "topics": [{"topic_id": None, "name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }


# a request of each kind, whole
WHOLE: dict[int, dict[str, Any]] = {
    today.PRODUCE: today.produced(("a", 0, b"x"), ("b", 1, None)),
    today.FETCH: today.fetched(("a", 0, 0), ("b", 1, 2), ids={"a": uuid.UUID(int=5), "b": uuid.UUID(int=6)})
    | {"forgotten_topics_data": []},
    today.LIST_OFFSETS: today.listed(("a", 0, -1), ("b", 1, -2)),
    today.METADATA: named_topics("a", "b"),
    today.API_VERSIONS: VERSIONS,
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("log")) as running:
        with running.connect() as client:
            client.produce("old", 0, raw.entry(b"one"))
            assert client.fetch("old", 0, 0)[0] == 0
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[raw.RawClient]:
    """A connection that speaks today's protocol."""
    with workers.connect() as connected:
        today.asked(connected.socket, today.API_VERSIONS, 0)
        yield connected


def test_every_kind_is_answered_by_compiled_code_and_has_an_operation() -> None:
    assert named() == set(kinds.APIS) == set(WHOLE)
    made = Kinds()
    for key in range(-1, 130):
        api = (kinds.APIS | kinds.FORWARDED).get(key)
        assert made.operation_of(key) == (None if api is None else int(api.operation or 0)), key


def test_a_connection_comes_back_from_every_state() -> None:
    for state, following in transitions().items():
        assert {state, "BETWEEN"} <= following, state
    reached = {"BETWEEN"}
    while more := set().union(*(transitions()[state] for state in reached)) - reached:
        reached |= more
    assert reached == set(transitions())


# -- the head of a request ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", kinds.APIS)
@pytest.mark.parametrize("client_id", ["", "x" * 300, None])
def test_any_client_id_is_passed_over(client: raw.RawClient, key: int, client_id: str | None) -> None:
    for version in each(key):
        client.socket.sendall(today.request(key, version, WHOLE[key], correlation=-5, client=client_id))
        assert today.decoded(key, version, today.answer_of(client.socket))[0] == -5


@pytest.mark.parametrize("key", kinds.APIS)
def test_tagged_fields_that_nobody_knows_are_passed_over(client: raw.RawClient, key: int) -> None:
    for version in each(key):
        if version >= kinds.APIS[key].flexible:
            whole = today.request(key, version, WHOLE[key])
            expected = answer(client, whole)
            assert whole.endswith(b"\0")
            tagged = whole[4:-1] + bytes([2, 100, 3]) + b"abc" + bytes([200, 1, 0])
            assert answer(client, today.framed(tagged)) == expected


def answer(client: raw.RawClient, request: bytes) -> bytes:
    client.socket.sendall(request)
    return today.answer_of(client.socket)


@pytest.mark.parametrize(("key", "version"), [(key, version) for key in kinds.APIS for version in each(key)])
def test_a_request_cut_short_at_any_byte_closes_the_connection_alone(workers: Workers, key: int, version: int) -> None:
    """With one line in the log for each; a request that ends sooner than its frame is passed over, as in Kafka."""
    whole = today.request(key, version, WHOLE[key])
    for cut in range(2, len(whole) - 4):
        before = workers.count("invalid_requests")
        with workers.connect() as client:
            today.asked(client.socket, today.API_VERSIONS, 0)
            client.socket.sendall(today.framed(whole[4 : 4 + cut]))
            assert drain(client) == b"", cut
        assert workers.count("invalid_requests") == before + 1, cut


@pytest.mark.parametrize("key", kinds.APIS)
def test_any_byte_that_lies_closes_the_connection_or_is_answered(workers: Workers, key: int) -> None:
    """Every length and count in turn claims more than there is, and less than nothing."""
    for version in each(key):
        whole = today.request(key, version, WHOLE[key])
        for at in range(12, len(whole)):
            for lie in (0xFF, 0x80, 0x7F, 0):
                with workers.connect() as client:
                    today.asked(client.socket, today.API_VERSIONS, 0)
                    client.socket.sendall(whole[:at] + bytes([lie]) + whole[at + 1 :])
                    client.socket.shutdown(socket.SHUT_WR)
                    found = drain(client)
                assert not found or len(found) == 4 + int.from_bytes(found[:4], "big"), (version, at, lie)


@pytest.mark.parametrize(
    ("request_bytes", "said"),
    [
        (struct.pack(">ihh", 4, 3, 1), "malformed request"),
        (struct.pack(">ihhi", 8, 75, 0, 1), "an api key that is not served"),
        (struct.pack(">ihhi", 8, -1, 0, 1), "an api key that is not served"),
        (struct.pack(">ihhi", 8, 200, 0, 1), "an api key that is not served"),
        (struct.pack(">ihhi", 8, 3, 13, 1), "a version that is not served"),
        (struct.pack(">ihhi", 8, 3, -1, 1), "a version that is not served"),
        (struct.pack(">i", 1), "the announced request size is not allowed"),
        (struct.pack(">i", -1), "the announced request size is not allowed"),
        (today.framed(struct.pack(">hhihi", 3, 1, 1, -1, 0) + bytes(8 << 20)), "malformed request"),
    ],
)
def test_what_is_not_served_closes_the_connection(
    client: raw.RawClient, caplog: pytest.LogCaptureFixture, request_bytes: bytes, said: str
) -> None:
    with caplog.at_level(logging.WARNING):
        client.socket.sendall(request_bytes)
        assert drain(client) == b""
    assert [said in record.getMessage() for record in caplog.records] == [True]


def test_answers_come_in_the_order_of_requests_however_they_arrive(workers: Workers, client: raw.RawClient) -> None:
    requests = [today.request(key, 0, WHOLE[key], correlation=key) for key in (today.METADATA, today.API_VERSIONS)]
    requests += [
        today.request(key, version, WHOLE[key], correlation=version * 100 + key)
        for version in range(20)
        for key in kinds.APIS
        if version in each(key)
    ]
    expected = [answer(client, request) for request in requests]
    client.socket.sendall(b"".join(requests))
    assert [today.answer_of(client.socket) for _ in requests] == expected
    with workers.connect() as slow:
        for byte in requests[1] + requests[0]:
            slow.socket.sendall(bytes([byte]))
        assert [today.answer_of(slow.socket) for _ in range(2)] == [expected[1], expected[0]]


# -- ApiVersions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", each(today.API_VERSIONS))
def test_versions_are_those_that_are_served_and_no_others(client: raw.RawClient, version: int) -> None:
    found = today.asked(client.socket, today.API_VERSIONS, version, **VERSIONS)
    assert found.error_code == 0
    offered = {one.api_key: (one.min_version, one.max_version) for one in found.api_keys}
    assert offered == {key: (api.first, api.last) for key, api in (kinds.APIS | kinds.FORWARDED).items()}
    if version >= 3:
        assert found.finalized_features == () and found.supported_features == ()


@pytest.mark.parametrize("version", [5, 99, -1])
def test_an_unknown_version_is_answered_in_the_first_format(client: raw.RawClient, version: int) -> None:
    """Clients begin with the newest version that they know, and go on with what they are told then."""
    client.socket.sendall(today.framed(struct.pack(">hhi", today.API_VERSIONS, version, 9) + b"\xff whatever"))
    correlation, found = today.decoded(today.API_VERSIONS, 0, today.answer_of(client.socket))
    assert correlation == 9 and found.error_code == 35
    assert {one.api_key for one in found.api_keys} == set(kinds.offered())
    assert today.asked(client.socket, today.API_VERSIONS, 4, **VERSIONS).error_code == 0


def test_many_kinds_are_counted_by_a_varint() -> None:
    assert [control.varint(value) for value in (0, 127, 128, 300)] == [b"\0", b"\x7f", b"\x80\1", b"\xac\2"]


# -- Metadata ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", each(today.METADATA))
def test_the_cluster_is_this_broker(client: raw.RawClient, version: int) -> None:
    found = today.asked(client.socket, today.METADATA, version, **named_topics())
    (broker,) = found.brokers
    assert (broker.node_id, broker.host, broker.port) == (0, "127.0.0.1", 0)
    if version >= 1:
        assert broker.rack is None and found.controller_id == 0
    if version >= 2:
        assert found.cluster_id == CLUSTER_ID
    if 8 <= version <= 10:
        # what DescribeCluster says, of an authorizer that lets everybody do everything
        assert found.cluster_authorized_operations == sum(1 << each for each in (5, 7, 8, 10, 11, 12))


@pytest.mark.parametrize("version", each(today.METADATA))
def test_topics_of_07_are_shown(client: raw.RawClient, version: int) -> None:
    found = today.asked(client.socket, today.METADATA, version, **named_topics("old", "a/b", ""))
    assert [(topic.name, topic.error_code) for topic in found.topics] == [("old", 0), ("a/b", 17), ("", 17)]
    assert [len(topic.partitions) for topic in found.topics] == [1, 0, 0]
    if version >= 8:
        assert {topic.topic_authorized_operations for topic in found.topics[1:]} == {NO_OPERATIONS}
    every = named_topics() if version == 0 else {**named_topics(), "topics": None}
    assert "old" in {topic.name for topic in today.asked(client.socket, today.METADATA, version, **every).topics}


def test_only_version_0_means_all_topics_by_none(client: raw.RawClient, workers: Workers) -> None:
    """A null array has no meaning there."""
    client.socket.sendall(today.framed(struct.pack(">hhihi", 3, 0, 1, -1, -1)))
    assert drain(client) == b""


def test_an_id_that_no_topic_has(client: raw.RawClient) -> None:
    for version, code in ((10, 35), (11, 35), (12, 100)):
        topics = b"\2" + b"x" * 16 + (b"\2a" if version < 12 else b"\0") + b"\0"
        tail = b"\0\0\0\0" if version == 10 else b"\0\0\0"
        client.socket.sendall(today.frame(today.METADATA, version, topics + tail))
        _, found = today.decoded(today.METADATA, version, today.answer_of(client.socket))
        assert [(topic.error_code, topic.topic_id.bytes) for topic in found.topics] == [(code, b"x" * 16)]


def test_a_silent_connection_costs_nothing(workers: Workers, client: raw.RawClient) -> None:
    workers.wait_still()
    assert is_silent(client)


def test_partitions_that_go_while_they_are_described(tmp_path: Path) -> None:
    """An answer has as many as it says: none of those that are deleted between their count and their row."""
    settings: dict[str, Any] = {"partitions_by_topic": {"going": GOING}}
    with Workers(tmp_path, slots=GOING, **settings) as workers, workers.connect() as client:
        today.asked(client.socket, today.METADATA, 1, **named_topics("going"))
        log = SharedLog.over(workers.arena)
        request = today.request(today.METADATA, 4, named_topics("going"))
        sender = threading.Thread(target=client.socket.sendall, args=(request * ASKED,), daemon=True)
        sender.start()
        answer = today.answer_of(client.socket)
        assert len(today.decoded(today.METADATA, 4, answer)[1].topics[0].partitions) == GOING
        rows = len(answer) - GOING * ROW_BYTES
        told = []
        for number in range(1, ASKED):
            if number % (ASKED // GOING - 1) == 0 and (left := workers.arena.views()):
                assert workers.arena.create_lock()
                assert end_life(log.appender, left[0].index)
                workers.arena.create_unlock()
            answer = today.answer_of(client.socket)
            told.append(int.from_bytes(answer[rows - 4 : rows], "big"))
            assert len(answer) == rows + told[-1] * ROW_BYTES
            assert int.from_bytes(answer[rows - 14 : rows - 12], "big") == (0 if told[-1] else 3)
        sender.join(PATIENCE)
        assert told == sorted(told, reverse=True)
        (topic,) = today.asked(client.socket, today.METADATA, 4, **named_topics("going")).topics
        assert (topic.error_code, topic.partitions) == (3, ())
