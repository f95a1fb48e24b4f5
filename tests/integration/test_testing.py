"""A broker inside a test: quick to start, whole to use, gone without a trace; and its knobs."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from fastlog import testing
from fastlog.errors import TransportError
from fastlog.message import encode_set
from fastlog.testing import BrokerStartError, Proxy, RunningBroker, running
from fastlog.testing.running import begin_test, logs_of_test
from tests.fault.cycles import traces
from tests.fault.side_by_side import xdist
from tests.harness.broker import wait_until
from tests.harness.nursery import start_testing_broker
from tests.harness.raw_client import RawClient
from tests.harness.timing import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
TESTS = 4
"""With a broker each: killed, its supervisor killed, paused, started anew."""
STORAGE_ERROR = 103


@pytest.fixture(scope="module", autouse=True)
def as_users_start_it() -> Iterator[None]:
    """Each broker in a fresh interpreter."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "start_broker", start_testing_broker)
        yield


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningBroker]:
    with testing.broker(partitions=2) as running:
        yield running


@pytest.fixture
def own_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Temporary directories of this test alone: others run beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.slow
def test_cycles_leave_nothing() -> None:
    """No process, file or descriptor; in a process of its own, as fixtures of other files open some in this one."""
    command = [sys.executable, "-m", "tests.fault", "--tier", "S", "--seed", "1", "--only", "cycles"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"


def test_ctrl_c_is_for_the_tests_alone(shared: RunningBroker) -> None:
    """No process of the broker is in the session of the tests."""
    assert os.getsid(0) not in {os.getsid(pid) for pid in shared.pids().values()}


def test_it_is_a_whole_broker(shared: RunningBroker) -> None:
    with RawClient(shared.port) as client:
        client.produce_ack("whole", 1, encode_set([b"a", b"b"]), acks=2)
    with shared.consumer() as consumer:
        assert [message.payload for message in consumer.messages("whole", 1)] == [b"a", b"b"]
        metadata = consumer.metadata(["whole"])
        assert metadata is not None
        assert metadata.topics[0].configured_partitions == 2
    assert shared.address == f"127.0.0.1:{shared.port}"
    assert (shared.data_directory / "whole-1").is_dir()
    assert "ready host=127.0.0.1" in shared.log_text()
    workers = {"acceptor", "flusher", "keeper", "coordinator", "processor-0", "processor-1"}
    assert set(shared.pids()) == workers | {"supervisor"}


def test_settings_by_field_and_by_property() -> None:
    with (
        testing.broker(
            processors=1, partitions=3, log_file_size=1000, properties={"max.message.size": "50"}
        ) as running,
        running.consumer() as consumer,
    ):
        metadata = consumer.metadata(["t"])
        assert metadata is not None
        assert (metadata.max_message_bytes, metadata.topics[0].configured_partitions) == (50, 3)
        assert "processor-1" not in running.pids()


@pytest.mark.usefixtures("own_temporary_files")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"no_such_setting": 1}, "no.such.setting"),
        ({"partitions": 0}, "num.partitions"),
        ({"host": "8.8.8.8"}, "8.8.8.8"),
    ],
)
def test_a_broker_that_does_not_start_says_why(settings: dict[str, object], said: str) -> None:
    before = traces()
    with pytest.raises(BrokerStartError, match=said), testing.broker(**settings):  # type: ignore[arg-type]
        pass
    assert [now - then for now, then in zip(traces(), before, strict=True)] == [set()] * 3


def test_a_directory_of_ones_own_stays(tmp_path: Path) -> None:
    for number in range(2):
        with testing.broker(directory=tmp_path / "own") as running, RawClient(running.port) as client:
            answer = client.produce_ack("t", 0, encode_set([b"abc"]), acks=2)
            assert answer.base_offset == 13 * number
    assert (tmp_path / "own" / "data" / "t-0").is_dir()


def test_a_forked_child_leaves_the_broker_to_its_parent(shared: RunningBroker) -> None:
    """Workers of a test that end in order end nobody's broker, and remove no files."""
    before = shared.pids()
    proxy = shared.proxy()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            shared.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert shared.running and shared.pids() == before and shared.data_directory.is_dir()
    with RawClient(proxy.port) as client:
        client.produce_ack("forked", 0, encode_set([b"a"]), acks=2)


def test_a_role_is_killed_and_replaced(shared: RunningBroker) -> None:
    with RawClient(shared.port) as client:
        client.produce_ack("killed", 0, encode_set([b"a"]), acks=2)
    for role in ("keeper", "processor-0", "acceptor"):
        old = shared.kill(role)
        assert shared.wait_replaced(role, old) != old
    with shared.consumer() as consumer:
        assert consumer.fetch("killed", 0, 0).payloads() == [b"a"]
    with pytest.raises(ProcessLookupError, match="acceptor"):
        shared.kill("no-such-role")


