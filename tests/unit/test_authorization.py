"""Every use of a topic is authorized: what a rule refuses is neither appended, made, read nor described."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fastlog.wire import requests
from fastlog.workers._authorizer import Authorizer
from fastlog.workers.authorization import ANONYMOUS, CLUSTER_NAME, Client, Operation, ResourceType
from fastlog.workers.kafka07 import kinds
from fastlog.workers.kafka07._kinds import Kinds
from tests.harness import raw_client as raw
from tests.harness import wire07
from tests.harness.workers import Workers, drain

SECRET = raw.entry(b"secret")
MORE = raw.entry(b"more")
UNKNOWN, DENIED = -1, 106
KINDS = {*wire07._KINDS_07, *wire07._OWN_KINDS, requests.OFFSETS, *requests._OWN_KINDS}
"""All that can be decoded."""


class Rules:
    """A rule that a test changes, and what it was asked."""

    def __init__(self) -> None:
        self.allows: Callable[[Operation, ResourceType, str], bool] = lambda *_: True
        self.asked: list[tuple[str, str, Operation, ResourceType, str]] = []

    def __call__(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        self.asked.append((principal, host, operation, resource, name))
        return self.allows(operation, resource, name)

    def deny_all(self) -> None:
        self.allow_only(lambda *_: False)

    def allow_only(self, allows: Callable[[Operation, ResourceType, str], bool]) -> None:
        self.allows = allows
        self.asked.clear()


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
def workers(tmp_path: Path, rules: Rules) -> Iterator[Workers]:
    """Topics t and u have two partitions with a message, of four that they may have."""
    with Workers(tmp_path, partitions=4, rule=rules) as running, running.connect() as client:
        for topic in "tu":
            for partition in range(2):
                assert client.produce_ack(topic, partition, SECRET, raw.FLUSHED).error == 0
        running.wait_still()
        yield running


def own(kind: int, body: bytes, correlation: int = 5) -> bytes:
    return raw.own_frame(kind, body, correlation=correlation)


def own_error(code: int, fields: bytes = b"", correlation: int = 5) -> bytes:
    return struct.pack(">iih", 6 + len(fields), correlation, code) + fields


def acked(topic: str, partition: int, acks: int = raw.APPENDED, messages: bytes = MORE, correlation: int = 5) -> bytes:
    return own(raw.PRODUCE_ACK, raw.produce_ack_body(topic, partition, messages, acks), correlation)


def not_described(*topics: str) -> bytes:
    """The end of an answer to METADATA that says nothing of topics but that they are refused."""
    said = (raw.text(topic) + struct.pack(">hii", DENIED, 0, 0) for topic in topics)
    return struct.pack(">i", len(topics)) + b"".join(said)


class Case(NamedTuple):
    """A request, and how it is refused: the whole answer, or what it ends with; None: the connection closes."""

    kind: int
    request: bytes
    refusal: bytes | None


REFUSED_PART = struct.pack(">ih", 2, UNKNOWN)
REFUSED_ACK = own_error(DENIED, struct.pack(">iqq", -1, -1, -1))
REFUSED_HELD = own_error(DENIED, struct.pack(">qq", -1, -1))
REFUSED_OFFSETS = struct.pack(">ihi", 6, UNKNOWN, 0)

CASES: dict[str, Case] = {
    "produce": Case(raw.PRODUCE, raw.produce_frame("t", 0, MORE), None),
    "produce, any partition": Case(raw.PRODUCE, raw.produce_frame("t", -1, MORE), None),
    "produce, empty": Case(raw.PRODUCE, raw.produce_frame("t", 0, b""), None),
    "produce, a new partition": Case(raw.PRODUCE, raw.produce_frame("t", 3, MORE), None),
    "produce, a new topic": Case(raw.PRODUCE, raw.produce_frame("new", 0, MORE), None),
    "produce, compressed": Case(raw.PRODUCE, raw.produce_frame("t", 0, raw.wrapper(MORE, raw.GZIP)), None),
    "multiproduce": Case(raw.MULTIPRODUCE, raw.multiproduce_frame([("t", 0, MORE)]), None),
    "multiproduce, several": Case(
        raw.MULTIPRODUCE, raw.multiproduce_frame([("t", 0, MORE), ("u", 0, MORE), ("new", 0, MORE)]), None
    ),
    "fetch": Case(raw.FETCH, raw.fetch_frame("t", 0, 0), REFUSED_PART),
    "fetch, nobody has written": Case(raw.FETCH, raw.fetch_frame("t", 3, 0), REFUSED_PART),
    "fetch, out of range": Case(raw.FETCH, raw.fetch_frame("t", 0, 1 << 40), REFUSED_PART),
    "fetch, a wrong partition": Case(raw.FETCH, raw.fetch_frame("t", 9, 0), REFUSED_PART),
    "fetch, a negative size": Case(raw.FETCH, raw.fetch_frame("t", 0, 0, -1), REFUSED_PART),
    "multifetch": Case(
        raw.MULTIFETCH, raw.multifetch_frame([("t", 0, 0, 99)]), struct.pack(">ih", 8, 0) + REFUSED_PART
    ),
    "multifetch, several": Case(
        raw.MULTIFETCH,
        raw.multifetch_frame([("t", 0, 0, 99), ("u", 1, 0, 99), ("new", 0, 0, 99)]),
        struct.pack(">ih", 20, 0) + REFUSED_PART * 3,
    ),
    "offsets": Case(raw.OFFSETS, raw.offsets_frame("t", 0, raw.LATEST, 9), REFUSED_OFFSETS),
    "offsets, earliest": Case(raw.OFFSETS, raw.offsets_frame("t", 0, raw.EARLIEST, 9), REFUSED_OFFSETS),
    "offsets, no log": Case(raw.OFFSETS, raw.offsets_frame("t", 3, raw.LATEST, 9), REFUSED_OFFSETS),
    "offsets, a wrong partition": Case(raw.OFFSETS, raw.offsets_frame("t", 9, raw.LATEST, 9), REFUSED_OFFSETS),
    "offsets, fewer than none": Case(raw.OFFSETS, raw.offsets_frame("t", 0, raw.LATEST, -1), REFUSED_OFFSETS),
    "acked produce": Case(raw.PRODUCE_ACK, acked("t", 0), REFUSED_ACK),
    "acked produce, flushed": Case(raw.PRODUCE_ACK, acked("t", 0, raw.FLUSHED), REFUSED_ACK),
    "acked produce, empty": Case(raw.PRODUCE_ACK, acked("t", 0, messages=b""), REFUSED_ACK),
    "acked produce, any partition": Case(raw.PRODUCE_ACK, acked("t", -1), REFUSED_ACK),
    "acked produce, a new topic": Case(raw.PRODUCE_ACK, acked("new", 0), REFUSED_ACK),
    "acked produce, invalid": Case(raw.PRODUCE_ACK, acked("t", 0, messages=raw.entry(b"", crc=1)), REFUSED_ACK),
    "held fetch": Case(raw.HELD_FETCH, own(raw.HELD_FETCH, raw.held_fetch_body("t", 0, 0, 99, 9, 1)), REFUSED_HELD),
    "held fetch, at the end": Case(
        raw.HELD_FETCH, own(raw.HELD_FETCH, raw.held_fetch_body("t", 0, len(SECRET), 99, 60_000, 1)), REFUSED_HELD
    ),
    "held fetch, nobody has written": Case(
        raw.HELD_FETCH, own(raw.HELD_FETCH, raw.held_fetch_body("new", 0, 0, 99, 60_000, 1)), REFUSED_HELD
    ),
    "metadata": Case(raw.METADATA, own(raw.METADATA, raw.metadata_body(["t"])), not_described("t")),
    "metadata, several": Case(
        raw.METADATA, own(raw.METADATA, raw.metadata_body(["t", "new", "u"])), not_described("t", "new", "u")
    ),
    "metadata, all": Case(raw.METADATA, own(raw.METADATA, raw.metadata_body(None)), not_described()),
    "cut points": Case(
        raw.CUT_POINTS, own(raw.CUT_POINTS, raw.cut_points_body("t", 0, 0, len(SECRET), 1, 9)), own_error(DENIED)
    ),
    "cut points, out of range": Case(
        raw.CUT_POINTS, own(raw.CUT_POINTS, raw.cut_points_body("t", 0, 0, 1 << 40, 1, 9)), own_error(DENIED)
    ),
    "local read": Case(raw.LOCAL_READ, own(raw.LOCAL_READ, raw.place("t", 0)), own_error(DENIED)),
    "local read, no log": Case(raw.LOCAL_READ, own(raw.LOCAL_READ, raw.place("new", 0)), own_error(DENIED)),
    "create": Case(raw.CREATE_TOPIC, own(raw.CREATE_TOPIC, raw.place("new", 2)), own_error(DENIED)),
    "create, more partitions": Case(raw.CREATE_TOPIC, own(raw.CREATE_TOPIC, raw.place("t", 4)), own_error(DENIED)),
    "delete": Case(raw.DELETE_TOPIC, own(raw.DELETE_TOPIC, raw.text("t")), own_error(DENIED)),
    "delete, not there": Case(raw.DELETE_TOPIC, own(raw.DELETE_TOPIC, raw.text("new")), own_error(DENIED)),
    "create, all there": Case(raw.CREATE_TOPIC, own(raw.CREATE_TOPIC, raw.place("t", 2)), own_error(DENIED)),
}


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_request_kind_has_its_row_and_its_cases() -> None:
    """A kind that is added without one of them fails here."""
    ids = {*range(requests.OFFSETS + 1), *range(requests.LOWEST_OWN, requests.HIGHEST_OWN + 1)}
    assert ids == KINDS
    assert set(kinds.OPERATIONS) == KINDS
    assert {case.kind for case in CASES.values()} == KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_kind_without_a_row_is_refused(
    kind: int, tmp_path: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even of those that the processor knows, and where everybody may do everything."""
    monkeypatch.delitem(kinds.OPERATIONS, kind)
    with Workers(tmp_path, partitions=4) as workers:
        for case in CASES.values():
            if case.kind == kind:
                with workers.connect() as client:
                    client.send_raw(case.request)
                    assert drain(client) == b""
        assert workers.count("appends") == 0
        assert workers.arena.slot_count == 0


