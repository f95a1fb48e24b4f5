"""Paths and values are those of Kafka 0.7.2, and what other clients wrote is understood."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import zkpaths
from fastlog.errors import CoordinationError
from fastlog.zkpaths import BrokerRegistration, PartitionId, Subscription


def test_the_paths_are_those_of_0_7() -> None:
    partition = PartitionId(3, 12)
    assert zkpaths.broker_path(3) == "/brokers/ids/3"
    assert zkpaths.topic_broker_path("logs", 3) == "/brokers/topics/logs/3"
    assert zkpaths.member_path("g", "g_c") == "/consumers/g/ids/g_c"
    assert zkpaths.owner_path("g", "logs", partition) == "/consumers/g/owners/logs/3-12"
    assert zkpaths.offset_path("g", "logs", partition) == "/consumers/g/offsets/logs/3-12"


def test_a_broker_is_written_as_0_7_does() -> None:
    """The value in the source of ConsumerOffsetChecker."""
    data = b"127.0.0.1-1315436360737:127.0.0.1:9092"
    found = BrokerRegistration.parse(data)
    assert found == ("127.0.0.1-1315436360737", "127.0.0.1", 9092)
    assert found.encode() == data


@pytest.mark.parametrize(
    ("data", "host", "port"),
    [
        (b"kafka1:9092", "kafka1", 9092),
        (b"creator-1:[::1]:9092", "::1", 9092),
        (b"[fe80::2]:9093", "fe80::2", 9093),
    ],
)
def test_other_forms_of_a_broker_are_read(data: bytes, host: str, port: int) -> None:
    assert BrokerRegistration.parse(data)[1:] == (host, port)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"host",
        b"host:",
        b":9092",
        b"a:b:c",
        b"a:b:0",
        b"a:b:65536",
        b"\xff:9092",
        b"c:h:" + b"9" * 5000,
        b"c:\x1b[31mevil:1",
        b"c:a b:1",
        b"c:" + b"h" * 256 + b":1",
        b"c:h\0:1",
    ],
)
def test_what_is_no_broker_is_refused(data: bytes) -> None:
    with pytest.raises(CoordinationError):
        BrokerRegistration.parse(data)


@pytest.mark.parametrize(
    ("subscription", "data"),
    [
        (Subscription({"t1": 2, "t2": 1}), b'{ "t1": 2,"t2": 1 }'),
        (Subscription({}), b"{  }"),
        (Subscription({}, "white.*|black", True, 3), b"*3*white.*|black"),
        (Subscription({}, "a*b!c", False, 1), b"!1!a*b!c"),
    ],
)
def test_subscriptions_are_written_as_0_7_does(subscription: Subscription, data: bytes) -> None:
    assert subscription.encode() == data
    assert Subscription.parse(data) == subscription


def test_a_subscription_of_another_client_is_read() -> None:
    assert Subscription.parse(b'{"topic":1}') == Subscription({"topic": 1})
    assert Subscription.parse(b'\n{ "a" : 1 , "b" : 2 }\n').topics == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"a": "b"}',
        b'{"a": 1.5}',
        b'{"a": true}',
        b'{"a": -1}',
        b"*x*a",
        b"*0*a",
        b"*1!a",
        b"\xff",
        b"[" * 200_000,
        b'{"a": 10001}',
        b'{"a": 1000000000000000000}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"*10001*a",
        b"*" + b"9" * 5000 + b"*a",
        "*٣*a".encode(),
        b'{"a/b": 1}',
        b'{"": 1}',
        b'{"..": 1}',
        b'{"\\ud800": 1}',
        b"{" + b",".join(b'"t%d": 10000' % number for number in range(11)) + b"}",
    ],
)
def test_what_is_no_subscription_is_refused(data: bytes) -> None:
    with pytest.raises(CoordinationError):
        Subscription.parse(data)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_partitions_are_read_as_they_are_written(broker: int, partition: int) -> None:
    assert PartitionId.parse(str(PartitionId(broker, partition))) == (broker, partition)


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "1-2-3", "a-1", "1-٣", "1--2", "9" * 5000 + "-0", f"{2**31}-0", f"0-{2**31}"]
)
def test_what_is_no_partition_is_refused(text: str) -> None:
    with pytest.raises(CoordinationError):
        PartitionId.parse(text)


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_read_as_they_are_written(number: int) -> None:
    assert zkpaths.parse_number(zkpaths.encode_number(number)) == number


@pytest.mark.parametrize(
    "data", [b"", b"-", b"--1", b"1.0", b"x", b"9" * 30, b"9" * 5000, b"%d" % 2**63, b"\xff", "٣".encode()]
)
def test_what_is_no_number_is_refused(data: bytes) -> None:
    with pytest.raises(CoordinationError):
        zkpaths.parse_number(data)


@pytest.mark.parametrize("text", ["", "01", "-1", "x", "٣", "9" * 5000, str(2**31)])
def test_what_is_no_id_of_a_broker_is_refused(text: str) -> None:
    with pytest.raises(CoordinationError) as caught:
        zkpaths.parse_broker_id(text)
    assert len(str(caught.value)) < 200
    assert zkpaths.parse_broker_id("2147483647") == 2**31 - 1


def test_consumer_and_thread_ids_look_as_in_0_7() -> None:
    found = zkpaths.new_consumer_id("group1")
    assert re.fullmatch(r"group1_.+-\d{13}-[0-9a-f]{8}", found)
    assert found != zkpaths.new_consumer_id("group1")
    assert zkpaths.thread_ids("group1_c", 2) == ["group1_c-0", "group1_c-1"]


@given(st.binary(max_size=60))
def test_garbage_is_an_error_and_nothing_else(data: bytes) -> None:
    for parse in (BrokerRegistration.parse, Subscription.parse, zkpaths.parse_number):
        try:
            parse(data)
        except CoordinationError as error:
            assert str(error)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_every_path_has_its_place() -> None:
    """Those that the others are made of as well, and fastlog's own; no two parts are exchanged."""
    partition = PartitionId(3, 12)
    assert [
        zkpaths.holdings_path(3), zkpaths.topic_path("t"), zkpaths.group_path("g"), zkpaths.members_path("g"),
        zkpaths.owners_path("g", "t"), zkpaths.offsets_path("g", "t"), zkpaths.lost_path("g", "t", partition),
    ] == [
        "/brokers/fastlog/3", "/brokers/topics/t", "/consumers/g", "/consumers/g/ids", "/consumers/g/owners/t",
        "/consumers/g/offsets/t", "/consumers/g/fastlog/lost/t/3-12",
    ]  # fmt: skip


