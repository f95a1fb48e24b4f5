"""``fastlog consume`` against a broker that dies, lies or is old, as a user runs it."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from fastlog import message
from fastlog.consumer import group
from fastlog.consumer.feed import Jump
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.stream import GroupMessage, NoMessage
from fastlog.errors import CoordinationError, InvalidMessageError
from fastlog.message import encode_set
from fastlog.tools import consume_run, group_reading, signals
from fastlog.tools.consume_run import ConsumeRun
from fastlog.tools.lanes import FetchError, ReadCursor, Track
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.zkpaths import PartitionId
from tests.harness import wire07
from tests.harness.command_line import Commands
from tests.harness.command_process import refused, run, started
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE, SHORTEST_PROOF, patch_time, sooner_than


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


def test_json(broker: FakeBroker) -> None:
    broker.logs["t", 0] = message.encode_set(["é".encode(), b"\xff\n"]) + message.encode_set([b"in", b"side"], codec=1)
    code, out, _ = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    end = len(broker.logs["t", 0])
    assert code == 0
    assert found[0] == {
        "topic": "t", "partition": 0, "offset": 0, "next_offset": 12, "payload": "é", "base64": False,
    }  # fmt: skip
    assert base64.b64decode(found[1]["payload"]) == b"\xff\n" and found[1]["base64"]
    assert [(item["offset"], item["next_offset"]) for item in found] == [(0, 12), (12, 24), (24, 24), (24, end)]


def test_selection(broker: FakeBroker) -> None:
    broker.partitions = 3
    for partition in (0, 2):
        broker.logs["t", partition] = message.encode_set([b"%d%d" % (partition, number) for number in range(5)])
    common = ("consume", "--brokers", broker.address, "--topic", "t")
    assert sorted(run(*common, "--exit-at-end")[1].split()) == [b"%d%d" % (p, n) for p in (0, 2) for n in range(5)]
    code, out, err = run(*common, "--partition", "2", "--offset", "24", "--max-messages", "2")
    assert (code, out) == (0, b"22\n23\n") and "next offset by partition: 2:48" in err
    assert run(*common, "--partition", "1", "--exit-at-end")[:2] == (0, b"")
    code, out, err = run(*common, "--offset", "12", "--exit-at-end")
    assert (code, out) == (2, b"") and "--partition" in refused(code, err)[2]
    assert run(*common, "--offset", "end", "--exit-at-end")[:2] == (0, b"")
    code, out, err = run(*common, "--offset", "end", "--timeout", "100ms")
    assert (code, out) == (4, b"")
    assert run(*common, "--partition", "0", "--offset", "60", "--exit-at-end")[:2] == (0, b"")
    for end in ([], ["--exit-at-end"]):
        code, out, err = run(*common, "--partition", "0", "--offset", "1000", *end)
        what, why, _ = refused(code, err)
        assert code == 1 and "partition 0 has no offset 1000" in what and "from 0 to 60" in why
        code, out, err = run(*common, "--partition", "3", *end)
        what, why, _ = refused(code, err)
        assert code == 2 and "no partition 3" in what and "0 to 2" in why


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
def test_a_plain_broker_is_read_as_a_whole(broker: FakeBroker, count: int) -> None:
    """It has no request that tells how many partitions there are, but refuses to fetch from others."""
    broker.own, broker.partitions = False, count
    for partition in range(count):
        broker.logs["t", partition] = message.encode_set([b"%d" % partition])
    common = ("--brokers", broker.address)
    code, out, _ = run("consume", *common, "--topic", "t", "--exit-at-end")
    assert code == 0 and sorted(map(int, out.split())) == list(range(count))
    code, out, _ = run("topics", "offsets", "t", *common, "--no-headers")
    assert code == 0 and out.splitlines() == [b"t\t%d\t11" % partition for partition in range(count)]
    code, _, err = run("consume", *common, "--topic", "t", "--partition", str(count), "--exit-at-end")
    assert code == 2 and f"no partition {count}" in refused(code, err)[0]
    code, _, err = run("consume", *common, "--topic", "t", "--partition", "0", "--offset", "12", "--exit-at-end")
    assert code == 1 and "from 0 to 11" in refused(code, err)[1]


def test_unknown_topic_is_named(broker: FakeBroker) -> None:
    broker.logs["access", 0] = b""
    code, out, err = run("consume", "--brokers", broker.address, "--topic", "acces", "--exit-at-end")
    assert (code, out) == (2, b"") and "did you mean 'access'" in refused(code, err)[2]
    code, _, err = run("topics", "describe", "acess", "--brokers", broker.address)
    assert code == 2 and "did you mean 'access'" in refused(code, err)[2]


def test_fetch_grows_for_a_long_message(broker: FakeBroker) -> None:
    sent = [b"short", b"x" * 100_000, b"y" * 3, b"z" * 200_000]
    broker.logs["t", 0] = message.encode_set(sent)
    code, out, _ = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end", "--fetch-bytes", "16")
    assert code == 0 and out.split(b"\n")[:-1] == sent


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_damage_exits_5_after_what_is_whole(broker: FakeBroker, extra: list[str]) -> None:
    good = message.encode_set([b"one", b"two"])
    bad = bytearray(message.encode_set([b"three"]))
    bad[-1] ^= 1
    broker.logs["t", 0] = good + bytes(bad) + good
    code, out, err = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end", *extra)
    assert code == 5 and out.count(b"\n") == 2
    assert f"partition 0, offset {len(good)}" in refused(code, err)[0]


def test_damage_inside_a_compressed_set_exits_5(broker: FakeBroker) -> None:
    good = message.encode_set([b"one"])
    broker.logs["t", 0] = good + message.Message(b"no gzip", 1, 1).encode()
    code, out, err = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end")
    assert (code, out) == (5, b"one\n") and f"offset {len(good)}" in refused(code, err)[0]


@pytest.mark.parametrize("claim", [-5, 2**30])
def test_absurd_length_exits_5(broker: FakeBroker, claim: int) -> None:
    broker.logs["t", 0] = claim.to_bytes(4, "big", signed=True) + b"\x01" * 60
    code, out, _ = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end")
    assert (code, out) == (5, b"")


def test_consume_goes_on_after_the_connection_broke() -> None:
    """R-28: at the right offset; nothing twice, nothing lost."""
    fetches = 0

    def die(request: rq.Request) -> bytes | None:
        nonlocal fetches
        if isinstance(request, wire07.HeldFetchRequest):
            fetches += 1
            if fetches % 3 == 0:
                raise ConnectionError
        return None

    sent = [b"line %d" % number for number in range(3000)]
    with FakeBroker(after=die) as fake:
        fake.logs["t", 0] = message.encode_set(sent)
        code, out, _ = run(
            "consume", "--brokers", fake.address, "--topic", "t", "--exit-at-end", "--fetch-bytes", "10000"
        )
    assert code == 0 and out.split(b"\n")[:-1] == sent and fetches > 6


def test_more_partitions_than_connections(broker: FakeBroker) -> None:
    broker.partitions = 70
    for partition in range(70):
        broker.logs["t", partition] = message.encode_set([b"%d" % partition] * 2)
    code, out, _ = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end")
    assert code == 0 and sorted(out.split(), key=int) == [b"%d" % (number // 2) for number in range(140)]


def test_head_1_exits_0_quietly(broker: FakeBroker) -> None:
    """A reader that has enough closes the pipe: that is success, without a word."""
    broker.logs["t", 0] = message.encode_set([b"x" * 1000] * 5000)
    with started("consume", "--brokers", broker.address, "--topic", "t") as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("blocked_on", ["an answer", "the reader of the pipe"])
def test_signal_stops_consume_at_once(broker: FakeBroker, signum: signal.Signals, code: int, blocked_on: str) -> None:
    """R-1: whatever it waits for goes on for ever, so it ends because of the signal; with a summary."""
    count = 1 if blocked_on == "an answer" else 5000
    broker.logs["t", 0] = message.encode_set([b"x" * 1000] * count)
    with started("consume", "--brokers", broker.address, "--topic", "t") as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        time.sleep(0.1)
        process.send_signal(signum)
        assert process.wait(PATIENCE) == code
        process.stdout.close()
        err = process.stderr.read().decode()
    assert err.startswith("consumed ") and "Traceback" not in err


@pytest.mark.parametrize(
    ("offset", "shown"),
    [("5h", "abc"), ("150min", "bc"), ("1h", "c"), ("1s", ""), ("2100-01-01", ""), ("1999-12-31T23:59", "abc")],
)
def test_from_a_moment_on(offset: str, shown: str, broker: FakeBroker, capfd: pytest.CaptureFixture[str]) -> None:
    """A segment for each of three messages, last appended to three hours, two hours and ten minutes ago."""
    broker.logs["t", 0] = log = encode_set([b"a", b"b", b"c"])
    size, now_ms = len(log) // 3, time.time() * 1000
    starts = [(0, now_ms - 3 * 3_600_000), (size, now_ms - 2 * 3_600_000), (2 * size, now_ms - 600_000)]

    def tell(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.OffsetsRequest) or request.time == rq.TIME_EARLIEST:
            return None
        ends = [(3 * size, now_ms - 600_000)]
        wanted = [at for at, ms in starts + ends if request.time == rq.TIME_LATEST or ms <= request.time]
        return rs.encode_offsets(0, wanted[::-1][: request.max_count])

    broker.hook = tell
    ran = Commands(capfd)("consume", "--brokers", broker.address, "--topic", "t", "--offset", offset, "--exit-at-end")
    assert (ran.code, ran.out.replace("\n", "")) == (0, shown)


class Scripted:
    """Stands for the threads that read: each beginning gives what ``scripts`` says, and notes where it began."""

    scripts: ClassVar[list[Callable[[Sequence[ReadCursor]], Iterator[tuple[None, str] | None]]]] = []
    begins: ClassVar[list[list[int]]] = []

    def __init__(self, tracks: Sequence[Track], fetch_bytes: int) -> None:
        self.cursors = tracks[0].cursors

    def sets(self, seconds: float) -> Iterator[tuple[None, str] | None]:
        self.begins.append([cursor.offset for cursor in self.cursors])
        return self.scripts.pop(0)(self.cursors)

    def close(self) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(Scripted, "scripts", [])
    monkeypatch.setattr(Scripted, "begins", [])
    monkeypatch.setattr(consume_run, "Lanes", Scripted)
    return Scripted


def run_of(cursors: list[ReadCursor], timeout: float | None = None, **options: bool) -> tuple[ConsumeRun, list[str]]:
    """A run over these, and what it prints or says."""
    said: list[str] = []
    start: Any = SimpleNamespace(
        cursors=cursors, skip={}, topic="t", addresses=[None], open=lambda address: contextlib.nullcontext()
    )
    printer: Any = SimpleNamespace(positions={}, skip={}, left=None, print=said.append)
    progress: Any = SimpleNamespace(goal=0, idle=lambda: None, say=said.append)
    return ConsumeRun(start, printer, progress, 1000, timeout, **options), said


def test_behind_damage_every_partition_goes_on_behind_what_was_printed(
    scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read ahead of another partition was thrown away with the threads that had read it."""
    monkeypatch.setattr(consume_run, "find_end_of_damage", lambda *_: SimpleNamespace(start=70, end=90))

    def fails(cursors: Sequence[ReadCursor]) -> Iterator[tuple[None, str] | None]:
        cursors[0].offset = 5000
        raise FetchError(Track(lambda _: None, [], "t", cursors), cursors[1], InvalidMessageError("damaged"))  # type: ignore[arg-type,return-value]

    scripted.scripts += [fails, lambda cursors: iter(())]
    run, said = run_of([ReadCursor(0, 100, None), ReadCursor(1, 70, None)], skips_damage=True)
    with signals.deferred():
        run.run()
    assert scripted.begins == [[100, 70], [100, 90]]
    assert run.skipped == 1
    assert said == ["skipped partition 1, offsets 70 to 90: damaged"]


