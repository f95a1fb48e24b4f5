"""Topics that come and go while processes are killed: no slot is lost, and nobody reads what was another topic's."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import psutil

from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until

WRITERS = 4
NAMES_EACH = 3
PARTITIONS = WRITERS * NAMES_EACH * 2
MOST_MESSAGES = 4
WRONG_PARTITION = 3
NAME = re.compile(rb"w\d-\d")

Result = TypeVar("Result")


class Topic:
    """One name of one writer, who alone makes and deletes topics of it; what it must hold is known to nobody else."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0

    def message(self, number: int) -> bytes:
        return raw.entry(f"{self.name} {self.life} {number} ".encode() * 3)


@scenario(
    "deletions",
    "topics made, written, read and deleted by several clients while keeper, flusher and processors are killed",
    small=400,
    nightly=10_000,
    release=100_000,
)
def deletions(count: int, seed: int, directory: Path, seconds_between_kills: float = 0.3) -> Outcome:
    """``count`` lives of topics by several writers; others read them all the time, and processes die."""
    outcome = Outcome()
    settings = {"max.partitions": str(PARTITIONS), "num.partitions": "2"}
    over = threading.Event()
    with Broker(directory, settings=settings) as broker, ThreadPoolExecutor(WRITERS + 2) as pool:
        reading = pool.submit(_read, broker, over, random.Random(f"{seed} reads"))
        killing = pool.submit(_kill, broker, over, random.Random(f"{seed} kills"), seconds_between_kills)
        sources = [random.Random(f"{seed} deletions {number}") for number in range(WRITERS)]
        try:
            for number, found in enumerate(
                pool.map(lambda source: _live(broker, count // WRITERS, source, sources.index(source)), sources)
            ):
                outcome.runs += count // WRITERS
                outcome.violations += [f"writer {number}: {line}" for line in found]
        finally:
            over.set()
        outcome.violations += [*reading.result(), *killing.result()]
        _look_at_what_is_left(broker, outcome)
    return outcome


def _live(broker: Broker, count: int, source: random.Random, number: int) -> list[str]:
    topics = [Topic(f"w{number}-{name}") for name in range(NAMES_EACH)]
    client = Persistent(broker)
    try:
        for _ in range(count):
            topic = source.choice(topics)
            topic.life += 1
            if source.random() < 0.3:
                client.do(lambda one, topic=topic: one.create_topic(topic.name))  # type: ignore[misc]
            _write_and_read(client, topic, source)
            error = client.do(lambda one, topic=topic: one.delete_topic(topic.name)[0])  # type: ignore[misc]
            assert error in (0, WRONG_PARTITION), f"deleting {topic.name} life {topic.life}: error {error}"
            assert topic.name not in client.do(lambda one: one.metadata()).topics, f"{topic.name} is deleted and there"
    except AssertionError as error:
        return [str(error)]
    finally:
        client.close()
    return []


def _write_and_read(client: Persistent, topic: Topic, source: random.Random) -> None:
    """What was acknowledged is there, in order, with nothing of another life; what may have been sent may be there."""
    stored, where = [], source.randrange(2)
    for number in range(source.randrange(MOST_MESSAGES + 1)):
        message = topic.message(number)
        answer = client.once(lambda one: one.produce_ack(topic.name, where, message, raw.FLUSHED))  # noqa: B023
        if answer is None or answer.error:
            assert answer is None, f"{topic.name} life {topic.life}: error {answer}"
            return  # it may be there or not
        expected = sum(map(len, stored))
        assert answer.base_offset == expected, (
            f"{topic.name} life {topic.life} began at {answer.base_offset} and not at {expected}"
        )
        stored.append(message)
    if stored:
        got = client.do(lambda one: one.fetch(topic.name, where, 0))
        assert got.error == 0 and got.body == b"".join(stored), f"{topic.name} life {topic.life}: read {got}"


def _read(broker: Broker, over: threading.Event, source: random.Random) -> list[str]:
    """Fetch everything from everywhere; whatever comes belongs to the topic that was asked for."""
    client = Persistent(broker)
    try:
        while not over.is_set():
            name = f"w{source.randrange(WRITERS)}-{source.randrange(NAMES_EACH)}"
            got = client.once(lambda one: one.fetch(name, source.randrange(2), 0))  # noqa: B023
            if got is not None and not set(NAME.findall(got.body)) <= {name.encode()}:
                return [f"a reader of {name} got {got.body!r}"]
    finally:
        client.close()
    return []


def _kill(broker: Broker, over: threading.Event, source: random.Random, pause: float) -> list[str]:
    """Kill one child after the other, but for the acceptor: without it a client waits and learns nothing."""
    assert broker.process is not None
    supervisor = psutil.Process(broker.process.pid)
    while not over.wait(source.uniform(0.2, 1.8) * pause):
        child = source.choice(supervisor.children())
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() != "fastlog-accepto":
                child.kill()
    return []


def _look_at_what_is_left(broker: Broker, outcome: Outcome) -> None:
    """Every slot can be used, no file stays, and nobody has one open that has gone.

    A processor that was killed while it made a partition may leave a directory with nothing in it.
    """

    def left() -> list[str]:
        items = [
            item for item in broker.log_dirs[0].iterdir() if not item.name.startswith((".lock", ".fastlog-fl", "meta."))
        ]
        return [item.name for item in items if not item.is_dir() or any(map(_size, item.glob("*.kafka")))]

    def held() -> list[str]:
        return [path for child in broker.children() for path in _open_paths(child.pid) if "-delete" in path]

    for what, look in (("files", left), ("descriptors", held)):
        with contextlib.suppress(AssertionError):
            wait_until(f"no {what} are left", lambda look=look: not look(), within=10.0)  # type: ignore[misc]
        outcome.expect(not look(), f"{what} are left: {look()[:5]}")
    with broker.connect() as client:
        made = client.create_topic("all", PARTITIONS)
        outcome.expect(made == (0, PARTITIONS), f"of {PARTITIONS} slots, a topic gets {made}")


def _size(path: Path) -> int:
    """In bytes; 0 where it was deleted just now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _open_paths(pid: int) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                yield str(link.readlink())


class Persistent:
    """A client that connects again as often as its connection is closed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._client: raw.RawClient | None = None

    def once(self, ask: Callable[[raw.RawClient], Result]) -> Result | None:
        """The answer; None when the connection was closed before it came."""
        try:
            if self._client is None:
                self._client = self._broker.connect()
            return ask(self._client)
        except (raw.ConnectionClosed, OSError):
            self.close()
            time.sleep(0.005)
            return None

    def do(self, ask: Callable[[raw.RawClient], Result]) -> Result:
        """The answer, of the first try that gets one."""
        while (answer := self.once(ask)) is None:
            pass
        return answer

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
