"""What ``fastlog produce`` and ``consume`` are told, and what they say: keys, properties, failures, the last N."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from fastlog import message
from fastlog._segment import payloads
from fastlog.errors import StorageError
from fastlog.producer import Crc32Partitioner
from fastlog.tools.produce import produce_command
from fastlog.tools.report import CommandError
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.command_process import refused, run, started
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE

LIVE_SECONDS = PATIENCE


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for something that has to happen."""
    deadline = time.monotonic() + LIVE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def say(process: subprocess.Popen[bytes], text: bytes) -> None:
    """Type something."""
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def shallow_codec(message_set: bytes) -> int:
    """The codec of the first message of a set."""
    return next(message.shallow(message_set)).message.codec


# --- produce: keys ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "line", "sent"),
    [
        (["--parse-key"], b"key %d\tline %d", b"line %d"),
        (["--parse-key", "--keep-key", "--key-separator", ","], b"key %d,line %d", None),
        (["--key-field", "2", "--key-separator", r"\x20"], b"a key-%d b %d", None),
    ],
)
def test_keys_choose_partitions(options: list[str], line: bytes, sent: bytes | None) -> None:
    """Lines with the same key are in the partition that ``fastlog.Producer`` chooses for it, in their order."""
    lines = [line % (number % 13, number) for number in range(1000)]
    separator = {"--parse-key": b"\t", "--key-field": b" "}[options[0]] if "," not in options else b","
    expected: dict[int, list[bytes]] = {}
    for number, text in enumerate(lines):
        key = text.split(separator)[1 if "--key-field" in options else 0]
        place = Crc32Partitioner().partition(key, 5)
        expected.setdefault(place, []).append(text if sent is None else sent % number)
    with FakeBroker(partitions=5) as fake:
        code, _, err = run(
            "produce", "--brokers", fake.address, "--topic", "t", *options, data=b"\n".join(lines) + b"\n"
        )
        assert code == 0 and "produced 1000 messages" in err
        assert {number: payloads(log) for (_, number), log in fake.logs.items()} == expected


@pytest.mark.slow
def test_a_line_without_a_key_is_named_and_what_is_before_it_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a\t1\nb\t2\nnone\nc\t3\n")
    with FakeBroker() as fake:
        arguments = ("produce", "--brokers", fake.address, "--topic", "t", "--parse-key", str(path))
        code, _, err = run(*arguments)
        assert code == 1 and f"{path}, line 3 has no key" in refused(code, err)[0] and "produced 2 messages" in err
        assert payloads(fake.logs["t", 0]) == [b"1", b"2"]
        code, _, _ = run(*arguments, "--keyless", "any")
        assert code == 0 and sorted(payloads(fake.logs["t", 0])[2:]) == [b"1", b"2", b"3", b"none"]


@pytest.mark.slow
def test_keys_with_a_plain_broker_do_nothing_and_are_said_to() -> None:
    with FakeBroker(own=False) as fake:
        code, _, err = run("produce", "--brokers", fake.address, "--topic", "t", "--parse-key", data=b"a\t1\nb\t2\n")
        assert code == 0 and "keys have no effect" in err
        assert payloads(fake.logs["t", -1 if ("t", -1) in fake.logs else 0]) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--parse-key", "--key-field", "1"], "contradicts --key-field"),
        (["--keep-key"], "--parse-key"),
        (["--key-separator", ","], "needs --parse-key"),
        (["--key-field", "1", "--key-separator", ""], "separates nothing"),
        (["--key-field", "1", "--key-separator", r"\x"], "invalid"),
        (["--keyless", "any"], "is about keys"),
        (["--sync", "--queue-time", "1s"], "contradicts --queue-time"),
        (["--zookeeper", "h:2181"], "both name brokers"),
        (["--zookeeper", "h:2181", "--partition", "1"], "needs a single broker"),
        (["--property", "acks"], "name=value"),
        (["--config", "/no/such/file"], "No such file"),
    ],
)
def test_contradictions_are_refused_before_anybody_is_asked(arguments: list[str], says: str) -> None:
    with pytest.raises((click.UsageError, CommandError)) as refusal:
        produce_command.main(["--brokers", "127.0.0.1:1", "--topic", "t", *arguments], standalone_mode=False)
    assert refusal.value.exit_code == 2 and says in str(refusal.value)


