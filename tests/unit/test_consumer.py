"""``fastlog.Consumer`` before its group: settings, streams, offsets, positions, and the end; the group is a fake."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import fastlog
from fastlog._segment import pack
from fastlog.client.addresses import Address
from fastlog.consumer import connector
from fastlog.consumer._delivery import GroupMessage
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.connector import Consumer
from fastlog.consumer.partitions import Claim, Lease, Readers, TopicPartition
from fastlog.consumer.status import GroupState
from fastlog.consumer.stream import NoMessage
from fastlog.errors import ClosedError, ConfigError, ConsumerTimeout, CoordinationError, ForkedError, OwnershipLostError
from fastlog.wire import requests as rq
from fastlog.zkpaths import Subscription
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker
from tests.harness.reading import fetching_threads, source_of, wait_until
from tests.harness.timing import PATIENCE

LINES = [b"line %03d" % number for number in range(100)]


class FakeGroup:
    """Owns what the test says, and keeps what it is told."""

    last: FakeGroup
    failure: Exception | None = None

    def __init__(
        self, config: ConsumerConfig, subscription: Subscription, readers: Readers, *, lease: Lease, **options: Any
    ) -> None:
        FakeGroup.last = self
        self.config, self.subscription, self.readers, self.lease, self.options = (
            config,
            subscription,
            readers,
            lease,
            options,
        )
        self.state = GroupState.JOINING
        self.error = None
        self.owned: dict[TopicPartition, str] = {}
        self.commits: list[tuple[Mapping[TopicPartition, int] | None, bool]] = []
        self.committed: dict[TopicPartition, int] = {}
        self.jumps: list[tuple[TopicPartition, int, int]] = []
        self.begun: list[TopicPartition] = []
        self.stops = 0

    def start(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.lease.extend(Lease.now(), 60)
        self.state = GroupState.ASSIGNED

    def own(self, source: TopicPartition, thread: int, port: int, offset: int | None = 0) -> TopicPartition:
        name = f"{self.options['consumer_id']}-{thread}"
        self.owned[source] = name
        self.readers.acquire({source: Claim(name, Address("127.0.0.1", port), offset)})
        return source

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, *, wait: bool = True) -> None:
        self.commits.append((offsets, wait))
        self.committed = dict(self.readers.consumed() if offsets is None else offsets)

    def note_jump(self, source: TopicPartition, before: int, after: int) -> None:
        self.jumps.append((source, before, after))

    def note_begin(self, source: TopicPartition) -> None:
        self.begun.append(source)

    def wait_settled(self, timeout: float) -> bool:
        return timeout > 1

    def stop(self, timeout: float) -> None:
        self.stops += 1
        self.state = GroupState.STOPPED
        self.committed |= self.readers.release(list(self.owned))


@pytest.fixture(autouse=True)
def fake_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every consumer gets a fake group, and none is left."""
    monkeypatch.setattr(connector, "Group", FakeGroup)
    yield
    left = list(connector._live)
    for consumer in left:
        consumer.shutdown()
    assert not left


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        fake.logs["t", 0] = pack(LINES)
        fake.logs["t", 1] = pack(LINES[:3])
        yield fake


def consumer(**fields: Any) -> Consumer:
    return Consumer("zk:1", group_id="g", **{"consumer_timeout_ms": 2000, "local": "off", **fields})


def test_settings_come_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "consumer.properties"
    path.write_text("zk.connect=zk:1\ngroupid=g\nautocommit.enable=false\n")
    for made in (
        Consumer("zk:1", group_id="g", auto_commit=False),
        Consumer(zk_connect="zk:1", group_id="g", auto_commit=False),
        Consumer({"zk.connect": "zk:1", "groupid": "g", "autocommit.enable": "false"}),
        Consumer({"zk.connect": "zk:1", "groupid": "g"}, auto_commit=False),
        Consumer(path),
        Consumer(ConsumerConfig(zk_connect="zk:1", group_id="g", auto_commit=False)),
    ):
        assert made.config == ConsumerConfig(zk_connect="zk:1", group_id="g", auto_commit=False)
        assert made.consumer_id.startswith("g_") and made.state is GroupState.JOINING
    for bad in (
        lambda: Consumer("zk:1"),
        lambda: Consumer("zk:1", group_id="g", zk_connect="zk:2"),
        lambda: Consumer("zk:1", group_id="g", no_such_thing=1),
        lambda: Consumer(ConsumerConfig(zk_connect="zk:1", group_id="g"), auto_commit=False),
        lambda: Consumer({"zk.connect": "zk:1", "groupid": "g", "autooffset.reset": "somewhere"}),
    ):
        with pytest.raises(ConfigError):
            bad()
    with pytest.raises(TypeError):
        Consumer(7)  # type: ignore[arg-type]