@pytest.mark.parametrize("kind", [-1, 32, 999, 1032, 1 << 15])
def test_the_table_takes_no_kind_that_it_has_no_room_for(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.OPERATIONS, kind, Operation.READ)
    with pytest.raises(ValueError, match=f"request kind {kind} has no place"):
        Kinds()


# --- a rule that denies everything ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_nothing_gets_past_a_rule_that_denies_all(name: str, workers: Workers, rules: Rules) -> None:
    """Nothing appended, made, read or described; and who may not use a topic is not told whether it is there."""
    case = CASES[name]
    slots, appends, sent = workers.arena.slot_count, workers.count("appends"), workers.count("bytes_out")
    files = sorted(workers.directory.rglob("*"))
    rules.deny_all()
    with workers.connect() as client:
        client.send_raw(case.request)
        client.finish_sending()
        answer = drain(client)
    if case.refusal is None:
        assert answer == b""
    elif case.kind == raw.METADATA:
        assert answer.endswith(case.refusal)
        assert struct.unpack_from(">iih", answer) == (len(answer) - 4, 5, 0)
    else:
        assert answer == case.refusal
    assert b"secret" not in answer
    assert (workers.arena.slot_count, workers.count("appends"), workers.count("bytes_out")) == (slots, appends, sent)
    assert sorted(workers.directory.rglob("*")) == files
    for principal, host, operation, resource, topic in rules.asked:
        assert (principal, host) == (ANONYMOUS, "127.0.0.1")
        assert operation is kinds.OPERATIONS[case.kind]
        assert topic in ("t", "u", "new") or (resource, topic) == (ResourceType.CLUSTER, CLUSTER_NAME)
    assert rules.asked or name == "metadata, all"


