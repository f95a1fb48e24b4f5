"""Where scenarios play: directories on a disk with room, brokers, warmed memory, clients that always end."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fastlog.client import connection
from fastlog.client.addresses import Address
from fastlog.errors import FastlogError
from fastlog.wire import requests, responses
from perf import interrupts
from perf.ceiling import loadgen
from perf.figures.text import figure
from perf.replay.scenarios import ENTRY_OVERHEAD, PAGE_CACHE
from tests.harness.broker import Broker
from tests.harness.data import access_log_lines

ROOT = Path(__file__).resolve().parents[2]
MADV_POPULATE_WRITE = 23
MESSAGE_BYTES = 200
ENTRY_BYTES = MESSAGE_BYTES + ENTRY_OVERHEAD
TOPIC = "replay"
CLIENT_SECONDS = 900.0
"""After so long a client process is given up."""

_LOOK_SECONDS = 0.0005


class ReplayError(FastlogError):
    """A scenario could not be measured; the others go on."""


class TooLittleSpaceError(FastlogError):
    """The disk below the scratch directory has no room for what was asked."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a replay was asked for. Sizes in bytes, ``seconds`` of each latency run."""

    messages: int = 10_000_000
    processors: int = 2
    seed: int = 1
    payload_file: Path | None = None
    line_bytes: int | None = None
    """Of the lines of ``payload_file`` on average."""

    stored_bytes: int = 20_000_000_000
    segment_bytes: int = 1_000_000_000
    seconds: float = 5.0
    quick: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """Broker settings that go before those of the scenarios."""

    scratch: Path = ROOT / ".tmp"

    def payloads(self, size: int = MESSAGE_BYTES) -> tuple[Path | None, int]:
        """The file whose lines a producer sends instead of random messages of ``size`` bytes, and how long they are.

        What is about other sizes than the usual one stays random: lines would all have the same.
        """
        if self.payload_file is None or self.line_bytes is None or size != MESSAGE_BYTES:
            return None, size
        return self.payload_file, self.line_bytes


class Client:
    """One process that produces, consumes or compresses (``client.py``): ready, then told to go, then its figures."""

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        self.kind = kind
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perf.replay.client", kind, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the replay, which ends its children in order
            preexec_fn=interrupts.die_with_parent,
        )

    def wait_ready(self) -> None:
        """Returns once it has everything it needs before the clock starts."""
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != b"ready":
            raise self._failed()

    def go(self) -> None:
        """Starts its clock."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: result() says why
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        """Tells one that runs until it is told."""
        self.go()

    def result(self) -> dict[str, Any]:
        """Its figures, once it has ended by itself."""
        try:
            out, _ = self._communicated(CLIENT_SECONDS)
        except subprocess.TimeoutExpired:
            raise ReplayError(f"{self.kind}: no result within {CLIENT_SECONDS:g} s") from None
        if self.process.returncode:
            raise self._failed()
        found: dict[str, Any] = json.loads(out)
        return found

    def close(self) -> None:
        """Ends it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.process.wait()

    def _communicated(self, timeout: float) -> tuple[bytes, bytes]:
        self._error = b""
        out, self._error = self.process.communicate(timeout=timeout)
        return out, self._error

    def _failed(self) -> ReplayError:
        text = getattr(self, "_error", b"")
        if not text and self.process.stderr is not None and not self.process.stderr.closed:
            text = self.process.stderr.read()
        lines = text.decode(errors="replace").strip().splitlines()
        return ReplayError(f"{self.kind}: {lines[-1] if lines else f'ended with {self.process.poll()}'}")


@dataclass
class Backlog:
    """A broker that holds messages to be read, all of them visible and in the page cache."""

    broker: Broker
    messages: int
    bytes: int