# --- produce: settings ---


@pytest.mark.slow
def test_properties_by_their_07_names(tmp_path: Path) -> None:
    """The file, before it ``--property``, before that a flag; and nothing is taken in silence."""
    path = tmp_path / "producer.properties"
    with FakeBroker() as fake, FakeBroker() as other:
        path.write_text(
            f"broker.list=0:{fake.address}\nserializer.class=kafka.serializer.StringEncoder\nproducer.type=async\n"
            "compression.codec=2\nacks=none\nbatch.size=10\n"
        )
        lines = b"".join(b"line %d\n" % number for number in range(100))
        common = ("produce", "--topic", "t", "--config", str(path))
        assert run(*common, data=lines)[0] == 0
        assert fake.seen["ProduceRequest"] == 10 and shallow_codec(fake.sets[0]) == 2
        assert run(*common, "--property", "acks=appended", "--batch-size", "50", data=lines)[0] == 0
        assert (fake.seen["ProduceRequest"], fake.seen["ProduceAckRequest"]) == (10, 2)
        assert run(*common, "--brokers", other.address, "--compression", "none", data=lines)[0] == 0
        assert other.seen["ProduceRequest"] == 10 and shallow_codec(other.sets[0]) == 0
        for name, says in (
            ("queue.full=drop", "no line is dropped"),
            ("callback.handler=a.B", "nobody knows"),
            ("batch.siez=5", "did you mean 'batch.size'"),
            ("batch.size=x", "no number"),
        ):
            code, _, err = run(*common, "--property", name, data=lines)
            assert code == 2 and says in "\n".join(refused(code, err)), name


@pytest.mark.slow
def test_several_brokers_of_a_list_share_the_keys() -> None:
    """The partitions of both, sorted by broker: as the producer does."""
    lines = [b"%d\t%d" % (number, number) for number in range(100)]
    with FakeBroker(partitions=2) as one, FakeBroker(partitions=2) as two:
        brokers = f"broker.list=7:{two.address},3:{one.address}"
        code, _, _ = run(
            "produce", "--topic", "t", "--property", brokers, "--parse-key", "--keep-key", data=b"\n".join(lines)
        )
        assert code == 0
        found = {(id(fake), number): payloads(log) for fake in (one, two) for (_, number), log in fake.logs.items()}
        places = [(id(one), 0), (id(one), 1), (id(two), 0), (id(two), 1)]
        for place in places:
            expected = [
                line for line in lines if places[Crc32Partitioner().partition(line.partition(b"\t")[0], 4)] == place
            ]
            assert found[place] == expected
        code, _, err = run("produce", "--topic", "t", "--property", brokers, "--partition", "1", data=b"x\n")
        assert code == 2 and "single broker" in err


@pytest.mark.slow
def test_the_first_address_that_answers_is_taken() -> None:
    with FakeBroker() as fake:
        brokers = f"127.0.0.1:1,{fake.address}"
        assert run("produce", "--brokers", brokers, "--topic", "t", data=b"x\ny\n")[0] == 0
        code, out, _ = run("consume", "--brokers", brokers, "--topic", "t", "--exit-at-end")
        assert (code, out) == (0, b"x\ny\n")


@pytest.mark.slow
def test_a_partition_that_is_not_there() -> None:
    with FakeBroker(partitions=2) as fake:
        code, _, err = run("produce", "--brokers", fake.address, "--topic", "t", "--partition", "2", data=b"x\n")
    assert code == 1 and "there is no partition 2" in refused(code, err)[0]


# --- produce: when lines go, and what became of them ---