def test_the_port_stays_over_restarts_and_kills() -> None:
    with testing.broker(processors=1) as running:
        port = running.port
        for end in (running.stop, running.kill):
            with RawClient(running.port) as client:
                client.produce_ack("t", 0, encode_set([b"a"]), acks=2)
            pid = running.pids()["supervisor"]
            assert end() == (pid if end == running.kill else 0)
            assert not running.running
            with pytest.raises(TransportError), running.consumer(timeout=1) as consumer:
                consumer.fetch("t", 0, 0)
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))  # nobody else gets it meanwhile
            running.start()
            assert running.port == port
            assert running.log_text().count("ready host=") == 1, "what it has said since this start, and no more"
        running.restart()
        with running.consumer() as consumer:
            assert len(list(consumer.messages("t", 0))) == 2
        os.kill(running.pids()["supervisor"], signal.SIGKILL)
        wait_until("it has ended", lambda: not running.running)
        assert running.stop() == -signal.SIGKILL


def test_a_paused_processor_holds_its_answers(shared: RunningBroker) -> None:
    with RawClient(shared.port, timeout=10) as client:
        client.produce_ack("paused", 0, encode_set([b"a"]), acks=2)
        roles = [role for role in shared.pids() if role.startswith("processor")]
        for role in roles:
            shared.pause(role)
        answered = threading.Event()
        thread = threading.Thread(target=lambda: (client.fetch_ok("paused", 0, 0), answered.set()))
        thread.start()
        assert not answered.wait(0.1)
        for role in roles:
            shared.resume(role)
        assert answered.wait(30)
        thread.join()


def test_a_paused_broker_still_ends() -> None:
    with testing.broker(processors=1) as running:
        for role in ("supervisor", "processor-0"):
            assert psutil.Process(running.pause(role)).status() == psutil.STATUS_STOPPED
        pids = set(running.pids().values())
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def test_a_full_disk_refuses_and_recovers() -> None:
    """An append fails with its error, reads go on, and appends work again once there is room."""
    with testing.broker(processors=1) as running, RawClient(running.port) as client:
        client.produce_ack("t", 0, encode_set([b"before"]), acks=2)
        running.fill_disk()
        limits = {role: resource.prlimit(pid, resource.RLIMIT_FSIZE)[0] for role, pid in running.pids().items()}
        assert set(limits.values()) == {0} and "supervisor" in limits, "which gives its own to those that it starts"
        refused = client.produce_ack("t", 0, encode_set([b"refused"]), acks=1)
        assert refused.error == STORAGE_ERROR
        assert client.fetch_ok("t", 0, 0) == encode_set([b"before"])
        running.free_disk()
        assert client.produce_ack("t", 0, encode_set([b"after"]), acks=2).error == 0
        with running.consumer() as consumer:
            assert [message.payload for message in consumer.messages("t", 0)] == [b"before", b"after"]
        running.stop()
        for turn in (running.fill_disk, running.free_disk):
            with pytest.raises(RuntimeError, match="it does not run"):
                turn()


def test_a_proxy_delays_swallows_and_cuts(shared: RunningBroker) -> None:
    with shared.proxy(delay=0.03) as proxy:
        with RawClient(proxy.port, timeout=5) as client:
            started = time.monotonic()
            client.metadata([])
            assert time.monotonic() - started >= 0.06
            proxy.delay = 0.0
            data = encode_set([bytes(1000)] * 500)
            client.produce_ack("proxied", 0, data, acks=2)
            assert client.read_all("proxied", 0) == data
            proxy.answers = False
            client.send_raw(b"")
            client.produce("proxied", 0, encode_set([b"unheard"]))
            proxy.answers = True
        with RawClient(shared.port) as direct:
            wait_until("it arrived", lambda: direct.log_end("proxied", 0) == len(data) + 17)
        with RawClient(proxy.port, timeout=5) as client:
            client.metadata([])
            proxy.cut()
            assert client.is_closed()
    with pytest.raises(ConnectionRefusedError):
        RawClient(proxy.port)


def test_a_proxy_passes_on_the_end_of_each_side(shared: RunningBroker) -> None:
    """A half-closed connection gives its answers before it ends."""
    with Proxy((shared.host, shared.port)) as proxy, RawClient(proxy.port) as client:
        client.produce("ended", 0, encode_set([b"a"]))
        client.finish_sending()
        assert client.is_closed()
        with RawClient(shared.port) as direct:
            assert direct.log_end("ended", 0) == 11