def test_each_thread_of_a_topic_has_its_stream(broker: FakeBroker) -> None:
    with consumer() as made:
        streams = made.create_message_streams({"t": 2, "u": 1})
        group = FakeGroup.last
        assert group.subscription == Subscription({"t": 2, "u": 1})
        group.own(source_of(0), 0, broker.port)
        group.own(source_of(1), 1, broker.port)
        group.own(source_of(0, "u"), 0, broker.port)
        assert [stream.partitions for stream in streams["t"]] == [(source_of(0),), (source_of(1),)]
        assert streams["u"][0].partitions == (source_of(0, "u"),)
        assert [next(streams["t"][1]).payload for _ in range(3)] == LINES[:3]
        assert made.owned == group.owned and set(made.partitions) == set(group.owned)
        assert made.wait_assigned(2) and not made.wait_assigned(1)


@pytest.mark.parametrize("kind", ["whitelist", "blacklist"])
def test_a_filter_has_one_stream_for_all_topics_of_a_thread(broker: FakeBroker, kind: str) -> None:
    with consumer() as made:
        first, second = made.create_message_streams_by_filter(**{kind: "t.*, u"}, streams=2)
        group = FakeGroup.last
        assert group.subscription == Subscription({}, "t.*|u", kind == "whitelist", 2)
        for topic in ("t", "tt"):
            broker.logs[topic, 0] = pack([topic.encode()])
            group.own(source_of(0, topic), 1, broker.port)
        assert first.partitions == () and len(second.partitions) == 2
        assert {(next(second).topic) for _ in range(2)} == {"t", "tt"}


def test_streams_are_made_once_and_with_sense() -> None:
    made = consumer()
    for call in (
        lambda: made.create_message_streams({}),
        lambda: made.create_message_streams({"t": 0}),
        lambda: made.create_message_streams({"a/b": 1}),
        lambda: made.create_message_streams_by_filter(),
        lambda: made.create_message_streams_by_filter(whitelist="a", blacklist="b"),
        lambda: made.create_message_streams_by_filter(whitelist="("),
        lambda: made.create_message_streams_by_filter(whitelist="a", streams=0),
    ):
        with pytest.raises(ConfigError):
            call()
    for early in (made.commit_offsets, made.lag, lambda: made.seek(source_of(), 0), lambda: made.wait_assigned(1)):
        with pytest.raises(RuntimeError, match="create them first"):
            early()
    made.create_message_streams({"t": 1})
    with pytest.raises(RuntimeError, match="make another"):
        made.create_message_streams_by_filter(whitelist="t")
    made.shutdown()


def test_a_group_that_cannot_be_joined_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeGroup, "failure", CoordinationError("no ZooKeeper"))
    with pytest.raises(CoordinationError):
        consumer().create_message_streams({"t": 1})
    assert FakeGroup.last.stops == 1 and not connector._live


def test_the_three_forms_of_a_commit(broker: FakeBroker) -> None:
    with consumer() as made:
        (stream,) = made.create_message_streams({"t": 1}, decoder=bytes.decode)["t"]
        group = FakeGroup.last
        source = group.own(source_of(), 0, broker.port)
        first, second = next(stream), next(stream)
        assert first.value == "line 000"
        made.commit_offsets()
        assert group.committed == {source: first.next_offset} == made.offsets  # the one in hand may still fail
        stream.done(second)
        made.commit_offsets(wait=False)
        assert group.committed == {source: second.next_offset} == made.committed
        made.commit_offsets({source: 18})
        assert group.commits == [(None, True), (None, False), ({source: 18}, True)]


def test_processed_messages_alone_are_committed(broker: FakeBroker) -> None:
    """With ``acknowledge`` nothing counts by being followed by another one."""
    with consumer() as made:
        (stream,) = made.create_message_streams({"t": 1}, acknowledge=True)["t"]
        FakeGroup.last.own(source_of(), 0, broker.port)
        given = [next(stream) for _ in range(10)]
        assert made.offsets == {source_of(): 0}
        assert stream.done(given[4])
        assert made.offsets == {source_of(): given[4].next_offset}
    assert FakeGroup.last.committed == {source_of(): given[4].next_offset}


