"""Deleting topics: what is answered is gone with its name free, and what is not is whole or gone, whoever is killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import OffsetOutOfRangeError
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.command_line import Commands
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE
from tests.harness.workers import is_silent

ONE, TWO = raw.entry(b"one"), raw.entry(b"two two")
WRONG_PARTITION = 3
NOT_AUTHORIZED = 106


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, settings={"num.partitions": "4"}) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[raw.RawClient]:
    with broker.connect() as made:
        yield made


def left(broker: Broker) -> list[str]:
    """What stands in the log directories beside what the broker always has there."""
    names = {item.name for directory in broker.log_dirs for item in directory.iterdir()}
    return sorted(
        name for name in names if not name.startswith((".lock", ".fastlog-flushing", ".fastlog-creators", "meta."))
    )


def open_files(broker: Broker, name: str) -> list[str]:
    """The descriptors of any process of the broker on files that have this in their path."""
    found = []
    for process in broker.children():
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if name in str(link.readlink()):
                        found.append(str(link.readlink()))
    return found


def test_a_deleted_topic_is_gone_and_its_name_is_free(broker: Broker, client: raw.RawClient) -> None:
    assert client.create_topic("t") == (0, 4)
    assert client.produce_ack("t", 1, ONE, raw.FLUSHED).error == 0
    assert client.delete_topic("t") == (0, 4)
    assert "t" not in client.metadata().topics
    assert client.fetch("t", 1, 0) == (0, b"")
    assert client.produce_ack("t", 1, TWO, raw.FLUSHED) == (0, 1, 0, len(TWO))
    assert client.fetch_ok("t", 1, 0) == TWO
    wait_until("the files have gone", lambda: left(broker) == ["t-1"])
    wait_until("nobody has a file of it open", lambda: not open_files(broker, "-delete"))


def test_what_is_not_there_is_not_deleted(client: raw.RawClient) -> None:
    assert client.delete_topic("never") == (WRONG_PARTITION, -1)
    assert client.delete_topic("") == client.delete_topic(b"\xff") == (100, -1)


def test_the_others_stay(broker: Broker, client: raw.RawClient) -> None:
    for topic in ("a", "a-1", "b"):
        for partition in range(4):
            assert (
                client.produce_ack(topic, partition, raw.entry(f"{topic} {partition}".encode()), raw.FLUSHED).error == 0
            )
    assert client.delete_topic("a") == (0, 4)
    assert sorted(client.metadata().topics) == ["a-1", "b"]
    for topic in ("a-1", "b"):
        for partition in range(4):
            assert client.fetch_ok(topic, partition, 0) == raw.entry(f"{topic} {partition}".encode())
    broker.restart()
    with broker.connect() as again:
        assert sorted(again.metadata().topics) == ["a-1", "b"]


def test_a_setting_forbids_it(tmp_path: Path) -> None:
    with Broker(tmp_path, settings={"delete.topic.enable": "false"}) as broker, broker.connect() as client:
        assert client.create_topic("t") == (0, 1)
        assert client.delete_topic("t") == (NOT_AUTHORIZED, -1)
        assert "t" in client.metadata().topics


def test_a_reader_that_waits_is_told(broker: Broker, client: raw.RawClient) -> None:
    """A long poll at the end of a partition waits for the topic of that name, whichever it is."""
    assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
    with broker.connect() as reader:
        reader.send_raw(raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body("t", 0, len(ONE), 1 << 20, 30_000, 1)))
        time.sleep(0.05)
        assert client.delete_topic("t")[0] == 0
        assert client.produce_ack("t", 0, TWO, raw.FLUSHED).error == 0
        # offset 12 of the new one: beyond its end while it is empty, then in the middle of its message
        assert reader.recv_own()[1].error in (1, 2)


def test_slots_are_used_again(tmp_path: Path) -> None:
    """With room for three partitions, and none left for a fourth, topics come and go for ever."""
    with Broker(tmp_path, settings={"max.partitions": "3"}) as broker, broker.connect() as client:
        for name in ("a", "b"):
            assert client.produce_ack(name, 0, raw.entry(name.encode()), raw.FLUSHED).error == 0
        for turn in range(30):
            message = raw.entry(b"turn %d" % turn)
            assert client.produce_ack(f"t{turn}", 0, message, raw.FLUSHED) == (0, 0, 0, len(message))
            assert client.fetch_ok(f"t{turn}", 0, 0) == message
            assert client.produce_ack("one too many", 0, ONE).error == 103
            assert client.delete_topic(f"t{turn}") == (0, 1)
        assert client.fetch_ok("a", 0, 0) == raw.entry(b"a")


# -- while others stand still or die -----------------------------------------------------------------------------------


def marked(broker: Broker) -> bool:
    return any(name.startswith(".fastlog-deleting") for name in left(broker))


def ask(client: raw.RawClient, topic: str) -> None:
    """Ask for a deletion, and do not wait for the answer."""
    client.send_raw(raw.own_frame(raw.DELETE_TOPIC, raw.text(topic)))


@pytest.mark.parametrize("role", ["flusher", "processor-1", "keeper", "coordinator"])
def test_it_waits_for_a_process_that_stands_still(role: str, broker: Broker) -> None:
    """Which may be about to use a name that it has found. The others serve, and know nothing of the topic any more."""
    with broker.connect() as client, broker.connect() as other:
        assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
        wait_until("it is known", lambda: role in broker.pids())
        broker.pause(role)
        try:
            asking = next(one for one in (client, other) if serves(one))
            ask(asking, "t")
            wait_until("it is marked", lambda: marked(broker))
            time.sleep(0.3)
            assert is_silent(asking)
            assert "t-0" in left(broker)
        finally:
            broker.resume(role)
        assert asking.recv_own()[1].error == 0
        wait_until("the files have gone", lambda: left(broker) == [])


def serves(client: raw.RawClient) -> bool:
    """Whether the processor of this connection runs."""
    client.socket.settimeout(0.5)
    try:
        return client.metadata().topics != {}
    except TimeoutError:
        return False
    finally:
        client.socket.settimeout(PATIENCE)


@pytest.mark.parametrize("role", ["flusher", "processor-0", "processor-1", "keeper", "coordinator"])
def test_it_goes_on_after_a_process_that_died(role: str, broker: Broker) -> None:
    """Whoever comes in its place knows nothing of what has gone."""
    with broker.connect() as client:
        assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
        wait_until("it is known", lambda: role in broker.pids())
        pid = broker.pause(role)
        with broker.connect() as other:
            asking = next((one for one in (client, other) if serves(one)), None)
            if asking is None:  # both are connections of the one that stands still
                broker.resume(role)
                return
            ask(asking, "t")
            wait_until("it is marked", lambda: marked(broker))
            broker.kill(role)
            broker.wait_replaced(role, pid)
            assert asking.recv_own()[1].error == 0
        wait_until("the files have gone", lambda: left(broker) == [])
        with broker.connect() as again:
            assert again.produce_ack("t", 0, TWO, raw.FLUSHED) == (0, 0, 0, len(TWO))


MET_AGAIN = ["life.marked", "delete.past", "delete.done"]
MET_ONCE = ["life.ended", "life.announced", "delete.renamed", "delete.settled"]


@pytest.mark.parametrize("point", MET_AGAIN + MET_ONCE)
def test_a_keeper_dies_at_each_point(point: str, tmp_path: Path) -> None:
    """Of a topic with one partition: no other one, and no creation, has anybody look again.

    Every keeper dies there that comes there. What was done is done, so that the next one does not come to some; of the
    others the next start has to know.
    """
    faults = {"FASTLOG_FAULTS": f"keeper:{point}@1=kill"}
    with Broker(tmp_path, environment=faults) as broker, broker.connect() as client:
        assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
        ask(client, "t")
        wait_until("it has died", lambda: [role for role, _ in broker.started()].count("keeper") > 1)
        if point in MET_AGAIN:
            broker.kill_all()
            broker.environment = {}
            broker.start()
        else:
            assert client.recv_own()[1].error == 0
        with broker.connect() as again:
            assert again.metadata().topics == {}
        wait_until("the files have gone", lambda: left(broker) == [])


@pytest.mark.slow
def test_a_deletion_that_a_stop_interrupts_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """The stop is a clean one, and who asked waits until the last requests have had their time."""
    with Broker(tmp_path) as broker, broker.connect() as client:
        for topic in ("t", "u"):
            assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
        broker.pause("keeper")
        ask(client, "t")
        wait_until("it is marked", lambda: marked(broker))
        assert broker.process is not None
        broker.process.terminate()  # Broker.stop lets go on what stands still
        time.sleep(0.2)
        broker.resume("keeper")
        assert broker.process.wait(PATIENCE) == 0
        broker.kill_all()
        broker.start()
        with broker.connect() as again:
            assert list(again.metadata().topics) == ["u"]
            assert again.fetch_ok("u", 0, 0) == ONE
        wait_until("the files have gone", lambda: left(broker) == ["u-0"])


def test_two_delete_one_topic(broker: Broker) -> None:
    """Each is answered, and what is made after an answer stays."""
    for turn in range(20):
        with broker.connect() as one, broker.connect() as two:
            message = raw.entry(b"turn %d" % turn)
            assert one.produce_ack("t", 0, message, raw.FLUSHED) == (0, 0, 0, len(message))
            ask(one, "t")
            ask(two, "t")
            answers = {one.recv_own()[1].error, two.recv_own()[1].error}
            assert 0 in answers and answers <= {0, WRONG_PARTITION}
            assert one.produce_ack("t", 0, ONE, raw.FLUSHED) == (0, 0, 0, len(ONE))
            time.sleep(0.01)
            assert two.fetch_ok("t", 0, 0) == ONE
            assert one.delete_topic("t")[0] == 0


def test_partitions_that_are_made_meanwhile_go_too(broker: Broker) -> None:
    with broker.connect() as maker, broker.connect() as client:
        assert client.create_topic("t") == (0, 4)
        maker.send_raw(raw.own_frame(raw.CREATE_TOPIC, raw.place("t", 200)))
        error, _ = client.delete_topic("t")
        assert error == 0
        made = maker.recv_own()[1]
        there = client.metadata().topics.get("t")
        assert made.error == 0 and there is not None and len(there.partitions) in (0, 200)


def test_a_full_disk_is_no_reason_to_keep_it(tmp_path: Path) -> None:
    """Writes fail, and what takes the room goes."""
    faults = {"FASTLOG_FAULTS": "pwrite@3-=ENOSPC,fallocate=ENOSPC"}
    with Broker(tmp_path, environment=faults) as broker, broker.connect() as client:
        assert client.produce_ack("t", 0, ONE).error == 0
        while client.produce_ack("t", 0, ONE).error == 0:
            pass
        assert client.delete_topic("t") == (0, 1)
        wait_until("the files have gone", lambda: left(broker) == [])


@pytest.mark.parametrize("faults", ["flusher:fdatasync@1=EIO", "flusher:fsync@1=EIO"])
def test_a_topic_that_a_disk_error_has_put_out_of_service_goes(faults: str, tmp_path: Path) -> None:
    settings = {"recovery.retry.ms": "0"}
    environment = {"FASTLOG_FAULTS": faults}
    with Broker(tmp_path, environment=environment, settings=settings) as broker, broker.connect() as client:
        assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error != 0
        assert client.delete_topic("t") == (0, 1)
        assert client.produce_ack("t", 0, TWO, raw.FLUSHED) == (0, 0, 0, len(TWO))
        assert client.fetch_ok("t", 0, 0) == TWO


@pytest.mark.parametrize("topic", ["x" * 250, "größer als 日本"])
def test_names_of_every_kind(topic: str, tmp_path: Path) -> None:
    """Over several log directories, and after a start."""
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        root.mkdir()
    with Broker(tmp_path, log_dirs=roots, settings={"num.partitions": "3"}) as broker:
        with broker.connect() as client:
            for _ in range(2):
                for partition in range(3):
                    assert client.produce_ack(topic, partition, ONE, raw.FLUSHED) == (0, partition, 0, len(ONE))
                assert client.delete_topic(topic) == (0, 3)
        wait_until("the files have gone", lambda: left(broker) == [])
        broker.restart()
        with broker.connect() as client:
            assert client.metadata().topics == {}


# -- readers -----------------------------------------------------------------------------------------------------------


def test_a_long_poll_waits_on_for_the_next_topic_of_that_name(broker: Broker, client: raw.RawClient) -> None:
    assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
    with broker.connect() as reader:
        assert reader.fetch_ok("t", 0, 0) == ONE
        assert client.delete_topic("t")[0] == 0
        reader.send_raw(raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body("t", 0, 0, 1 << 20, 30_000, 1)))
        time.sleep(0.05)
        assert client.produce_ack("t", 0, TWO, raw.FLUSHED).error == 0
        assert raw.decode_held(reader.recv_own()[1]).messages == TWO


@pytest.mark.parametrize("local", ["off", "read", "map"])
def test_a_consumer_meets_the_end_of_a_topic_that_was_made_anew(
    broker: Broker, client: raw.RawClient, local: str
) -> None:
    """What it has not read of the former one is gone; it is told that its place is beyond the end."""
    for number in range(5):
        assert client.produce_ack("t", 0, raw.entry(b"former %d" % number), raw.FLUSHED).error == 0
    with SimpleConsumer("127.0.0.1", broker.port, local=local) as consumer:
        payloads = consumer.payloads("t", 0)
        assert next(payloads) == b"former 0"
        assert client.delete_topic("t")[0] == 0
        assert client.produce_ack("t", 0, raw.entry(b"the next"), raw.FLUSHED).error == 0
        seen = []
        with contextlib.suppress(OffsetOutOfRangeError):
            for payload in consumer.payloads("t", 0, len(raw.entry(b"former 0"))):
                seen.append(payload)
        assert set(seen) <= {b"former %d" % number for number in range(1, 5)}
        assert list(consumer.payloads("t", 0)) == [b"the next"]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def test_the_command_deletes_at_every_broker(tmp_path: Path, run: Commands) -> None:
    """Which has it or not; one that is away, refuses, or is of 0.7 is an error, and the others have done it."""
    settings = {"num.partitions": "2"}
    with (
        Broker(tmp_path / "1", settings=settings) as one,
        Broker(tmp_path / "2", settings=settings) as two,
        Broker(tmp_path / "3", settings={"delete.topic.enable": "false"}) as three,
    ):
        addresses = [f"127.0.0.1:{broker.port}" for broker in (one, two, three)]
        both = ",".join(addresses[:2])
        with one.connect() as client, two.connect() as other, three.connect() as third:
            assert client.create_topic("t") == other.create_topic("t") == client.create_topic("u") == (0, 2)
            assert third.create_topic("t") == (0, 1)
            ran = run("topics", "delete", "t", "--brokers", both, "--json")
            assert ran.code == 0
            assert ran.rows == [{"broker": each, "topic": "t", "partitions": 2} for each in addresses[:2]]
            ran = run("topics", "delete", "u", "--brokers", both)
            assert ran.code == 0 and ran.out.splitlines()[1].split() == [addresses[0], "u", "2"]
            ran = run("topics", "delete", "t", "--brokers", both)
            assert ran.code == 2 and "none of the brokers has it" in " ".join(ran.refused())
            assert client.create_topic("t") == (0, 2)
            ran = run("topics", "delete", "t", "--brokers", f"{addresses[0]},{addresses[2]}", "--json")
            assert ran.code == 1 and addresses[2] in ran.err and [row["broker"] for row in ran.rows] == addresses[:1]
            assert "t" in third.metadata().topics
        two.close()
        with one.connect() as client:
            assert client.create_topic("t") == (0, 2)
            backwards = f"{addresses[1]},{addresses[0]}"
            ran = run("topics", "delete", "t", "--brokers", backwards, "--connect-timeout", "1")
            assert ran.code == 1 and addresses[1] in ran.err
            assert client.metadata().topics == {}
            with FakeBroker(own=False) as old:
                assert client.create_topic("t") == (0, 2)
                ran = run("topics", "delete", "t", "--brokers", f"{addresses[0]},127.0.0.1:{old.port}", "--json")
                assert ran.code == 1 and f"127.0.0.1:{old.port}: it speaks plain Kafka 0.7" in " ".join(ran.refused())
                assert [row["broker"] for row in ran.rows] == addresses[:1]
                assert client.metadata().topics == {}


def test_fsck_passes_over_what_is_being_deleted(tmp_path: Path, run: Commands) -> None:
    """What is left when a broker is killed in between: it is neither a partition nor damage."""
    faults = {"FASTLOG_FAULTS": "keeper:delete.unlink=kill"}
    with Broker(tmp_path, environment=faults) as broker:
        with broker.connect() as client:
            assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
            assert client.produce_ack("u", 0, ONE, raw.FLUSHED).error == 0
            assert client.delete_topic("t") == (0, 1)
        broker.kill_all()
        assert len(left(broker)) == 2
        ran = run("fsck", str(broker.log_dirs[0]))
        assert ran.code == 0 and "delete" not in ran.out + ran.err