def test_a_groups_summary_counts_each_damaged_place(monkeypatch: pytest.MonkeyPatch) -> None:
    error = InvalidMessageError("damaged")
    place = TopicPartition("t", PartitionId(0, 0))
    said: list[str] = []
    consumer: Any = SimpleNamespace(
        partitions={place: SimpleNamespace(error=error, address=SimpleNamespace(host="h", port=1))},
        offsets={place: 70},
        config=SimpleNamespace(auto_commit=False),
        seek=lambda source, offset: consumer.offsets.update({source: offset}),
        shutdown=lambda: None,
    )
    progress: Any = SimpleNamespace(say=said.append, summary=said.append)
    monkeypatch.setattr(group_reading, "Consumer", lambda config: consumer)
    monkeypatch.setattr(group_reading, "SimpleConsumer", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(
        group_reading, "find_end_of_damage", lambda *given: SimpleNamespace(start=given[3], end=given[3] + 20)
    )
    reading: Any = group_reading.GroupReading(
        consumer.config, consumer, None, progress, max_messages=None, timeout=None, exit_at_end=True, skips_damage=True
    )
    for _ in range(3):
        reading._get_past(error)
    reading._leave()
    assert [line.partition(":")[0] for line in said] == [
        "skipped t/0-0, offsets 70 to 90",
        "skipped t/0-0, offsets 90 to 110",
        "skipped t/0-0, offsets 110 to 130",
        "; skipped 3 damaged places; next offset t/0-0",
    ]


ONE, TWO = (TopicPartition("t", PartitionId(0, number)) for number in (0, 1))


class Member:
    """Stands for a consumer in a group, its stream, and the choice of topics: gives what there is, then nothing."""

    def __init__(self, *given: GroupMessage | Exception, commits: Exception | None = None) -> None:
        self.given = [*given]
        self.commits = commits
        self.config = SimpleNamespace(auto_commit=True)
        self.offsets: dict[TopicPartition, int] = {ONE: 0, TWO: 0}
        self.jumps: list[Jump] = []

    def streams(self, consumer: object) -> Member:
        return self

    def poll(self, timeout: float) -> GroupMessage | NoMessage:
        found = self.given.pop(0) if self.given else NoMessage.NO_DATA
        if isinstance(found, Exception):
            raise found
        return found

    def done(self, message: GroupMessage) -> None:
        self.offsets[message.source] = message.next_offset

    def silence(self) -> NoMessage:
        return NoMessage.NO_DATA

    def commit_offsets(self) -> None:
        if self.commits is not None:
            raise self.commits

    def shutdown(self) -> None:
        pass


def reading_of(
    member: Member, monkeypatch: pytest.MonkeyPatch, **options: bool
) -> tuple[group_reading.GroupReading, list[str]]:
    """What reads as that member and stops at the first silence, and what it says."""
    said: list[str] = []
    monkeypatch.setattr(group_reading, "Consumer", lambda config: member)
    progress: Any = SimpleNamespace(count=0, size=0, idle=lambda: None, say=said.append, summary=said.append)
    given: Any = {"max_messages": None, "timeout": 0.0, "exit_at_end": False, "skips_damage": True} | options
    config: Any = member.config
    return group_reading.GroupReading(config, member, group_reading.json_line, progress, **given), said  # type: ignore[arg-type]


def test_silence_behind_messages_is_no_failure_and_each_partition_is_as_far_as_printed(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Of none there was nothing; where reading went on elsewhere is said before it ends."""
    for given, code in (([GroupMessage(ONE, b"a", 0, 11), GroupMessage(TWO, b"b", 0, 22)], 0), ([], 4)):
        member = Member(*given)
        member.jumps.append(Jump(ONE, 5, 0, "it is another log", 0.0))
        reading, said = reading_of(member, monkeypatch)
        with signals.deferred():
            assert reading.run() == code
        assert len(capfdbinary.readouterr().out.splitlines()) == len(given)
        ends = (11, 22) if given else (0, 0)
        assert [line.partition(":")[0] for line in said[:-1]] == ["t/0-0"]
        assert said[-1:] == [f"; committed t/0-0:{ends[0]}, t/0-1:{ends[1]}"]


def test_what_was_not_committed_counts_more_than_damage(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for commits, code in ((None, 5), (CoordinationError("away"), 1)):
        error = InvalidMessageError("damaged")
        member: Any = Member(GroupMessage(ONE, b"a", 0, 11), error, commits=commits)
        member.partitions = {ONE: SimpleNamespace(error=error, address=SimpleNamespace(host="h", port=1))}
        member.seek = member.offsets.__setitem__
        monkeypatch.setattr(group_reading, "SimpleConsumer", lambda *_, **__: contextlib.nullcontext())
        monkeypatch.setattr(group_reading, "find_end_of_damage", lambda *_: SimpleNamespace(start=11, end=30))
        reading, said = reading_of(member, monkeypatch)
        with signals.deferred():
            assert reading.run() == code
        assert said[0] == "skipped t/0-0, offsets 11 to 30: damaged"
        assert (b"not committed" in capfdbinary.readouterr().err) is (commits is not None)


def test_options_of_a_group_are_settings_of_its_consumer(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def made(config: Any) -> None:
        seen.append(config)
        raise CoordinationError("no ZooKeeper answers")

    monkeypatch.setattr(group_reading, "Consumer", made)
    command = ("consume", "--topic", "t", "--zookeeper", "there", "--group", "g")
    times = ("--commit-interval", "1500ms", "--connect-timeout", "2s")
    ran = Commands(capfd)(*command, *times, "--fetch-bytes", "2KiB", "--max-message-bytes", "1MiB")
    assert ran.code == 3 and len(seen) == 1
    assert (seen[0].auto_commit_interval_ms, seen[0].zk_connection_timeout_ms) == (1500, 2000)
    assert (seen[0].fetch_bytes, seen[0].max_message_bytes) == (2048, 2**20)
    assert (seen[0].group_id, seen[0].auto_commit, seen[0].auto_offset_reset) == ("g", True, "smallest")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("--zookeeper", "no ZooKeeper answers at 127.0.0.1:1 within 0.05 s"),
        ("--brokers", "no coordinator of groups answers at 127.0.0.1:1 within 0.05 s"),
    ],
)
def test_where_nobody_is_reached_no_group_is_taken_away(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str, said: str
) -> None:
    """There is none yet, and to try would take the time of another connection; nor are its topics waited for."""
    monkeypatch.setattr(group, "_TOPICS_SECONDS", 2 * SHORTEST_PROOF)
    with sooner_than(SHORTEST_PROOF):
        ran = Commands(capfd)("consume", "--whitelist", "t", "--connect-timeout", "50ms", where, "127.0.0.1:1")
    assert ran.code == 3 and ran.refused()[0].startswith(f"fastlog: {said}") and "console-consumer" not in ran.err


def test_the_time_without_a_message_begins_with_the_last_one(
    scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    patch_time(monkeypatch, consume_run, monotonic=lambda: now[0])

    def comes(cursors: Sequence[ReadCursor]) -> Iterator[tuple[None, str] | None]:
        for seconds, item in ((0.875, None), (0.875, (None, "a")), (0.875, None), (0.125, None), (0.0, (None, "late"))):
            now[0] += seconds
            yield item

    scripted.scripts.append(comes)
    run, said = run_of([ReadCursor(0, 0, None)], timeout=1.0)
    with signals.deferred():
        run.run()
    assert (said, run.timed_out, now[0]) == (["a"], True, 102.75)