def test_a_rule_that_raises_allows_nothing(workers: Workers, rules: Rules, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> bool:
        raise KeyError("the rules are not there")

    rules.allow_only(fail)
    with workers.connect() as client:
        assert client.fetch("t", 0, 0) == (UNKNOWN, b"")
        assert client.ask_own(raw.LOCAL_READ, raw.place("t", 0)).error == DENIED
    assert "the rules are not there" in caplog.text


def test_a_rule_that_would_end_the_process_allows_nothing(workers: Workers, rules: Rules) -> None:
    """The loop goes on, and what is asked next is answered."""

    def leave(*_: object) -> bool:
        raise SystemExit("of a rule")

    rules.allow_only(leave)
    with workers.connect() as client:
        assert client.fetch("t", 0, 0) == (UNKNOWN, b"")
        assert client.produce_ack("t", 0, MORE).error == DENIED
        rules.allow_only(lambda *_: True)
        assert client.fetch("t", 0, 0) == (0, SECRET)


def test_what_is_refused_stands_in_the_log(workers: Workers, rules: Rules, caplog: pytest.LogCaptureFixture) -> None:
    rules.deny_all()
    with workers.connect() as client:
        client.produce("t", 0, MORE)
        assert client.is_closed()
    assert "refused peer=127.0.0.1 topic='t' partition=0 detail=106 not authorized to write" in caplog.messages


# --- a rule for one topic ---------------------------------------------------------------------------------------------


def only_u(_: Operation, __: ResourceType, name: str) -> bool:
    return name == "u"


def test_parts_that_are_allowed_are_answered(workers: Workers, rules: Rules) -> None:
    rules.allow_only(only_u)
    with workers.connect() as client:
        found = client.multifetch([("t", 0, 0, 99), ("u", 0, 0, 99), ("t", 1, 0, 99), ("u", 1, 0, 99)])
        assert found == [(UNKNOWN, b""), (0, SECRET), (UNKNOWN, b""), (0, SECRET)]
        topics = client.metadata(["t", "u"]).topics
        assert (topics["t"].error, topics["t"].partitions) == (DENIED, {})
        assert (topics["u"].error, sorted(topics["u"].partitions)) == (0, [0, 1])
        assert sorted(client.metadata().topics) == ["u"]
        assert client.offsets("u", 0, raw.LATEST, 1) == [len(SECRET)]
        assert client.held_fetch("u", 0, 0).messages == SECRET
        assert client.cut_points("u", 0, 0, len(SECRET), 1) == (0, [0, len(SECRET)])
        assert client.ask_own(raw.LOCAL_READ, raw.place("u", 0)).error == 0


def test_parts_before_one_that_is_refused_are_stored(workers: Workers, rules: Rules) -> None:
    """As before any part that is refused."""
    rules.allow_only(only_u)
    with workers.connect() as client:
        client.send_raw(raw.multiproduce_frame([("u", 0, MORE), ("t", 0, MORE), ("u", 1, MORE)]))
        assert client.is_closed()
    with workers.connect() as client:
        assert client.log_end("u", 0) == len(SECRET + MORE)
        assert client.log_end("u", 1) == len(SECRET)
    rules.allow_only(lambda *_: True)
    with workers.connect() as client:
        assert client.log_end("t", 0) == len(SECRET)


def test_answers_keep_their_order(workers: Workers, rules: Rules) -> None:
    """Refusals wait for the answers to what was sent before them."""
    rules.allow_only(only_u)
    sent = b"".join(
        (
            acked("u", 0, raw.FLUSHED, correlation=1),
            acked("t", 0, correlation=2),
            own(raw.HELD_FETCH, raw.held_fetch_body("t", 0, 0, 99, 9, 1), 3),
            acked("u", 0, correlation=4),
            own(raw.LOCAL_READ, raw.place("t", 0), 5),
            own(raw.METADATA, raw.metadata_body(["u"]), 6),
            acked("t", 0, raw.FLUSHED, correlation=7),
        )
    )
    with workers.connect() as client:
        client.send_raw(sent)
        answers = [client.recv_own() for _ in range(7)]
    assert [correlation for correlation, _ in answers] == [1, 2, 3, 4, 5, 6, 7]
    assert [answer.error for _, answer in answers] == [0, DENIED, DENIED, 0, DENIED, 0, DENIED]


@pytest.mark.parametrize("send", [raw.produce_frame, lambda *place: acked(*place[:2])], ids=["produce", "acked"])
def test_a_topic_is_made_by_those_who_may_create(
    send: Callable[[str, int, bytes], bytes], workers: Workers, rules: Rules
) -> None:
    """Who may write only makes further partitions of a topic that is there."""
    slots = workers.arena.slot_count
    rules.allow_only(lambda operation, *_: operation is not Operation.CREATE)
    with workers.connect() as client:
        client.send_raw(send("new", 0, MORE))
        client.finish_sending()
        assert drain(client) == (
            b"" if send is raw.produce_frame else REFUSED_ACK[:10] + struct.pack(">iqq", 0, -1, -1)
        )
    assert workers.arena.slot_count == slots
    assert [asked[2:] for asked in rules.asked] == [
        (Operation.WRITE, ResourceType.TOPIC, "new"),
        (Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME),
        (Operation.CREATE, ResourceType.TOPIC, "new"),
    ]
    with workers.connect() as client:
        client.send_raw(send("t", 3, MORE))
        client.finish_sending()
        drain(client)
        assert client.is_closed()
    assert workers.arena.slot_count == slots + 1


@pytest.mark.parametrize("resource", [ResourceType.TOPIC, ResourceType.CLUSTER])
def test_who_may_create_on_the_cluster_may_create_any_topic(
    resource: ResourceType, workers: Workers, rules: Rules
) -> None:
    slots = workers.arena.slot_count
    rules.allow_only(lambda operation, asked, _: operation is not Operation.CREATE or asked is resource)
    with workers.connect() as client:
        assert client.produce_ack("made", 0, MORE).error == 0
        assert client.create_topic("created", 1) == (0, 4)
    assert workers.arena.slot_count == slots + 2


def test_a_name_that_is_no_text_is_asked_for_byte_by_byte(workers: Workers, rules: Rules) -> None:
    """No two names on the wire are one to a rule; and what is no name stays an error."""
    rules.allow_only(lambda *_: True)
    with workers.connect() as client:
        assert client.fetch(b"\xfft", 0, 0) == (UNKNOWN, b"")
    assert rules.asked[-1][4] == "\udcfft"


def test_hosts_are_addresses(tmp_path: Path, rules: Rules) -> None:
    """Where there is none, no rule that names one fits."""
    with Workers(tmp_path, rule=rules) as workers, workers.connect_narrow() as client:
        client.fetch("t", 0, 0)
    assert [asked[:2] for asked in rules.asked] == [(ANONYMOUS, "?")]


def test_without_a_rule_everybody_may_do_everything() -> None:
    authorizer = Authorizer()
    for operation in Operation:
        assert authorizer.is_allowed(Client(ANONYMOUS, "?"), operation, "t")
