"""Clusters mirrored into another one, with real brokers and ZooKeepers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fastlog import Producer, SimpleConsumer, testing
from fastlog.errors import ConfigError, TransportError
from fastlog.mirror import Forwarded, Mirror, MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.testing import RunningZooKeeper
from fastlog.zkpaths import PartitionId, offset_path, parse_number
from tests.fault.programs import ROOT, environment
from tests.harness import raw_client as raw
from tests.harness.audit import audit, totals
from tests.harness.broker import Broker, wait_until
from tests.harness.mirrors import Origin, compare, raw_entries
from tests.harness.registration import Tree, registered_broker

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(180)]

WAIT_SECONDS = 60.0
ENTRIES_OF_TWO, ENTRIES_OF_THREE = 2 * 21, 3 * 21
"""In a partition of the target that has two, or three, of the sources."""
SESSION = "zk.sessiontimeout.ms=1000\nrebalance.backoff.ms=200\nautocommit.interval.ms=100\n"


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    """Shared by the tests of this module, each in a part of its own."""
    with testing.zookeeper() as running:
        yield running


@pytest.fixture
def clusters(
    zookeeper: RunningZooKeeper, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Broker]]:
    """Starts brokers by cluster and id, in a tree of this test's own: ``connect`` says where."""
    with ExitStack() as stack:

        def start(name: str, number: int = 0, partitions: int = 1, **options: object) -> Broker:
            settings = {"num.partitions": partitions, "flush.min.interval.ms": 1, **options.pop("settings", {})}  # type: ignore[dict-item]
            directory = tmp_path / f"{name}{number}"
            place = connect(zookeeper, tmp_path, name)
            made = registered_broker(directory, place, number, processors=1, settings=settings, **options)  # type: ignore[arg-type]
            return stack.enter_context(made)

        yield start


def connect(zookeeper: RunningZooKeeper, directory: Path, name: str) -> str:
    """The ``zk.connect`` of a test's cluster."""
    return f"{zookeeper.connect}/{re.sub('[^a-z0-9]', '', directory.name)}/{name}"


def produce(broker: Broker, topic: str, partition: int, payloads: list[bytes], codec: int = raw.NONE) -> None:
    """Append a set, and wait until it is flushed."""
    with broker.connect() as client:
        answer = client.produce_ack(topic, partition, raw.message_set(payloads, codec=codec), raw.FLUSHED)
    assert answer.error == 0


def numbered(name: str, count: int) -> list[bytes]:
    """Payloads that nobody else has."""
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


def mirror_config(sources: Mapping[str, str], target: Mapping[str, str], settings: Mapping[str, str]) -> MirrorConfig:
    """With sessions and pauses that suit a test."""
    common = dict(line.split("=") for line in SESSION.splitlines())
    return MirrorConfig(
        sources=tuple(
            SourceConfig.from_properties(name, {"zk.connect": place, "groupid": "m", **common})
            for name, place in sources.items()
        ),
        target=TargetConfig.from_properties(target),
        settings=MirrorSettings.from_properties(settings),
    )


@contextmanager
def running(config: MirrorConfig, observer: Callable[[Forwarded], object] | None = None) -> Iterator[Mirror]:
    """A mirror for the length of the block."""
    mirror = Mirror(config, observer)
    mirror.start()
    try:
        yield mirror
    finally:
        mirror.stop()


def wait_stored(broker: Broker, topic: str, partition: int, count: int) -> list[bytes]:
    """The entries of a partition once there are so many."""

    def found() -> list[bytes]:
        return raw_entries(broker.stored_bytes(topic, partition)) if broker.has_directory(topic, partition) else []

    wait_until(f"{count} entries of {topic}-{partition}", lambda: len(found()) >= count, WAIT_SECONDS, 0.02)
    return found()