class Stage:
    """Everything scenarios share. For one thread; use it as a context: it leaves no process and no file."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self.options = options
        self.say = say
        options.scratch.mkdir(parents=True, exist_ok=True)
        self._life, self._block, self._round = contextlib.ExitStack(), contextlib.ExitStack(), contextlib.ExitStack()
        self._kept: dict[str, Any] = {}
        self._backlog: Backlog | None = None
        self.directory = Path(
            self._life.enter_context(tempfile.TemporaryDirectory(dir=options.scratch, prefix="perf-"))
        )

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Ends and removes everything. May be called twice."""
        with self._life, self._block, self._round:
            pass  # each is closed, also when one before it fails

    def require_space(self, needed: int) -> None:
        """Raises ``TooLittleSpaceError`` unless ``needed`` bytes are free, with a tenth of them to spare."""
        free = shutil.disk_usage(self.directory).free
        wanted = needed + needed // 10
        if free < wanted:
            raise TooLittleSpaceError(
                f"{figure(wanted, 'bytes')} are needed in {self.options.scratch}, {figure(free, 'bytes')} are free\n"
                "logs of full length are written there and removed again\n"
                "use fewer --messages, fewer --stored-bytes, --only, --quick, or another --scratch"
            )

    # --- what lives as long as a block, and as a round ---

    def kept(self, name: str, make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
        """Something that is made at the first call and lives until the end of the block."""
        if name not in self._kept:
            self._kept[name] = self._block.enter_context(make())
        return self._kept[name]

    def end_block(self) -> None:
        """Lets go of what was kept."""
        self._kept.clear()
        self._block.close()

    def backlog(self) -> Backlog:
        """The messages that every consumer of a round reads: written once, by the C generator, which is not timed."""
        if self._backlog is None:
            messages = self.options.messages
            self.warm(messages)
            broker = self._round.enter_context(self.broker({**PAGE_CACHE, "monitoring.period.secs": 1}))
            self.fill(broker, TOPIC, messages)
            self._backlog = Backlog(broker, messages, messages * ENTRY_BYTES)
        return self._backlog

    def end_round(self) -> None:
        """Removes the backlog."""
        self._backlog = None
        self._round.close()

    def lines_file(self) -> Path:
        """Access-log lines: the file that was given, or generated ones whose lengths follow a real log's."""
        if self.options.payload_file is not None:
            return self.options.payload_file
        path = self.directory / "lines"
        if not path.exists():
            path.write_bytes(b"\n".join(access_log_lines()) + b"\n")
        return path

    # --- brokers ---

    @contextlib.contextmanager
    def place(self) -> Iterator[Path]:
        """An empty directory that is gone afterwards, so that its page cache is free for the next."""
        with tempfile.TemporaryDirectory(dir=self.directory) as name:
            yield Path(name)

    @contextlib.contextmanager
    def broker(self, settings: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Iterator[Broker]:
        """A broker with an empty log, ended and removed afterwards."""
        with (
            self.place() as path,
            Broker(
                path,
                processors=self.options.processors,
                settings=self.all_of(settings),
                environment=environment,
            ) as it,
        ):
            yield it
            it.stop()

    def all_of(self, settings: Mapping[str, object]) -> dict[str, object]:
        """The settings of a scenario with those of the command line."""
        return {**settings, **self.options.settings}

    def fill(self, broker: Broker, topic: str, messages: int) -> float:
        """Appends messages with the C generator and waits until all are visible; returns its rate."""
        place = {"port": broker.port, "topic": topic, "batch": 50, "size": MESSAGE_BYTES}
        result = loadgen.run("produce", {**place, "messages": messages})
        return float(result["rate"])

    def warm(self, messages: int, size: int = MESSAGE_BYTES) -> None:
        """Touches and frees the memory that so many messages will take in the page cache.

        On a virtual machine the host gives a page at its first touch, which can take longer than what is measured.
        """
        warm_memory(messages * (size + ENTRY_OVERHEAD) * 5 // 4)

    # --- clients ---

    @contextlib.contextmanager
    def clients(self, kinds: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[list[Client]]:
        """Processes that are ready and wait to be told to go; gone after the block."""
        with contextlib.ExitStack() as stack:
            found = []
            for kind, options in kinds:
                client = Client(kind, options)
                stack.callback(client.close)
                found.append(client)
            for client in found:
                client.wait_ready()
            yield found

    def run(self, kind: str, **options: Any) -> dict[str, Any]:
        """The figures of one client that runs alone."""
        with self.clients([(kind, options)]) as (client,):
            client.go()
            return client.result()


def warm_memory(size: int) -> None:
    """Touches and frees ``size`` bytes."""
    if size <= 0:
        return
    with mmap.mmap(-1, size) as area:
        try:
            area.madvise(MADV_POPULATE_WRITE)
        except OSError:  # a kernel before 5.14
            for position in range(0, size, mmap.PAGESIZE):
                area[position] = 1


def numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """What a program found that can stand beside its rate in a result file."""
    kinds = (int, float)
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, kinds) and not isinstance(value, bool) and name != "rate"
    }


def cpu_seconds(broker: Broker) -> float:
    """The processor time that all processes of a broker have taken."""
    total = 0.0
    for pid in broker.pids().values():
        with contextlib.suppress(psutil.NoSuchProcess):
            used = psutil.Process(pid).cpu_times()
            total += used.user + used.system
    return total


def cpu_per_message(found: Sequence[Mapping[str, Any]], broker_seconds: float, messages: float) -> dict[str, float]:
    """The nanoseconds of processor time that a message took in clients, and in the broker meanwhile."""
    clients = sum(one["client_cpu_seconds"] for one in found)
    return {"client_cpu_ns": clients / messages * 1e9, "broker_cpu_ns": broker_seconds / messages * 1e9}


def link_to(port: int) -> connection.Connection:
    """A connection to the broker for requests of one's own."""
    return connection.Broker([Address("127.0.0.1", port)], 10.0).connect()


def partitions_over(link: connection.Connection, topics: tuple[str, ...]) -> list[responses.PartitionMetadata]:
    """Every partition of these topics as the broker describes it now."""
    answer = responses.decode_metadata(link.request(requests.encode_metadata(0, topics)))
    return [partition for topic in answer.topics for partition in topic.partitions]


def create_topic(port: int, topic: str, partitions: int) -> None:
    """Makes a topic with its partitions."""
    with link_to(port) as link:
        answer = responses.decode_create_topic(link.request(requests.encode_create_topic(0, topic, partitions)))
    if answer.error:
        raise ReplayError(f"topic {topic!r} was not created: error {answer.error}")


def wait_appended(port: int, topics: tuple[str, ...], total: int, within: float = 60.0) -> int:
    """The moment (``time.monotonic_ns``) at which the log ends of these topics added up to ``total`` bytes."""
    deadline = time.monotonic() + within
    with link_to(port) as link:
        while True:
            found = sum(partition.log_end for partition in partitions_over(link, topics))
            moment = time.monotonic_ns()
            if found == total:
                return moment
            if found > total or time.monotonic() > deadline:
                raise ReplayError(f"{found} bytes were appended instead of {total}")
            time.sleep(_LOOK_SECONDS)
