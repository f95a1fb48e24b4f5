"""``fastlog mirror`` for topics of record batches, between two brokers of fastlog: every record once, as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from fastlog import record_batches, testing
from fastlog.client.addresses import Address
from fastlog.client.records import EARLIEST, LATEST, RecordBroker, RecordsError
from fastlog.mirror import MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.mirror.records import RecordMirror
from fastlog.record_batches import Record
from fastlog.testing import RunningBroker
from tests.harness.broker import KEPT, wait_until
from tests.harness.timing import PATIENCE

SESSION = {"group.min.session.timeout.ms": "500"} | KEPT
CODECS = (0, 1, 2, 3, 4)


@pytest.fixture(scope="module")
def source() -> Iterator[RunningBroker]:
    with testing.broker(processors=1, properties=KEPT) as running:
        yield running


@pytest.fixture(scope="module")
def target() -> Iterator[RunningBroker]:
    with testing.broker(processors=1, properties=SESSION) as running:
        yield running


def client(broker: RunningBroker) -> RecordBroker:
    return RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE)


def append(broker: RunningBroker, topic: str, partition: int, records: Sequence[Record], codec: int = 0) -> None:
    with client(broker) as there:
        data = record_batches.build(records, codec=codec)
        (answer,) = there.append({(topic, partition): data}, is_flushed=True).values()
        assert answer.code == 0, answer


def stored(broker: RunningBroker, topic: str, partition: int = 0) -> list[Record]:
    """All records of a partition, with the codec of their batch in place of the offset."""
    found: list[Record] = []
    with client(broker) as there:
        place = topic, partition
        at, end = there.offsets([place], EARLIEST)[place], there.offsets([place], LATEST)[place]
        while at < end:
            (fetched,) = there.fetch({place: at}).values()
            assert fetched.code == 0
            for header, batch in record_batches.batches(fetched.batches):
                found += [
                    record._replace(offset=header.codec)
                    for record in record_batches.records(batch)
                    if record.offset >= at
                ]
                at = header.next_offset
    return found


def count(broker: RunningBroker, topic: str, partition: int = 0) -> int:
    """How many records there are; none where there is no topic."""
    with client(broker) as there:
        try:
            return there.offsets([(topic, partition)], LATEST)[topic, partition]
        except RecordsError:
            return 0


def config(
    source: RunningBroker,
    target: RunningBroker,
    whitelist: str,
    *,
    group: str | None = None,
    settings: dict[str, str] | None = None,
    consumer: dict[str, str] | None = None,
    producer: dict[str, str] | None = None,
) -> MirrorConfig:
    given = {
        "bootstrap.servers": source.address,
        "groupid": group or f"mirror-{whitelist}",
        "session.timeout.ms": "1000",
        "heartbeat.interval.ms": "50",
        "metadata.max.age.ms": "200",
        "autocommit.interval.ms": "50",
        **(consumer or {}),
    }
    return MirrorConfig(
        sources=(SourceConfig.from_properties("one", given),),
        target=TargetConfig.from_properties({"bootstrap.servers": target.address, **(producer or {})}),
        settings=MirrorSettings.from_properties({"mirror.topics.whitelist": whitelist, **(settings or {})}),
    )


@contextmanager
def running(made: MirrorConfig) -> Iterator[RecordMirror]:
    mirror = RecordMirror(made)
    mirror.start()
    try:
        yield mirror
    except BaseException:
        mirror.stop(1.0)
        raise
    assert mirror.stop(PATIENCE) == []


def wait_for(mirror: RecordMirror, what: str, is_so: Callable[[], bool]) -> None:
    def looked() -> bool:
        mirror.wait(0.0)
        return is_so()

    try:
        wait_until(what, looked, PATIENCE)
    except AssertionError as error:
        (one,) = mirror.sources
        raise AssertionError(f"{error}: {one.state} {one.waiting} {one.lag}") from None


def records_of(number: int, count: int) -> list[Record]:
    return [
        Record(
            key=None if i % 3 == 0 else b"key %d" % i,
            value=None if i % 5 == 4 else b"value %d.%d" % (number, i),
            timestamp=1_700_000_000_000 + 7 * i,
            headers=((b"h", b"%d" % i), (b"nothing", None)) if i % 2 else (),
        )
        for i in range(count)
    ]


def test_every_codec_key_header_time_and_null_comes_as_it_was(source: RunningBroker, target: RunningBroker) -> None:
    with client(source) as there:
        there.create("plain", 2, {"max.message.bytes": "123456", "retention.ms": "-1"})
    for partition in (0, 1):
        for codec in CODECS:
            append(source, "plain", partition, records_of(codec, 40 + partition), codec)
    with running(config(source, target, "plain")) as mirror:
        wait_for(mirror, "all is there", lambda: count(target, "plain", 0) == 200 and count(target, "plain", 1) == 205)
        append(source, "plain", 1, records_of(9, 3), 4)
        wait_for(mirror, "what came later too", lambda: count(target, "plain", 1) == 208)
        (one,) = mirror.sources
        wait_for(mirror, "nothing is left", lambda: one.lag == {("plain", 0): 0, ("plain", 1): 0})
        wait_for(mirror, "all is counted", lambda: one.totals.entries == 408)
        assert (one.totals.left_out, one.waiting, one.state) == (0, {}, "")
    for partition in (0, 1):
        assert stored(target, "plain", partition) == stored(source, "plain", partition)
    with client(target) as there:
        settings = there.settings("plain")
        assert {name for name, found in settings.items() if found.is_own} == {"max.message.bytes", "retention.ms"}
        assert settings["max.message.bytes"].value == "123456"


def test_a_mirror_goes_on_where_the_former_one_was(source: RunningBroker, target: RunningBroker) -> None:
    with client(source) as there:
        there.create("goes-on", 1, {})
    for turn, wanted in enumerate((10, 21, 33)):
        append(source, "goes-on", 0, records_of(turn, 10 + turn))
        with running(config(source, target, "goes-on")) as mirror:
            wait_for(mirror, "it came", lambda wanted=wanted: count(target, "goes-on") == wanted)
    assert stored(target, "goes-on") == stored(source, "goes-on")