@pytest.mark.slow
def test_a_typed_line_goes_after_the_queue_time() -> None:
    """Soon by default; later, and together with others, when it may wait. The end of the input is no reason to."""
    with FakeBroker() as fake, started("produce", "--brokers", fake.address, "--topic", "t") as process:
        for number in range(3):
            say(process, b"line %d\n" % number)
            until("a line is there", lambda number=number: len(payloads(fake.logs.get(("t", 0), b""))) == number + 1)
        assert process.communicate(timeout=LIVE_SECONDS)[0] == b"" and process.returncode == 0
    common = ("produce", "--brokers", fake.address, "--topic", "t", "--queue-time", "1h")
    with FakeBroker() as fake, started(*common[:2], fake.address, *common[3:]) as process:
        say(process, b"one\n")
        say(process, b"two\n")
        time.sleep(0.3)
        assert not fake.logs
        process.communicate(timeout=LIVE_SECONDS)
        assert payloads(fake.logs["t", 0]) == [b"one", b"two"] and fake.seen["ProduceAckRequest"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--sync"], ["--property", "producer.type=sync"]])
def test_sync_reads_on_when_the_broker_has_answered(how: list[str]) -> None:
    may_answer = threading.Event()

    def hold(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceAckRequest):
            may_answer.wait(LIVE_SECONDS)

    with FakeBroker(hook=hold) as fake, started("produce", "--brokers", fake.address, "--topic", "t", *how) as process:
        say(process, b"one\n")
        until("the first line is on its way", lambda: fake.seen["ProduceAckRequest"] == 1)
        say(process, b"two\n")
        time.sleep(0.3)
        assert fake.seen["ProduceAckRequest"] == 1
        may_answer.set()
        until("the second line is on its way", lambda: fake.seen["ProduceAckRequest"] == 2)
        process.communicate(timeout=LIVE_SECONDS)
        assert process.returncode == 0


@pytest.mark.slow
def test_lines_that_were_not_stored_are_named() -> None:
    """One request of several is refused: its lines, and no others; the command stops reading."""
    count = 0

    def full(request: rq.Request) -> bytes | None:
        nonlocal count
        if isinstance(request, wire07.ProduceAckRequest):
            count += 1
            if count == 2:
                return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 101))
        return None

    with FakeBroker(hook=full) as fake:
        arguments = ("produce", "--brokers", fake.address, "--topic", "t", "--batch-size", "10")
        code, _, err = run(*arguments, data=b"".join(b"%d\n" % number for number in range(1, 41)))
        stored = payloads(fake.logs["t", 0])
    assert code == 1 and "error 101" in refused(code, err)[0]
    assert "not acknowledged: stdin, lines 11-20\n" in err and "produced 30 messages" in err and "failed: 10" in err
    assert stored == [b"%d" % number for number in range(1, 41) if not 11 <= number <= 20]


@pytest.mark.slow
def test_lines_of_a_request_that_was_overtaken_are_named() -> None:
    """Full for a moment: the second request of four is refused, and fails once the two behind it turn out to be stored.
    The lines that are named are its own, though the command reads all of them in one go."""
    found: list[wire07.ProduceAckRequest] = []

    def full_for_a_moment(request: rq.Request) -> bytes | None:
        if not isinstance(request, wire07.ProduceAckRequest):
            return None
        found.append(request)
        if len(found) < 4:
            return b""
        refused = rs.ProduceAckAnswer(found[1].correlation_id, StorageError.code, 0)
        stored = [rs.ProduceAckAnswer(one.correlation_id, 0, 0, 0, 100) for one in found]
        return b"".join(wire07.encode_produce_ack(each) for each in [stored[0], refused, *stored[2:]])

    with FakeBroker(hook=full_for_a_moment) as fake:
        arguments = ("produce", "--brokers", fake.address, "--topic", "t", "--partition", "0", "--batch-size", "10")
        code, _, err = run(*arguments, data=b"".join(b"%d\n" % number for number in range(1, 41)))
    assert code == 1 and [payloads(one.message_set)[0] for one in found] == [b"1", b"11", b"21", b"31"]
    assert "not acknowledged: stdin, lines 11-20\n" in err and "produced 30 messages" in err and "failed: 10" in err