@pytest.mark.parametrize("most", [zkpaths.PartitionId(2**31 - 1, 2**31 - 1), zkpaths.PartitionId(0, 0)])
def test_the_largest_and_the_least_partition(most: PartitionId) -> None:
    assert PartitionId.parse(str(most)) == most
    assert PartitionId.parse(f"000{most.broker}-00{most.partition}") == most


def test_the_largest_and_the_least_numbers() -> None:
    for number in (2**63 - 1, -(2**63), -1, 0):
        assert zkpaths.parse_number(b" %d\n" % number) == number
    for number in (2**63, -(2**63) - 1):
        with pytest.raises(CoordinationError, match="is no number of 64 bits"):
            zkpaths.parse_number(b"%d" % number)
    assert zkpaths.parse_number(b"0" * 500 + b"7") == 7
    for text in ("0", "2147483647"):
        assert zkpaths.parse_broker_id(text) == int(text)


@pytest.mark.parametrize(("port", "is_one"), [(0, False), (1, True), (65535, True), (65536, False)])
def test_the_ports_of_a_broker(port: int, is_one: bool) -> None:
    for data in (b"c:h:%d" % port, b"h:%d" % port, b"c:[::1]:%d" % port):
        if is_one:
            assert BrokerRegistration.parse(data).port == port
        else:
            with pytest.raises(CoordinationError, match="is no broker"):
                BrokerRegistration.parse(data)


