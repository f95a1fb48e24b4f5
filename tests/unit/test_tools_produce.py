"""``fastlog produce`` against a broker that dies, lies or is old, as a user runs it; and the lines that it sends."""

from __future__ import annotations

import base64
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fastlog import message
from fastlog._segment import payloads
from fastlog.errors import WrongPartitionError
from fastlog.producer import Producer
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import Delivery
from fastlog.tools import lines as lines_module
from fastlog.tools import send_lines
from fastlog.tools.destination import Destination
from fastlog.tools.keys import KeyRule
from fastlog.tools.lines import LineBatches
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.send_lines import LineSender
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.command_line import Commands
from tests.harness.command_process import refused, run, started
from tests.harness.fake_broker import FakeBroker, stalled
from tests.harness.timing import PATIENCE


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


# --- lines to batches ---


@pytest.mark.parametrize("batch_bytes", [1, 3, 10, 1000])
@pytest.mark.parametrize(
    "text", [b"", b"\n", b"a", b"a\n", b"a\n\nb", b"one\ntwo\nthree\n", b"\n\n\n", b"x" * 50 + b"\ny"]
)
def test_lines_are_what_splitting_the_whole_gives(
    text: bytes, batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(text)
    expected = text.removesuffix(b"\n").split(b"\n") if text else []
    for read_bytes in (1, 2, 7, 1000):
        monkeypatch.setattr(lines_module, "_READ_BYTES", read_bytes)
        fd = os.open(path, os.O_RDONLY)
        try:
            found = list(LineBatches(batch_bytes, 1000).read(fd, "f", lambda fd: None))
        finally:
            os.close(fd)
        assert [line for batch in found for line in batch] == expected


@pytest.mark.parametrize("read_bytes", [1, 4, 1000])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_long_lines_are_left_out_and_named(
    read_bytes: int, end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "_READ_BYTES", read_bytes)
    path = tmp_path / "f"
    path.write_bytes(b"ok\n" + b"x" * 100 + b"\nfine\n123456\n" + b"y" * 30 + end)
    batches = LineBatches(1000, 5)
    fd = os.open(path, os.O_RDONLY)
    try:
        found = [line for batch in batches.read(fd, "f", lambda fd: None) for line in batch]
    finally:
        os.close(fd)
    assert found == [b"ok", b"fine"]
    assert (batches.too_long, batches.first_too_long) == (3, "f, line 2")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
def test_sets_stay_within_the_limits(codec: str) -> None:
    """A compressed set is one message to the broker: it may not be larger than one."""
    lines = [base64.b64encode(os.urandom(150)) for _ in range(200)]
    with FakeBroker(max_message_bytes=1000) as fake:
        arguments = ("--topic", "t", "--batch-bytes", "3000", "--compression", codec)
        code, _, _ = run("produce", "--brokers", fake.address, *arguments, data=b"\n".join(lines))
        stored = fake.logs["t", 0]
        assert code == 0 and len(fake.sets) > 5
        assert max(map(len, fake.sets)) <= (3000 if codec == "none" else 1010)
    assert [item.message.payload for item in message.deep(stored)] == lines


# --- produce ---


def test_round_trip_of_files_and_stdin(broker: FakeBroker, tmp_path: Path) -> None:
    text = b"".join(b"line %d\n" % number for number in range(20_000)) + b"\n\xff\xfe\nlast"
    path = tmp_path / "input"
    path.write_bytes(text)
    code, out, err = run("produce", "--brokers", broker.address, "--topic", "t", str(path), "-", data=b"from stdin\n")
    assert (code, out) == (0, b"") and "produced 20004 messages" in err and "promised: appended" in err
    assert "ProduceRequest" not in broker.seen
    code, out, err = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end")
    assert code == 0 and out == text + b"\nfrom stdin\n"
    assert f"consumed 20004 messages, {len(out) - 20004} bytes" in err
    assert f"next offset by partition: 0:{len(broker.logs['t', 0])}" in err


@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_compressed_round_trip(broker: FakeBroker, codec: str) -> None:
    environment = {"FASTLOG_BROKERS": broker.address}
    text = b"".join(b"line %d\n" % number for number in range(5000))
    code, _, _ = run(
        "produce", "--topic", "t", "--compression", codec, "--acks", "flushed", data=text, environment=environment
    )
    assert code == 0 and len(broker.logs["t", 0]) < len(text) + 10 * 5000
    code, out, _ = run("consume", "--topic", "t", "--exit-at-end", environment=environment)
    assert (code, out) == (0, text)


def test_plain_07_broker() -> None:
    """Without the own requests: produce without a promise, fetch with pauses, partition 0."""
    text = b"".join(b"%d\n" % number for number in range(1000))
    with FakeBroker(own=False) as fake:
        code, _, err = run("produce", "--brokers", fake.address, "--topic", "t", data=text)
        assert code == 0 and "promised: nothing" in err
        code, out, _ = run("consume", "--brokers", fake.address, "--topic", "t", "--exit-at-end")
        assert (code, out) == (0, text)
        code, out, _ = run("topics", "offsets", "t", "--brokers", fake.address, "--no-headers")
        assert (code, out) == (0, b"t\t0\t%d\n" % len(fake.logs["t", 0]))
        code, _, err = run("produce", "--brokers", fake.address, "--topic", "t", "--acks", "flushed", data=text)
        assert code == 2 and "plain Kafka 0.7" in refused(code, err)[1]
        code, _, err = run("topics", "list", "--brokers", fake.address)
        assert code == 2 and "plain Kafka 0.7" in refused(code, err)[1]


def test_unacknowledged_batches_are_sent_again_in_order() -> None:
    """The third append is done and not answered: everything arrives, in order, and the repeats are counted."""
    acked = 0

    def die_once(request: rq.Request) -> bytes | None:
        nonlocal acked
        if isinstance(request, wire07.ProduceAckRequest):
            acked += 1
            if acked == 3:
                raise ConnectionError
        return None

    sent = [b"line %d" % number for number in range(2000)]
    with FakeBroker(after=die_once) as fake:
        code, _, err = run(
            *("produce", "--brokers", fake.address, "--topic", "t", "--batch-bytes", "1000"), data=b"\n".join(sent)
        )
        found = payloads(fake.logs["t", 0])
    assert code == 0 and "produced 2000 messages" in err and "possible duplicates" in err
    assert sorted(set(found), key=found.index) == sent  # the first copies, in order: nothing lost
    assert len(found) > len(sent)


def test_refused_batches_are_counted_and_exit_1() -> None:
    def full(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 103))
        return None

    with FakeBroker(hook=full) as fake:
        code, _, err = run(
            "produce", "--brokers", fake.address, "--topic", "t", "--property", "num.retries=2", data=b"a\nb\n"
        )
    assert code == 1 and "produced 0 messages" in err and "failed: 2" in err
    assert "error 103" in refused(code, err)[0]