@pytest.mark.slow
def test_a_failure_ends_the_wait_for_input() -> None:
    def full(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 101))
        return None

    with FakeBroker(hook=full) as fake, started("produce", "--brokers", fake.address, "--topic", "t") as process:
        say(process, b"one\n")
        assert process.wait(LIVE_SECONDS) == 1
        assert process.stderr is not None and b"not acknowledged: stdin, line 1\n" in process.stderr.read()


@pytest.mark.slow
def test_a_broker_that_stays_away() -> None:
    """After the delivery time: which lines, exit code 3. Until then a line says what is wrong."""
    fake = FakeBroker()
    with started(
        *("produce", "--brokers"), fake.__enter__().address, "--topic", "t", "--property", "delivery.timeout.ms=300"
    ) as process:
        say(process, b"one\n")
        until("the first line is acknowledged", lambda: fake.answered["ProduceAckRequest"])
        fake.__exit__()
        say(process, b"two\nthree\n")
        assert process.wait(LIVE_SECONDS) == 3
        assert process.stderr is not None
        err = process.stderr.read().decode()
    assert "produced 1 message" in err and "sent and not known to be stored: 2" in err
    assert "not acknowledged: stdin, lines 2-3\n" in err and "cannot send" in err
    refused(3, err)


@pytest.mark.slow
def test_loss_without_acknowledgement_is_not_silent() -> None:
    """A 0.7 broker answers a produce that fails by closing: nobody can say more than that."""

    def close(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceRequest):
            raise ConnectionError

    with (
        FakeBroker(own=False, hook=close) as fake,
        started("produce", "--brokers", fake.address, "--topic", "t") as process,
    ):
        say(process, b"one\n")
        until("the line was sent", lambda: fake.seen["ProduceRequest"] == 1)
        time.sleep(0.1)
        _, err = process.communicate(timeout=LIVE_SECONDS)
    assert process.returncode == 1 and "may be lost" in refused(1, err.decode())[0]


