"""The processors and the flusher of a broker as threads of the test's own process, reached over TCP.

What the broker's processes hold can be counted from inside, faults are armed in the middle, and their heartbeats are so
far apart that a wake-up that is lost is a test that does not come to its end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from fastlog.log import _files
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import COUNTERS, FIRST_PROCESSOR, FLUSHER, STAGE_FLUSHER
from fastlog.workers._flusher import FlusherLoop, make_flusher_loop
from tests.harness.broker import wait_until
from tests.harness.processor import Processor
from tests.harness.raw_client import RawClient
from tests.harness.timing import PATIENCE
from tests.harness.topic_maker import TopicMaker

HOURS_MS = 4 * 3_600_000
PARTITIONS = 64
STILL_SECONDS = 0.05


class Workers:
    """Starts on entering the ``with`` block; ``settings`` are fields of ``BrokerConfig``.

    ``makes_topics``: something stands in for the coordinator, as far as topics are made for who asks for them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        processors: int = 1,
        flusher: bool = True,
        heartbeat_ms: int = HOURS_MS,
        retry_ms: int = HOURS_MS,
        connection_limit: int = 1000,
        stalled_ms: int = 10_000,
        slots: int = PARTITIONS,
        makes_topics: bool = True,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.arena = Arena([str(directory)], FIRST_PROCESSOR + processors, slots, 64)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        options = {
            "heartbeat_ms": heartbeat_ms,
            "retry_ms": retry_ms,
            "connection_limit": connection_limit,
            "stalled_ms": stalled_ms,
        }
        self._make_processor: Callable[[int], Processor] = lambda number: Processor(
            directory, arena=self.arena, number=FIRST_PROCESSOR + number, **options, **settings
        )
        self._rule = settings.get("rule")
        self._makes_topics = makes_topics
        self._maker: TopicMaker | None = None
        self._heartbeat_ms = heartbeat_ms
        self._processor_count = processors
        self._with_flusher = flusher
        self.processors: list[Processor] = []
        self.flusher: FlusherLoop | None = None
        self._flushing: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.processors = [self._make_processor(number) for number in range(self._processor_count)]
        if self._makes_topics:
            self._maker = TopicMaker(self.processors, self._rule)
        if self._with_flusher:
            self.start_flusher()
        return self

    def __exit__(self, *_: object) -> None:
        _files.arm("", "test")
        self.stop()
        self.listener.close()

    def start_flusher(self) -> None:
        """Start the flusher, where it was left out before."""
        self.flusher = make_flusher_loop(self.arena, 64, 0, 0, 0, -1, self._heartbeat_ms)
        self._flushing = threading.Thread(target=self.flusher.run, args=(2, 2, os.getppid()), daemon=True)
        self._flushing.start()

    def stop(self) -> None:
        """End them as the supervisor does: first the processors, then the flusher, which flushes all."""
        if self._maker is not None:
            self._maker.close()
            self._maker = None
        for processor in self.processors:
            processor.close()
        self.arena.set_stopping(STAGE_FLUSHER)
        if self._flushing is not None:
            self._flushing.join(PATIENCE)
            assert not self._flushing.is_alive()

    # -- clients -------------------------------------------------------------------------------------------------------

    def connect(self, processor: int = 0) -> RawClient:
        """A connection to one of the processors."""
        client = RawClient(self.port)
        accepted, _ = self.listener.accept()
        with accepted:
            self.processors[processor].hand_over(accepted)
        return client

    def connect_narrow(self, processor: int = 0, ends: list[socket.socket] | None = None) -> RawClient:
        """A connection whose both ends hold as little as the kernel allows; not TCP, which is slow then.

        Of the end that a processor has, a copy goes into ``ends``, for who makes it wider later.
        """
        ours, theirs = socket.socketpair()
        for one in (ours, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        with theirs:
            self.processors[processor].hand_over(theirs)
            if ends is not None:
                ends.append(theirs.dup())
        ours.settimeout(PATIENCE)
        return Paired(ours)

    # -- what they hold ------------------------------------------------------------------------------------------------

    def held(self) -> Counter[str]:
        """All that processors hold, by name, and open sockets and files of the log, by name too.

        An answer may have come before what it took is given back: ``wait_still`` before it is compared with.
        """
        found: Counter[str] = Counter()
        for processor in self.processors:
            found.update(processor.loop.held)
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                target = link.readlink().as_posix()
                if target.startswith((f"{self.directory}/", "socket:")):
                    found[target.partition(":[")[0].removeprefix(f"{self.directory}/")] += 1
        return found

    def wait_held(self, expected: Mapping[str, int], *, files_may_close: bool = False) -> None:
        """Returns once they hold exactly this; says what differs when that does not come.

        ``files_may_close`` where a heartbeat is short: the flusher closes those of partitions that were idle for 2 s.
        """
        wanted = Counter(expected)

        def differing(now: Counter[str]) -> set[str]:
            names = {name for name in {*now, *wanted} if now[name] != wanted[name]}
            closed = {name for name in names if "/" in name and 0 <= now[name] < wanted[name]}
            return names - closed if files_may_close else names

        try:
            wait_until("all is given back", lambda: not differing(self.held()))
        except AssertionError:
            now = self.held()
            different = differing(now)
            raise AssertionError({name: (expected.get(name, 0), now[name]) for name in different}) from None

    def count(self, name: str) -> int:
        """A counter, of all processors together."""
        return sum(self.arena.counters(processor.number)[name] for processor in self.processors)

    def counts(self) -> dict[str, int]:
        """All counters of all processors together, those that are 0 left out."""
        found = {name: self.count(name) for name in COUNTERS}
        return {name: value for name, value in found.items() if value}

    def flushes(self) -> dict[str, int]:
        """The counters of the flusher."""
        return self.arena.counters(FLUSHER)

    def turns(self) -> int:
        """How often all loops have turned, the flusher's too."""
        turned = sum(processor.loop.turns for processor in self.processors)
        return turned + (self.flusher.turns if self.flusher is not None else 0)

    def wait_still(self) -> None:
        """Returns once no loop turns any more: one that has nothing to do, or only waits, must not.

        One that is ready to run has something to do, however long it waits for a core.
        """
        loops = [processor.thread for processor in self.processors] + [self._flushing]
        tasks = [Path(f"/proc/self/task/{loop.native_id}/stat") for loop in loops if loop is not None]

        def is_still() -> bool:
            before = self.turns()
            time.sleep(STILL_SECONDS)
            asleep = all(task.read_text().rpartition(") ")[2].startswith("S") for task in tasks)
            return asleep and self.turns() == before

        wait_until("no loop turns", is_still)


class Paired(RawClient):
    """A client on a socket that is there already."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._correlations = itertools.count(1)


def reset(client: RawClient) -> None:
    """Leave with an RST instead of a FIN."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def drain(client: RawClient, within: float = PATIENCE) -> bytes:
    """All that comes until the other side ends the connection."""
    data = bytearray()
    client.socket.settimeout(within)
    with contextlib.suppress(ConnectionError):
        while piece := client.socket.recv(1 << 20):
            data += piece
    return bytes(data)


def is_silent(client: RawClient) -> bool:
    """Whether neither bytes nor the end of the connection are there now."""
    return not select.select([client.socket], [], [], 0)[0]