def test_lines_above_the_limit_exit_1() -> None:
    with FakeBroker(max_message_bytes=10) as fake:
        code, _, err = run("produce", "--brokers", fake.address, "--topic", "t", data=b"ok\n" + b"x" * 11 + b"\nfine\n")
        assert payloads(fake.logs["t", 0]) == [b"ok", b"fine"]
    assert code == 1 and "left out as too long: 1 lines, the first at stdin, line 2" in err


def test_produce_stops_on_sigint_with_what_it_read(broker: FakeBroker) -> None:
    with started("produce", "--brokers", broker.address, "--topic", "t") as process:
        assert process.stdin and process.stderr
        process.stdin.write(b"one\ntwo\nunfinished")
        process.stdin.flush()
        deadline = time.monotonic() + PATIENCE
        while not broker.logs and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert "produced 2 messages" in process.stderr.read().decode()
    assert payloads(broker.logs["t", 0]) == [b"one", b"two"]


def test_produce_that_is_ended_says_what_has_no_answer() -> None:
    """A second signal ends the waiting for it."""
    release = threading.Event()
    with (
        FakeBroker(hook=stalled(release)) as fake,
        started("produce", "--brokers", fake.address, "--topic", "t") as process,
    ):
        assert process.stdin and process.stderr
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        wait_until("it is on its way", lambda: fake.seen["ProduceAckRequest"])
        process.send_signal(signal.SIGINT)
        assert b"waiting for the broker to answer" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        code, said = process.wait(PATIENCE), process.stderr.read().decode()
        release.set()
    assert code == 130
    assert "produced 0 messages" in said and "sent and not known to be stored: 2" in said
    assert "not acknowledged: stdin, lines 1-2" in said


def test_so_many_lines_of_all_files(broker: FakeBroker, tmp_path: Path) -> None:
    names = []
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{name}{number}\n" for number in range(3)))
        names.append(str(tmp_path / name))
    for count, expected in (("2", [b"a0", b"a1"]), ("4", [b"a0", b"a1", b"a2", b"b0"])):
        topic = f"t{count}"
        code, _, err = run("produce", "--brokers", broker.address, "--topic", topic, "--max-messages", count, *names)
        assert (code, payloads(broker.logs[topic, 0])) == (0, expected)
        assert f"produced {count} messages" in err