@pytest.mark.slow
def test_ctrl_c_while_nothing_is_answered() -> None:
    """The first gives the broker a moment, and says so; the second leaves at once, with the lines in question."""

    def silent(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            return b""
        return None

    long = "import fastlog.tools.send_lines as it; it._STOP_SECONDS = 60"
    with (
        FakeBroker(hook=silent) as fake,
        started("produce", "--brokers", fake.address, "--topic", "t", prepare=long) as process,
    ):
        say(process, b"one\ntwo\n")
        until("it was sent", lambda: fake.seen["ProduceAckRequest"] == 1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None and b"second signal" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIVE_SECONDS) == 130
        err = process.stderr.read().decode()
    assert "sent and not known to be stored: 2" in err and "not acknowledged: stdin, lines 1-2" in err
    assert "LEFT OPEN" not in err


def test_a_line_above_the_limit_is_named_with_the_limit() -> None:
    with FakeBroker(max_message_bytes=10) as fake:
        code, _, err = run("produce", "--brokers", fake.address, "--topic", "t", data=b"ok\n" + b"x" * 11 + b"\n")
    assert code == 1 and "left out as too long: 1 lines, the first at stdin, line 2; the limit is 10 bytes" in err


# --- consume ---


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_the_last_messages(own: bool) -> None:
    """Those in compressed sets one by one; fewer than asked for are all; further ones follow."""
    with FakeBroker(own=own) as fake:
        fake.logs["t", 0] = message.encode_set([b"a", b"b"]) + message.encode_set([b"c", b"d", b"e"], codec=1)
        common = ("consume", "--brokers", fake.address, "--topic", "t")
        assert run(*common, "--offset=-2", "--exit-at-end")[:2] == (0, b"d\ne\n")
        assert run(*common, "--offset", "-4", "--exit-at-end")[:2] == (0, b"b\nc\nd\ne\n")
        assert run(*common, "--offset=-100", "--exit-at-end")[:2] == (0, b"a\nb\nc\nd\ne\n")
        with started(*common, "--offset=-1", "--follow", "--json") as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["payload"] == "e"
            fake.logs["t", 0] += message.encode_set([b"f"])
            assert json.loads(process.stdout.readline())["payload"] == "f"


@pytest.mark.slow
def test_the_last_messages_of_each_partition() -> None:
    with FakeBroker(partitions=3) as fake:
        fake.logs["t", 0] = message.encode_set([b"0%d" % number for number in range(9)])
        fake.logs["t", 2] = message.encode_set([b"2%d" % number for number in range(9)], codec=2)
        code, out, _ = run("consume", "--brokers", fake.address, "--topic", "t", "--offset=-2", "--exit-at-end")
        assert code == 0 and sorted(out.split()) == [b"07", b"08", b"27", b"28"]
        code, out, err = run(
            "consume", "--brokers", fake.address, "--topic", "t", "--offset=-2", "--partition", "2", "--max-messages=1"
        )
        assert (code, out) == (0, b"27\n") and "next offset by partition: 2:0" in err


@pytest.mark.slow
def test_what_consume_prints() -> None:
    with FakeBroker() as fake:
        fake.logs["t", 0] = message.encode_set([b"a\x00\xff", b""])
        common = ("consume", "--brokers", fake.address, "--topic", "t", "--exit-at-end")
        assert run(*common, "--format", "offsets")[:2] == (0, b"0\t0\ta\x00\xff\n0\t13\t\n")
        assert run(*common, "--offset", "earliest", "--format", "checksum")[1].count(b"checksum:") == 2
        assert run(*common, "--offset", "latest")[:2] == (0, b"")
        code, _, err = run(*common, "--json", "--format", "checksum")
        assert code == 2 and "contradicts" in err


@pytest.mark.slow
def test_consume_gives_a_broker_that_stays_away_up() -> None:
    """With the place to go on at; and Ctrl-C does not wait for it."""
    fake = FakeBroker()
    arguments = ("consume", "--brokers", fake.__enter__().address, "--topic", "t", "--connect-timeout", "1")
    fake.logs["t", 0] = message.encode_set([b"one"])
    with started(*arguments) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"one\n"
        fake.__exit__()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIVE_SECONDS) == 130
        assert b"next offset by partition: 0:13" in process.stderr.read()


# --- consume: damage ---


@pytest.mark.slow
def test_damage_is_skipped_when_asked() -> None:
    """Each damaged place once, on every partition; the others lose and repeat nothing. Exit code 5 all the same."""
    good = [b"line %03d" % number for number in range(200)]
    bad = bytearray(message.encode_set([b"flipped"]))
    bad[-1] ^= 1
    parts = [message.encode_set(good[at : at + 50]) for at in range(0, 200, 50)]
    with FakeBroker(partitions=2) as fake:
        fake.logs["t", 0] = parts[0] + bytes(bad) + parts[1] + bytes(bad) * 2
        fake.logs["t", 1] = parts[2] + bytes(bad) * 3 + parts[3]
        arguments = ("consume", "--brokers", fake.address, "--topic", "t", "--exit-at-end")
        code, out, err = run(*arguments, "--partition", "0")
        assert code == 5 and out.splitlines() == good[:50] and "--skip-message-on-error" in refused(code, err)[2]
        code, out, err = run(*arguments, "--skip-message-on-error")
        assert code == 5 and sorted(out.splitlines()) == good and err.count("skipped partition") == 3
        assert "consumed 200 messages" in err
        code, out, _ = run(*arguments, "--skip-message-on-error", "--max-messages", "60", "--partition", "1")
        assert code == 5 and out.splitlines() == good[100:160]
