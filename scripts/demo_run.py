"""The demo: real text through a real broker and back, while the process that serves the most of it is killed.

    publish    every line gets a number and goes to partition ``number % PARTITIONS``, by one ``fastlog produce`` each,
               which waits until the broker has flushed it
    consume    one ``fastlog consume`` reads all partitions; half-way a processor is killed with SIGKILL
    check      each partition must give back its lines exactly once, in order, byte for byte

The kill comes after publishing, so that "exactly once" is a promise and not luck: a producer whose connection breaks
has to send again what was not acknowledged, and that may store a line twice (it counts those). A reader just goes on at
its offset.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Self

import psutil

from perf import interrupts
from scripts.demo_command import Say, parser_of, show
from scripts.demo_text import PARTITIONS, CheckFailed, DemoFailed, Published, check, find_source, write_numbered

TOPIC = "demo"
PROCESSORS = 3
LEAST_LINES = 500_000
FETCH = "256KiB"
START_SECONDS = STOP_SECONDS = 20.0
QUIET_SECONDS = 30.0
PUBLISH_SECONDS = 600.0
BACK_SECONDS = 5.0

PROMISE = re.compile(r" promised: (.*?; flushed (.*?); .*)\n")
READY = re.compile(r"fastlog-broker: ready .*?\bport=(\d+) ")
STARTED = re.compile(r"started role=(processor-\d+) pid=(\d+)")


def _start(
    command: Sequence[str], stdout: IO[bytes] | int | None, stderr: IO[bytes] | int | None
) -> subprocess.Popen[bytes]:
    """Start a module that Ctrl-C does not reach (we end it ourselves) and that goes when we are killed."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=interrupts.die_with_parent,
    )


class Broker:
    """A broker in processes of its own, from the ``with`` on, and gone after it."""

    def __init__(self, directory: Path) -> None:
        self.port = 0
        self.flush_policy = ""
        self.promise = ""
        self._log = directory / "broker.log"
        command = ["fastlog.tools.broker_command", "--port", "0", "--processors", str(PROCESSORS)]
        command += ["--log-dir", str(directory / "data"), "--set", f"num.partitions={PARTITIONS}"]
        with self._log.open("wb") as output:
            self._process = _start(command, stdout=output, stderr=output)

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_SECONDS
        while (ready := READY.search(self._text())) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end()
                lines = self._text().splitlines() or ["it said nothing"]
                raise DemoFailed(f"the broker did not start: {lines[-1]}")
            time.sleep(0.005)
        self.port = int(ready[1])
        promise = PROMISE.search(self._text())
        assert promise is not None, "it is logged before the broker is ready"
        self.promise, self.flush_policy = promise[1], promise[2]
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def stop(self) -> None:
        """Stop it as a service manager would. Raises ``DemoFailed`` unless it says that everything is flushed."""
        code = self._end()
        if code != 0:
            raise DemoFailed(f"the broker left with exit code {code}: {self._text().splitlines()[-1]}")

    def kill_busiest(self) -> tuple[str, int, int]:
        """Kill -9 the processor with the most connections; its role, process id and connections."""
        served = {role: self._connections(pid) for role, pid in self._processors().items()}
        role = max(served, key=lambda name: served[name])
        pid = self._processors()[role]
        os.kill(pid, signal.SIGKILL)
        return role, pid, served[role]

    def seconds_until_replaced(self, role: str, killed_pid: int, since: float) -> float:
        """How long after ``since`` another process had this role. Raises ``DemoFailed`` when none comes."""
        while self._processors()[role] == killed_pid:
            if time.monotonic() > since + BACK_SECONDS:
                raise DemoFailed(f"{role} was not replaced within {BACK_SECONDS:g} s")
            time.sleep(0.002)
        return time.monotonic() - since

    def _processors(self) -> dict[str, int]:
        return {role: int(pid) for role, pid in STARTED.findall(self._text())}

    def _connections(self, pid: int) -> int:
        process = psutil.Process(pid)
        listed = process.net_connections if hasattr(process, "net_connections") else process.connections
        return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == self.port for one in listed("tcp"))

    def _text(self) -> str:
        return self._log.read_text(errors="replace")

    def _end(self) -> int:
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(STOP_SECONDS)
            self._process.kill()
        return self._process.wait()


def _client(name: str, port: int, *arguments: str) -> list[str]:
    return ["fastlog", name, "--brokers", f"127.0.0.1:{port}", "--topic", TOPIC, "--no-progress", *arguments]