def test_two_clusters_into_one_by_the_command(
    zookeeper: RunningZooKeeper, clusters: Callable[..., Broker], tmp_path: Path
) -> None:
    """0.7's names of options; a cluster of as many partitions keeps them, one of more is spread; a topic that comes
    later joins; after SIGTERM everything is committed."""
    with testing.zookeeper() as other:
        two = f"{other.connect}/two"
        one, target = clusters("one", 0, 3), clusters("target", 7, 3)
        with (
            registered_broker(tmp_path / "two0", two, 0, processors=1, settings={"num.partitions": 2}) as first,
            registered_broker(tmp_path / "two1", two, 1, processors=1, settings={"num.partitions": 2}) as second,
        ):
            places = {("one", 0): one, ("two", 0): first, ("two", 1): second}

            def send(topic: str) -> dict[tuple[str, str, int], bytes]:
                held = {}
                for (name, number), broker in places.items():
                    for partition in range(3 if name == "one" else 2):
                        words = numbered(f"{name} {number} {topic} {partition}", 50)
                        produce(broker, topic, partition, words[:20])
                        produce(broker, topic, partition, words[20:], raw.GZIP)
                        held[name, topic, 10 * number + partition] = broker.stored_bytes(topic, partition)
                return held

            held = send("logs-a")
            for name, place in (("one", connect(zookeeper, tmp_path, "one")), ("two", two)):
                (tmp_path / f"{name}.properties").write_text(f"zk.connect={place}\ngroupid=m\n{SESSION}")
            target_place = connect(zookeeper, tmp_path, "target")
            (tmp_path / "target.properties").write_text(f"zk.connect={target_place}\nproducer.type=async\n")
            command = [sys.executable, "-m", "fastlog", "mirror", "--json", "--progress", "200ms"]
            command += ["--consumer.config", "one.properties", "--consumer.config", "two.properties"]
            command += ["--producer.config", "target.properties", "--whitelist", "logs-.*"]
            command += ["--num.streams", "2", "--num.producers", "2"]
            process = subprocess.Popen(
                command,
                cwd=tmp_path,
                env={**environment(), "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                wait_stored(target, "logs-a", 2, ENTRIES_OF_TWO)
                held |= send("logs-b")
                for partition, count in enumerate((ENTRIES_OF_THREE, ENTRIES_OF_TWO, ENTRIES_OF_TWO)):
                    wait_stored(target, "logs-b", partition, count)
                assert process.stdout is not None
                _wait_line(process.stdout, lambda found: found["lag_bytes"] == 0 and found["partitions"] in (6, 8))
                process.send_signal(signal.SIGTERM)
                _, said = process.communicate(timeout=WAIT_SECONDS)
            finally:
                process.kill()
            assert process.returncode == 0, said
            assert "without effect in a mirror" in said
            assert "producer.type" in said
            mirrored = {
                (topic, partition): target.stored_bytes(topic, partition)
                for topic in ("logs-a", "logs-b")
                for partition in range(3)
            }
            found = compare(held, mirrored)
            assert found.violations == []
            assert not found.repeats
            for (name, topic, number), where in found.places.items():
                index = number if name == "one" else number // 10 * 2 + number % 10
                assert where == {(topic, index % 3)}
            assert committed(connect(zookeeper, tmp_path, "one"), held, "one") == _ends(held, "one")
            assert committed(two, held, "two") == _ends(held, "two")


def committed(place: str, held: Mapping[Origin, bytes], cluster: str) -> dict[Origin, int]:
    """What the group has saved of a cluster's partitions."""
    found = {}
    with Tree(place) as tree:
        for name, topic, number in held:
            if name == cluster:
                node = tree.node(offset_path("m", topic, PartitionId(number // 10, number % 10)))
                found[name, topic, number] = parse_number(node.data) if node is not None else 0
    return found


def _ends(held: Mapping[Origin, bytes], cluster: str) -> dict[Origin, int]:
    return {origin: len(data) for origin, data in held.items() if origin[0] == cluster}


def _wait_line(lines: Iterator[str], holds: Callable[[dict[str, object]], bool]) -> None:
    """Read JSON lines until both sources have one that holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    seen: set[object] = set()
    for line in lines:
        found = json.loads(line)
        if holds(found):
            seen.add(found["source"])
        if len(seen) == 2:
            return
        assert time.monotonic() < deadline, f"the last line was {line}"
    raise AssertionError("the mirror ended")


def test_in_a_broker(zookeeper: RunningZooKeeper, clusters: Callable[..., Broker], tmp_path: Path) -> None:
    """One process more, replaced when it is killed and stopped with the broker, which it writes into."""
    source = clusters("source", 0, 2)
    produce(source, "t", 1, numbered("first", 10))
    (tmp_path / "source.properties").write_text(
        f"zk.connect={connect(zookeeper, tmp_path, 'source')}\ngroupid=m\n{SESSION}"
    )
    (tmp_path / "mirror.properties").write_text(
        "mirror.consumer.config=source.properties\nmirror.topics.blacklist=x.*\nmirror.progress.ms=100\n"
    )
    broker = clusters("target", 0, 2, arguments=["--mirror", str(tmp_path / "mirror.properties")])
    assert len(wait_stored(broker, "t", 1, 10)) == 10
    broker.wait_log(r"mirror\[\d+\] source: 10 entries.* lag 0B")
    wait_until("it is committed", lambda: _committed(zookeeper, tmp_path, "t", 1) > 0, WAIT_SECONDS, 0.02)
    pid = broker.kill("mirror")
    broker.wait_replaced("mirror", pid, WAIT_SECONDS)
    produce(source, "t", 1, numbered("second", 10))
    assert wait_stored(broker, "t", 1, 20) == raw_entries(source.stored_bytes("t", 1))
    pids = broker.pids()
    assert broker.stop() == 0
    assert not Path(f"/proc/{pids['mirror']}").exists()
    assert "source: mirrored 10 entries" in broker.log_text()
    assert _committed(zookeeper, tmp_path, "t", 1) == len(source.stored_bytes("t", 1))


def _committed(zookeeper: RunningZooKeeper, directory: Path, topic: str, partition: int) -> int:
    with Tree(connect(zookeeper, directory, "source")) as tree:
        node = tree.node(offset_path("m", topic, PartitionId(0, partition)))
        return parse_number(node.data) if node is not None else 0


def test_a_broker_with_a_mirror_that_cannot_be_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "mirror.properties").write_text("mirror.topics.whitelst=x\n")
    broker = Broker(tmp_path, arguments=["--mirror", str(tmp_path / "mirror.properties")])
    with broker:
        assert broker.process is not None
        assert broker.process.wait(WAIT_SECONDS) == 1
        assert "did you mean 'mirror.topics.whitelist'" in broker.log_text()


def test_a_cluster_is_not_mirrored_into_itself(
    zookeeper: RunningZooKeeper, clusters: Callable[..., Broker], tmp_path: Path
) -> None:
    """Also when the target is named in another way than the source: nothing is forwarded before it is refused."""
    broker = clusters("source", 0)
    produce(broker, "t", 0, numbered("m", 10))
    before = broker.stored_bytes("t", 0)
    place = connect(zookeeper, tmp_path, "source")
    with pytest.raises(ConfigError, match="again and again"):
        mirror_config({"a": place}, {"zk.connect": place + "/"}, {"mirror.topics.whitelist": "t"})
    config = mirror_config({"a": place}, {"broker.list": f"localhost:{broker.port}"}, {"mirror.topics.whitelist": "t"})
    with running(config) as mirror, pytest.raises(ConfigError, match="a is the target itself"):
        mirror.wait(WAIT_SECONDS)
    assert broker.stored_bytes("t", 0) == before


def test_an_observer_is_told_of_everything_before_it_is_committed(
    zookeeper: RunningZooKeeper, clusters: Callable[..., Broker], tmp_path: Path
) -> None:
    """The bytes it is shown are those of the log, one run behind the other."""
    source, target = clusters("source", 0), clusters("target", 0)
    produce(source, "t", 0, numbered("m", 100))
    told: list[tuple[str, int, int, bytes, int]] = []
    committed: list[int] = []
    lock = threading.Lock()

    def observe(run: Forwarded) -> None:
        with lock:
            committed.append(_committed(zookeeper, tmp_path, "t", 0))
            told.append((run.cluster, run.offset, run.next_offset, bytes(run.data), run.entries))

    config = mirror_config(
        {"a": connect(zookeeper, tmp_path, "source")},
        {"broker.list": f"127.0.0.1:{target.port}", "batch.bytes": "500"},
        {"mirror.topics.whitelist": "t"},
    )
    with running(config, observe):
        wait_stored(target, "t", 0, 100)
    stored = source.stored_bytes("t", 0)
    assert b"".join(data for _, _, _, data, _ in told) == stored
    assert [offset for _, offset, _, _, _ in told] == [0, *(end for _, _, end, _, _ in told[:-1])]
    assert sum(entries for *_, entries in told) == 100
    assert all(before <= offset for before, (_, offset, *_) in zip(committed, told, strict=True))
    assert _committed(zookeeper, tmp_path, "t", 0) == len(stored)


@pytest.mark.parametrize("skips", [False, True])
def test_a_damaged_message_of_a_source(
    skips: bool, zookeeper: RunningZooKeeper, clusters: Callable[..., Broker], tmp_path: Path
) -> None:
    """Its partition stops there, and says so, or goes on behind it; others are not held up."""
    source, target = clusters("source", 0, 2), clusters("target", 0, 2)
    words = numbered("m", 30)
    produce(source, "t", 0, words)
    source.stop()
    (path,) = source.segments("t", 0).values()
    data = bytearray(path.read_bytes())
    place = raw.entries(bytes(data))[10].next_offset - 1
    data[place] ^= 1
    path.write_bytes(bytes(data))
    source.start()
    produce(source, "t", 1, words)
    given = {"mirror.topics.whitelist": "t", "mirror.bad.messages": "skip" if skips else "stop"}
    config = mirror_config(
        {"a": connect(zookeeper, tmp_path, "source")}, {"zk.connect": connect(zookeeper, tmp_path, "target")}, given
    )
    with running(config) as mirror:
        assert len(wait_stored(target, "t", 1, 30)) == 30
        found = wait_stored(target, "t", 0, 29 if skips else 10)
        held = [data[item.offset : item.next_offset] for item in _walk(data)]
        assert found == held[:10] + (held[11:] if skips else [])
        if skips:
            wait_until("it is counted", lambda: mirror.sources[0].totals.left_out == 1, WAIT_SECONDS)
        else:
            wait_until("it is said", lambda: len(mirror.sources[0].waiting) == 1, WAIT_SECONDS)
            ((partition, error),) = mirror.sources[0].waiting.items()
            assert str(partition) == "t/0-0"
            assert "damaged" in str(error)
    assert _committed(zookeeper, tmp_path, "t", 1) == len(source.stored_bytes("t", 1))


def _walk(data: bytearray) -> list[raw.Entry]:
    """The entries, the damaged one too."""
    found = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(raw.Entry(at, end, data[at + 4], data[at + 5], bytes(data[at + 10 : end])))
        at = end
    return found


class Keeping:
    """An observer that cannot keep what it is told until it is allowed to."""

    def __init__(self) -> None:
        self.is_allowed = False
        self.asked = self.entries = 0

    def __call__(self, run: Forwarded) -> None:
        self.entries += run.entries

    def keep(self) -> None:
        self.asked += 1
        if not self.is_allowed:
            raise TransportError("not now")


def test_offsets_stay_until_the_observer_has_kept_what_it_was_told(
    zookeeper: RunningZooKeeper, clusters: Callable[..., Broker], tmp_path: Path
) -> None:
    """A mirror that ends before that leaves the messages to come again; afterwards they count as done."""
    source, target = clusters("source"), clusters("target")
    config = mirror_config(
        {"source": connect(zookeeper, tmp_path, "source")},
        {"zk.connect": connect(zookeeper, tmp_path, "target")},
        {"mirror.topics.whitelist": "t"},
    )
    produce(source, "t", 0, [b"x"] * 50)
    end = len(source.stored_bytes("t", 0))
    for times in (1, 2):
        with running(config, observer := Keeping()) as mirror:
            wait_stored(target, "t", 0, 50 * times)
            wait_asked_twice(observer)
            assert consumed(mirror) == {0}
            if times == 2:
                observer.is_allowed = True
                wait_until("it counts as done", lambda: consumed(mirror) == {end}, WAIT_SECONDS)
        assert observer.entries == 50
    with running(config, Keeping()) as mirror:
        wait_until("it goes on behind it", lambda: consumed(mirror) == {end}, WAIT_SECONDS)


def wait_asked_twice(observer: Keeping) -> None:
    """Until it refused what was told before this."""
    asked = observer.asked
    wait_until("it was asked twice", lambda: observer.asked > asked + 1, WAIT_SECONDS)


def consumed(mirror: Mirror) -> set[int]:
    """How far the partitions of a mirror's first source count as done."""
    consumer = mirror.sources[0].consumer
    return set() if consumer is None else set(consumer.offsets.values())


def test_a_mirror_is_a_stage_of_the_audit(
    zookeeper: RunningZooKeeper, clusters: Callable[..., Broker], tmp_path: Path
) -> None:
    """Reports, the target's log and the mirror's counts agree, of closed sets too; then one is lost."""
    source, target = clusters("source", partitions=2), clusters("target", partitions=2)
    config = mirror_config(
        {"source": connect(zookeeper, tmp_path, "source")},
        {"zk.connect": connect(zookeeper, tmp_path, "target")},
        {"mirror.topics.whitelist": "t|audit", "mirror.audit.stage": "mirror"},
    )
    for compression in ("none", "gzip"):
        with Producer(f"localhost:{source.port}", audit_topic="audit", compression=compression) as producer:
            producer.send("t", [b"x"] * 500)
    arguments = ("--brokers", f"localhost:{target.port}", "--grace", "0")
    with running(config):

        def all_there() -> bool:
            code, rows, _ = audit(*arguments)
            return code == 0 and totals(rows)["sent"] == totals(rows, "mirror")["sent"] == 1000

        wait_until("everything is there, and counted", all_there, WAIT_SECONDS, 0.5)
    _, rows, _ = audit(*arguments)
    assert {(row["stage"], row["state"]) for row in rows} == {("brokers", "ok"), ("mirror", "ok")}
    with Producer(f"localhost:{source.port}", audit_topic="lost") as producer:
        producer.send("t", b"y")  # behind the mirror's end, so that nobody forwards it
    with SimpleConsumer("localhost", source.port) as consumer, Producer(f"localhost:{target.port}") as producer:
        metadata = consumer.metadata(["lost"])
        assert metadata is not None
        for item in metadata.topics[0].partitions:
            producer.send("audit", list(consumer.payloads("lost", item.partition)))
    code, rows, _ = audit(*arguments)
    assert (code, totals(rows)["missing"], totals(rows, "mirror")["missing"]) == (1, 1, 1)