def test_progress_counts_what_was_acknowledged(
    broker: FakeBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is answered while a mebibyte is read and sent, and nothing counts; at the end all of it does."""
    may_answer = threading.Event()
    broker.hook = lambda request: _answer_later(request, may_answer)
    reached: list[int] = []
    show = LineSender._show_progress

    def look(self: LineSender) -> None:
        show(self)
        reached.append(self._progress.reached)
        if self._batches.given_bytes == path.stat().st_size:
            may_answer.set()

    monkeypatch.setattr(LineSender, "_show_progress", look)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 99 + b"\n")
    path.write_bytes(path.read_bytes() * 10_000)
    places: list[int] = []
    monkeypatch.setattr(LineSender, "_summarize", lambda self: (show(self), places.append(self._progress.reached)))
    assert Commands(capfd)("produce", "--brokers", broker.address, "--topic", "t", str(path)).code == 0
    assert set(reached[:-1]) == {0} and len(reached) > 3
    assert places == [path.stat().st_size]


def _answer_later(request: rq.Request, event: threading.Event) -> None:
    if isinstance(request, wire07.ProduceAckRequest):
        assert event.wait(PATIENCE)


def test_a_partition_that_is_not_there_is_refused(broker: FakeBroker, capfd: pytest.CaptureFixture[str]) -> None:
    """Before anything is read; ``--partition`` begins at 0."""
    broker.partitions = 2
    common = ("produce", "--brokers", broker.address, "--topic", "t", "--partition")
    run = Commands(capfd)
    ran = run(*common, "2", os.devnull)
    what, why, _ = ran.refused()
    assert ran.code == 1 and "no partition 2 of t" in what and "0 to 1" in why
    assert run(*common, "1", os.devnull).code == 0


@pytest.mark.parametrize("given", [(), ("--property", "broker.list=0:{}")])
def test_a_zookeeper_on_the_command_line_counts_more_than_brokers_elsewhere(
    broker: FakeBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    """Those of the environment, or of the settings, get nothing."""
    monkeypatch.setenv("FASTLOG_BROKERS", broker.address)
    common = ("produce", "--topic", "t", "--zookeeper", "127.0.0.1:1", "--connect-timeout", "50ms", os.devnull)
    ran = Commands(capfd)(*common, *(text.format(broker.address) for text in given))
    assert ran.code == 3 and "no ZooKeeper answers at 127.0.0.1:1 within 0.05 s" in ran.refused()[0]
    assert not broker.seen


def test_times_of_the_command_line_count_more_than_those_of_the_settings(
    broker: FakeBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = []

    class Unused(Producer):
        def __init__(self, config: ProducerConfig) -> None:
            configs.append(config)
            super().__init__(config)

    monkeypatch.setattr(send_lines, "Producer", Unused)
    common = ("produce", "--brokers", broker.address, "--topic", "t", os.devnull)
    settings = ("--property", "connect.timeout.ms=7000", "--property", "queue.time=70")
    assert Commands(capfd)(*common, *settings).code == 0
    assert Commands(capfd)(*common, *settings, "--connect-timeout", "2500ms", "--queue-time", "0ms").code == 0
    assert [(config.connect_timeout_ms, config.queue_time_ms) for config in configs] == [(7000, 70), (2500, 0)]


def test_lines_whose_broker_left_go_elsewhere_and_are_under_way_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a producer refuses as a whole has no answer, and is waited for no more."""
    sent = []

    class Leaving(Producer):
        def send(self, topic: str, payloads: Sequence[bytes], *, on_delivery: Any, **_: object) -> None:  # type: ignore[override]
            sent.append(payloads)
            if len(sent) == 1:
                raise WrongPartitionError("its broker has left")
            on_delivery(Delivery(topic, 0, 0, 0, 1, len(payloads)))

        def partitions(self, topic: str) -> list[tuple[int, int]]:  # type: ignore[override]
            return [(0, 0)]

    monkeypatch.setattr(send_lines, "Producer", Leaving)
    (tmp_path / "lines").write_bytes(b"k\ta\nk\tb\n")
    config = ProducerConfig(broker_list="0:127.0.0.1:1", close_timeout_ms=100)
    destination = Destination(config, "appended", False, 1000, ((0, 0),), True)
    rule = KeyRule(b"\t", 0, False, True)
    sender = LineSender(destination, "t", None, rule, ConsoleProgress("produced", shown=False))
    assert sender.run([str(tmp_path / "lines")]) == 0
    said = capfd.readouterr().err
    assert sent == [[b"a", b"b"]] * 2 and "produced 2 messages" in said and "not known to be stored" not in said