@contextlib.contextmanager
def _ended(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Whatever happens inside, these processes are gone afterwards."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def publish(published: Published, port: int) -> None:
    """Send each partition's lines; returns when the broker has said of all of them that they are flushed."""
    producers = [
        _start(
            _client("produce", port, "--partition", str(partition), "--acks", "flushed", str(path)),
            stdout=None,
            stderr=subprocess.PIPE,
        )
        for partition, path in enumerate(published.files)
    ]
    with _ended(producers):
        deadline = time.monotonic() + PUBLISH_SECONDS
        for producer in producers:
            try:
                _, errors = producer.communicate(timeout=max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise DemoFailed(f"publishing did not end within {PUBLISH_SECONDS:g} s") from None
            if producer.returncode != 0:
                raise DemoFailed(f"publishing failed: {_one_line(errors)}")


def consume(broker: Broker, total: int, target: Path) -> tuple[str, int, int, int, float]:
    """Read every partition into ``target`` and kill a processor when half of ``total`` bytes have come.

    Returns:
        The role, process id and connections of what was killed, the percentage that had come, and the moment.
    """
    errors_path = target.with_suffix(".errors")
    with errors_path.open("wb") as errors:
        # Through the socket: a reader of the files would not notice that a processor dies.
        reader = _start(
            _client("consume", broker.port, "--exit-at-end", "--local", "off", "--fetch-bytes", FETCH),
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    killed = None
    came = 0
    with _ended([reader]), target.open("wb") as output:
        assert reader.stdout is not None
        pipe = reader.stdout.fileno()
        while True:
            if not select.select([pipe], [], [], QUIET_SECONDS)[0]:
                raise DemoFailed(f"nothing came for {QUIET_SECONDS:g} s after {came} of {total} bytes")
            data = os.read(pipe, 1 << 20)
            if not data:
                break
            output.write(data)
            came += len(data)
            if killed is None and came * 2 >= total:
                # The reader waits for us meanwhile, so this is the middle, whatever the speed of the machine.
                killed = (*broker.kill_busiest(), came * 100 // total, time.monotonic())
        reader.wait(QUIET_SECONDS)
    if reader.returncode != 0:
        raise DemoFailed(f"consuming failed: {_one_line(errors_path.read_bytes())}")
    if killed is None:
        raise CheckFailed(f"only {came} of {total} bytes came back")
    return killed


def _one_line(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split()) or "without a word"


def run(file: Path | None, least: int, directory: Path, say: Say) -> None:
    """Run the demo in an empty directory; returns when every promise was kept, raises ``DemoFailed`` otherwise."""
    source = find_source(file)
    text = write_numbered(source, least, directory)
    times = f", {text.passes} times" if text.passes > 1 else ""
    say(f"text       {text.lines:,} numbered lines, {text.size / 1e6:.1f} MB: {source.name}{times}")
    with Broker(directory) as broker:
        say(f"broker     {PROCESSORS} processors, {PARTITIONS} partitions; flush {broker.flush_policy}")
        started = time.monotonic()
        publish(text, broker.port)
        seconds = time.monotonic() - started
        say(f"published  {_rate(text, seconds)}; {PARTITIONS} producers, and each was told that its lines are flushed")
        received = directory / "received"
        started = time.monotonic()
        role, pid, connections, percent, moment = consume(broker, text.size, received)
        seconds = time.monotonic() - started
        back = broker.seconds_until_replaced(role, pid, moment)
        if not connections:
            raise DemoFailed(f"{role} served nobody when it was killed: this run shows nothing")
        say(f"consumed   {_rate(text, seconds)}; 1 consumer, {PARTITIONS} connections")
        served = f"{role} (pid {pid}, {connections} of the connections)"
        say(f"killed     {served} with kill -9 after {percent} % of that; replaced within {back:.2f} s")
        with contextlib.ExitStack() as stack:
            published = [stack.enter_context(path.open("rb")) for path in text.files]
            count = check(stack.enter_context(received.open("rb")), published)
        say(f"checked    {count:,} lines came back exactly once and in order, byte for byte")
        broker.stop()
    say("stopped    everything flushed, exit code 0")
    say(f"promised   {broker.promise}")


def _rate(text: Published, seconds: float) -> str:
    return f"{seconds:.2f} s: {text.lines / seconds:,.0f} lines/s, {text.size / seconds / 1e6:.0f} MB/s"


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0, or 1 with one line on stderr."""
    parser = parser_of(
        "demo", "Text through a broker and back, under kill -9.", "text; by default logs of this machine"
    )
    parser.add_argument("--lines", type=int, default=LEAST_LINES, help="repeat it to so many (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    return show("demo", lambda directory, say: run(chosen.file, chosen.lines, directory, say))


if __name__ == "__main__":
    sys.exit(main())