def test_the_longest_host() -> None:
    assert BrokerRegistration.parse(b"c:" + b"h" * 255 + b":1").host == "h" * 255
    for data in (b"c:" + b"h" * 256 + b":1", b"c::1", b"c:[]:1", b"c:a\x7fb:1", "c:a\u200bb:1".encode()):
        with pytest.raises(CoordinationError):
            BrokerRegistration.parse(data)


@pytest.mark.parametrize("host", ["h", "::1", "fe80::1"])
def test_a_registration_comes_back(host: str) -> None:
    """Also one whose creator has brackets or dashes in it; a creator of ours has no colon."""
    creator = zkpaths.new_creator(host)
    assert re.fullmatch(re.escape(host.replace(":", ".")) + r"-\d{13}", creator)
    for made in (creator, "a-b[c]-1"):
        found = BrokerRegistration(made, host, 9092)
        assert BrokerRegistration.parse(found.encode()) == found


def test_as_many_streams_as_make_sense() -> None:
    """10,000 for a topic and 100,000 in all; one more of either is refused."""
    for sign in "*!":
        assert Subscription.parse(f"{sign}10000{sign}a".encode()).streams == 10_000
        assert Subscription.parse(f"{sign}1{sign}".encode()) == Subscription({}, "", sign == "*", 1)
        for count in (0, 10_001):
            with pytest.raises(CoordinationError, match="1 to 10000 make sense"):
                Subscription.parse(f"{sign}{count}{sign}a".encode())
    most = {f"t{number}": 10_000 for number in range(10)}
    assert Subscription.parse(Subscription(most).encode()).topics == most
    assert Subscription.parse(Subscription({**most, "one": 0}).encode()).topics["one"] == 0
    for more in ({**most, "one": 1}, {"t": 10_001}):
        with pytest.raises(CoordinationError, match="at most 10000 streams of a topic make sense, and 100000 in all"):
            Subscription.parse(Subscription(more).encode())


@pytest.mark.parametrize("name", [".", "..", "", "a/b", "a\0", "a\x1f", "\x7f", "\x9f", "\uf8ff", "\ufff0", "\uffff"])
def test_names_that_zookeeper_takes_into_no_path(name: str) -> None:
    with pytest.raises(CoordinationError, match="cannot be a topic"):
        Subscription.parse(Subscription({"fine": 1, name: 1}).encode())


@pytest.mark.parametrize("name", ["...", " ", "a\xa0b", "\x7e", "\ud7ff", "\uf900", "\uffef"])
def test_names_that_it_takes(name: str) -> None:
    assert Subscription.parse(Subscription({name: 1}).encode()).topics == {name: 1}


def test_what_a_broker_holds_comes_back() -> None:
    assert zkpaths.encode_holdings({"b": 2, "a": 0}) == b'{"a":0,"b":2}'
    for found in ({}, {"a": 2**31 - 1, "b": 0}):
        assert zkpaths.parse_holdings(zkpaths.encode_holdings(found)) == found
    for wrong in (b"", b"[]", b"7", b'{"a":-1}', b'{"a":2147483648}', b'{"a":true}', b'{"a":1.0}', b'{"a":"1"}', b"["):
        with pytest.raises(CoordinationError, match="does not say how many partitions"):
            zkpaths.parse_holdings(wrong)
    with pytest.raises(CoordinationError):
        zkpaths.parse_holdings(b"[" * 200_000)
    with pytest.raises(CoordinationError, match="is not text"):
        zkpaths.parse_holdings(b"\xff")


def test_what_is_shown_of_a_value_is_cut() -> None:
    for size, shown in ((100, repr("x" * 100)), (101, repr("x" * 100) + "…")):
        with pytest.raises(CoordinationError) as caught:
            zkpaths.parse_number(b"x" * size)
        assert str(caught.value) == f"{shown} is no number of 64 bits"