def test_a_slow_disk_from_the_next_start_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush takes at least that long, and none does before and after; other faults that are wanted stay."""
    others = "ftruncate@900000=EIO"
    monkeypatch.setenv("FASTLOG_FAULTS", others)

    def faults(running: RunningBroker) -> str:
        variables = Path(f"/proc/{running.pids()['supervisor']}/environ").read_text().split("\0")
        return dict(variable.split("=", 1) for variable in variables if variable)["FASTLOG_FAULTS"]

    with testing.broker(processors=1, disk_delay=0.3) as running, RawClient(running.port) as client:
        begun = time.monotonic()
        client.produce_ack("slow", 0, encode_set([b"a"]), acks=2)
        assert time.monotonic() - begun >= 0.3
        assert faults(running) == f"{others},fdatasync@1-=slow:300" and os.environ["FASTLOG_FAULTS"] == others
        client.close()
        running.stop()
        running.disk_delay = 0.0
        running.start()
        assert faults(running) == others


def test_so_much_of_a_log_is_told_with_a_failed_test(shared: RunningBroker) -> None:
    """The end of it, if it has said more since the test began."""
    begin_test()
    with shared.log_path.open("ab") as log:
        log.write(b"x" * 2**21 + b"the end\n")
    (told,) = (text for address, text in logs_of_test() if address == shared.address)
    assert told.endswith("xthe end\n") and len(told) < 2**20


def test_a_group_waits_for_no_further_members() -> None:
    """Unless a test wants it to, by field or by property."""

    def delay(**settings: Any) -> str:
        with testing.broker(processors=1, **settings) as running:
            admin = AdminClient({"bootstrap.servers": running.address})
            (described,) = admin.describe_configs([ConfigResource("broker", "0")]).values()
            return str(described.result(PATIENCE)["group.initial.rebalance.delay.ms"].value)

    assert delay() == "0"
    assert delay(group_initial_rebalance_delay_ms=5) == "5"
    assert delay(properties={"group.initial.rebalance.delay.ms": "7"}) == "7"
    assert delay(properties={"group.initial.rebalance.delay.ms": 8}) == "8"


def test_a_proxy_in_front_of_all_clients() -> None:
    """Also those of today, who go where the broker says it is; the broker behind it keeps its own port."""
    with testing.broker(processors=1, proxied=True) as running:
        assert running.front is not None
        assert running.address == running.front.address != f"127.0.0.1:{running.port}"
        metadata = AdminClient({"bootstrap.servers": f"127.0.0.1:{running.port}"}).list_topics(timeout=PATIENCE)
        assert [f"{there.host}:{there.port}" for there in metadata.brokers.values()] == [running.address]
        with running.consumer() as consumer:
            assert consumer.metadata() is not None
        running.restart()
        assert running.front.address == running.address
    assert running.front is None


def test_brokers_of_a_cluster_have_their_ids() -> None:
    with testing.cluster(2, processors=1) as brokers:
        ids = []
        for running in brokers:
            with running.consumer() as consumer:
                metadata = consumer.metadata([])
                assert metadata is not None
                ids.append(metadata.broker_id)
        assert ids == [0, 1]
        assert brokers[0].port != brokers[1].port


PROGRAM = """
import os, sys
from fastlog import testing
running = testing.broker()
b = running.__enter__()
print(b.pids()["supervisor"], b.directory, flush=True)
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["sys.exit()", "os.kill(os.getpid(), 9)", "raise ValueError"])
def test_tests_that_end_anyhow_take_their_broker_along(end: str) -> None:
    """A normal exit removes the files as well; after SIGKILL nobody is there to do it."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{end}", end)], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    pid, directory = run.stdout.split()
    wait_until("the broker is gone", lambda: not psutil.pid_exists(int(pid)))
    if "kill" in end:
        import shutil

        shutil.rmtree(directory)
    else:
        assert not Path(directory).exists()


def test_the_plugin_imports_nothing_before_it_is_used() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import fastlog.pytest_plugin;"
        "print(*sorted(name for name in set(sys.modules) - before if name != '__future__'))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) <= {"fastlog", "fastlog.pytest_plugin"}


@pytest.mark.slow
def test_the_fixtures_work_side_by_side(tmp_path: Path) -> None:
    """In several worker processes at once, in a project that knows nothing but the installed plugin."""
    outcome = xdist(TESTS, 1, tmp_path)
    assert outcome.runs == TESTS
    assert outcome.violations == []