def test_seek_to_offsets_and_times(broker: FakeBroker) -> None:
    with consumer() as made:
        (stream,) = made.create_message_streams({"t": 1})["t"]
        source = FakeGroup.last.own(source_of(), 0, broker.port)
        end = len(broker.logs["t", 0])
        next(stream)
        made.seek(source, 18 * 50)
        assert next(stream).payload == LINES[50] and made.offsets == {source: 18 * 50}
        made.seek(source, fastlog.LATEST)
        assert made.offsets == {source: end}
        assert stream.poll(0.2) is NoMessage.AT_END
        made.seek(source, fastlog.EARLIEST)
        assert next(stream).payload == LINES[0]
        made.seek_to_time(source, 10**12)
        assert made.offsets == {source: end}
        with pytest.raises(ConfigError):
            made.seek(source, -7)
        for call in (lambda: made.seek(source_of(5), 0), lambda: made.seek_to_time(source_of(5), 0)):
            with pytest.raises(OwnershipLostError, match="t/0-5") as caught:
                call()
            assert caught.value.partitions == (source_of(5),)


def test_a_seek_waits_for_an_answer_as_long_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds."""
    given: list[float] = []
    simple = connector.SimpleConsumer

    def noting(*address: Any, timeout: float, **options: Any) -> Any:
        given.append(timeout)
        return simple(*address, timeout=timeout, **options)

    monkeypatch.setattr(connector, "SimpleConsumer", noting)
    with FakeBroker() as fake, consumer(socket_timeout_ms=7000) as made:
        fake.logs["t", 0] = pack(LINES)
        made.create_message_streams({"t": 1})
        source = FakeGroup.last.own(source_of(), 0, fake.port)
        made.seek(source, fastlog.LATEST)
        made.seek_to_time(source, 10**12)
    assert given == [7.0, 7.0]


@pytest.mark.parametrize("own", [True, False], ids=["fastlog", "plain 0.7"])
def test_lag_is_asked_of_the_brokers(broker: FakeBroker, own: bool) -> None:
    broker.own = own
    with consumer(socket_timeout_ms=1000) as made:
        (stream,) = made.create_message_streams({"t": 1})["t"]
        group = FakeGroup.last
        for number in range(2):
            group.own(source_of(number), 0, broker.port)
        group.own(source_of(0, "t", 9), 0, 1)  # nobody is there
        left = len(LINES) + 3
        while left:  # a poll may end without a message where the machine is busy
            left -= bool(stream.poll(0.2))
        stream.poll(0.2)  # who asks again is done with the last one
        assert made.lag(1) == {source_of(0): 0, source_of(1): 0, source_of(0, "t", 9): None}
        broker.logs["t", 0] += pack(LINES)
        assert made.lag(1)[source_of()] == len(pack(LINES))


def test_who_is_ahead_of_a_log_that_became_shorter_is_not_behind(broker: FakeBroker) -> None:
    """What is read may be gone again while the broker recovers, before the next fetch notices."""
    release = threading.Event()

    def hook(request: rq.Request) -> None:
        if isinstance(request, wire07.FetchRequest | wire07.HeldFetchRequest):
            release.wait(PATIENCE)

    broker.hook = hook
    with consumer() as made:
        made.create_message_streams({"t": 1})
        source = FakeGroup.last.own(source_of(), 0, broker.port, 10**6)
        try:
            assert made.lag(PATIENCE) == {source: 0}
        finally:
            release.set()


def test_a_partition_that_was_never_written_to_has_no_lag(broker: FakeBroker) -> None:
    """It is announced, and has no log yet; of one that the broker is not set to have nobody knows."""
    broker.partitions = 3
    with consumer() as made:
        made.create_message_streams({"t": 1, "u": 1})
        wanted = {source_of(2): 0, source_of(3): None, source_of(0, "u"): 0}
        for source in wanted:
            FakeGroup.last.own(source, 0, broker.port)
        wait_until(lambda: made.lag(1) == wanted)
        broker.refused["u"] = 3
        assert made.lag(1)[source_of(0, "u")] is None


def test_a_jump_is_shown_and_told_to_the_group(broker: FakeBroker) -> None:
    with consumer() as made:
        (stream,) = made.create_message_streams({"t": 1})["t"]
        source = FakeGroup.last.own(source_of(), 0, broker.port, 10**6)
        assert next(stream).payload == LINES[0]
        assert FakeGroup.last.jumps == [(source, 10**6, 0)]
        assert [jump[:3] for jump in made.jumps] == [(source, 10**6, 0)]


def test_after_the_end_everything_says_so(broker: FakeBroker) -> None:
    made = consumer()
    (stream,) = made.create_message_streams({"t": 1})["t"]
    source = FakeGroup.last.own(source_of(), 0, broker.port)
    message = next(stream)
    made.shutdown()
    made.shutdown()
    assert made.state is GroupState.STOPPED and "stopped" in repr(made)
    assert list(stream) == [] and stream.poll(1) is NoMessage.ENDED and not stream.done(message)
    assert FakeGroup.last.committed == {source: 0}
    for call in (
        made.__enter__,
        made.commit_offsets,
        made.lag,
        lambda: made.seek(source, 0),
        lambda: made.create_message_streams({"t": 1}),
    ):
        with pytest.raises(ClosedError, match="was shut down"):
            call()


def test_a_consumer_belongs_to_its_process(broker: FakeBroker) -> None:
    with consumer() as made:
        (stream,) = made.create_message_streams({"t": 1})["t"]
        FakeGroup.last.own(source_of(), 0, broker.port)
        next(stream)
        pid = os.fork()
        if not pid:
            code = 0
            try:
                for call in (lambda: next(stream), lambda: list(stream), made.commit_offsets, made.__enter__):
                    try:
                        call()
                    except ForkedError:
                        continue
                    code = 1
                made.shutdown()  # nothing of the parent's
                code = code or FakeGroup.last.stops
            except BaseException:
                code = 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert next(stream).payload == LINES[1]


def test_a_time_out_of_the_settings_is_that_of_the_streams() -> None:
    with consumer(consumer_timeout_ms=10) as made:
        (stream,) = made.create_message_streams({"t": 1})["t"]
        with pytest.raises(ConsumerTimeout, match="no partition is assigned"):
            next(stream)
    assert consumer(consumer_timeout_ms=None).config.consumer_timeout_ms is None


# -- where partitions begin ------------------------------------------------------------------------------------------


def test_where_a_partition_begins_is_known_before_it_counts_as_assigned(broker: FakeBroker) -> None:
    """With ``largest`` what comes after ``wait_assigned`` is read, however slow the broker is; the group is told."""
    answers = threading.Event()
    broker.hook = lambda request: answers.wait(PATIENCE) and None if isinstance(request, rq.OffsetsRequest) else None
    with consumer(auto_offset_reset="largest") as made:
        (stream,) = made.create_message_streams({"t": 1})["t"]
        ours = FakeGroup.last.own(source_of(), 0, broker.port, offset=None)
        assert not made.wait_assigned(1.05)
        assert FakeGroup.last.begun == [] and made._fetchers.beginning() == {ours}
        answers.set()
        assert made.wait_assigned(PATIENCE)
        assert FakeGroup.last.begun == [ours] and made._fetchers.beginning() == set()
        broker.logs["t", 0] += pack([b"later"])
        message = stream.poll(PATIENCE)
        assert isinstance(message, GroupMessage) and message.payload == b"later"


def test_where_a_partition_begins_is_told_when_nothing_is_handed_out_any_more(broker: FakeBroker) -> None:
    """So that a group that leaves at that moment can still commit it."""
    answers = threading.Event()
    broker.hook = lambda request: answers.wait(PATIENCE) and None if isinstance(request, rq.OffsetsRequest) else None
    with consumer(auto_offset_reset="largest") as made:
        (stream,) = made.create_message_streams({"t": 1})["t"]
        ours = FakeGroup.last.own(source_of(), 0, broker.port, offset=None)
        stream.end()
        answers.set()
        wait_until(lambda: FakeGroup.last.begun == [ours])
        assert made._fetchers.consumed() == {ours: len(pack(LINES))}


def test_the_group_is_told_of_a_jump_once_what_came_before_it_is_consumed(broker: FakeBroker) -> None:
    with consumer() as made:
        (stream,) = made.create_message_streams({"t": 1})["t"]
        ours = FakeGroup.last.own(source_of(), 0, broker.port, offset=10**6)
        wait_until(lambda: FakeGroup.last.jumps == [(ours, 10**6, 0)])
        assert FakeGroup.last.begun == []
        message = stream.poll(PATIENCE)
        assert isinstance(message, GroupMessage) and message.payload == LINES[0]
        assert FakeGroup.last.begun == [ours]


def test_close_is_shutdown_and_may_be_called_again(broker: FakeBroker) -> None:
    made = consumer()
    (stream,) = made.create_message_streams({"t": 1})["t"]
    made.close()
    made.close(0.1)
    made.shutdown()
    assert made.state is GroupState.STOPPED and list(stream) == []
    with pytest.raises(ClosedError):
        made.commit_offsets()


def test_a_group_that_does_not_end_in_time_leaves_nothing_that_fetches(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose worker hangs; and what it still takes when it goes on is given up at once."""
    monkeypatch.setattr(FakeGroup, "stop", lambda group, timeout: None)
    made = consumer()
    (stream,) = made.create_message_streams({"t": 1})["t"]
    group = FakeGroup.last
    group.own(source_of(0), 0, broker.port)
    assert next(stream).payload == LINES[0]
    made.close()
    wait_until(lambda: not fetching_threads())
    group.own(source_of(1), 0, broker.port)
    wait_until(lambda: not fetching_threads())
    assert made.partitions == {} and next(stream, None) is None
