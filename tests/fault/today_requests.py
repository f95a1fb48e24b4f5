"""Requests of today's protocol that nobody should send, of every kind and version, while others are served as ever."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from kio.serial.errors import InvalidUnicode

from fastlog.log.check import check_partition
from fastlog.log.files import FileOps
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_batches, today
from tests.harness.broker import Broker, wait_until
from tests.harness.raw_records import Record
from tests.harness.sanitizer import KEPT_BYTES
from tests.harness.timing import PATIENCE
from tests.harness.today_fuzz import Frame, Requests

WATCHED = "watched"
"""The topic of whoever is served beside them; no request of theirs names it."""
BURST = 20
SENTINEL = 0x7FFFFFFF
JOIN_GROUP, SYNC_GROUP = 11, 14
MAY_WAIT = {JOIN_GROUP, SYNC_GROUP}
"""For other members, as long as a request says."""
CLIENTS = 6
"""How many send at once, because most of an answer's time is waiting: for files, and for other members."""
PAUSE_SECONDS = 0.05
ENOUGH = 20
"""Broken promises, after which no more are looked for."""
MOST_KNOWN, MOST_KNOWN_BYTES = 50_000, 1000
RECEIVED_BYTES = 1 << 16
WAIT_SECONDS = 1.0
BATCH_BYTES = 4000
MOST_GROWTH_BYTES = (96 << 20) + KEPT_BYTES
SETTINGS = {
    "message.max.bytes": BATCH_BYTES,
    "max.inflated.bytes": 1 << 20,
    "fetch.max.wait.ms": 50,
    "num.partitions": 2,
    "max.partitions": 256,
    "log.flush.interval": 1,
    "group.initial.rebalance.delay.ms": 0,
}


class Served:
    """A client that does what clients do; each answer is known before."""

    def __init__(self, broker: Broker) -> None:
        self.client = socket.create_connection(("127.0.0.1", broker.port), PATIENCE)
        today.asked(self.client, today.API_VERSIONS, 0)
        names = {"topics": [{"name": WATCHED, "topic_id": today.NO_ID}], "allow_auto_topic_creation": True}
        wait_until(
            "a topic", lambda: len(today.asked(self.client, today.METADATA, 4, **names).topics[0].partitions) == 2
        )
        self.stored: list[bytes] = []

    def close(self) -> None:
        """End the connection."""
        self.client.close()

    def go_on(self, outcome: Outcome) -> None:
        """Write a batch, and read it back."""
        number = len(self.stored)
        data = raw_batches.of([Record(0, None, b"watched %d" % number)]).encode()
        part = self._part(today.asked(self.client, today.PRODUCE, 9, **today.produced((WATCHED, 0, data), acks=-1)))
        outcome.expect((part.error_code, part.base_offset) == (0, number), f"batch {number}: {part}")
        self.stored.append(number.to_bytes(8, "big") + data[8:12] + bytes(4) + data[16:])
        part = self._part(
            today.asked(self.client, today.FETCH, 11, **today.fetched((WATCHED, 0, number), max_wait=5000))
        )
        outcome.expect(part.records == self.stored[-1], f"batch {number} is read as {part.records!r}")

    @staticmethod
    def _part(answer: Any) -> Any:
        (topic,) = answer.responses
        (part,) = topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
        return part


@scenario(
    "requests-mutated",
    "requests of all of today's kinds and versions, with odd fields and changed bytes",
    small=6_000,
    nightly=300_000,
    release=5_000_000,
)
def mutated(count: int, seed: int, directory: Path) -> Outcome:
    """In bursts, each on a connection: answers come in order and can be read, or the connection ends; nobody dies."""
    outcome = Outcome()
    with Broker(directory, processors=2, settings=SETTINGS) as broker, contextlib.ExitStack() as stack:
        served = stack.enter_context(contextlib.closing(Served(broker)))
        pids = broker.pids()
        before = 0
        with senders(outcome, broker.port, count, seed) as ones:
            while not all(one.is_done() for one in ones):
                served.go_on(outcome)
                outcome.runs = sum(one.reached for one in ones)
                if outcome.runs >= count // 4 and not before:
                    before = sum(broker.memory().values())
                time.sleep(PAUSE_SECONDS)
        outcome.runs = sum(one.reached for one in ones)
        served.go_on(outcome)
        outcome.expect(broker.pids() == pids, f"processes died: {ends(broker.log_text())}")
        grown = sum(broker.memory().values()) - before
        outcome.expect(grown < MOST_GROWTH_BYTES, f"memory grew by {grown >> 20} MiB")
        with contextlib.suppress(AssertionError):
            wait_until("connections end", lambda: connections(broker) == 1)
        outcome.expect(connections(broker) == 1, f"{connections(broker)} connections are open, 1 is used")
        outcome.expect(broker.stop() == 0, "the broker did not end well")
        outcome.expect(
            "Traceback" not in broker.log_text(), f"an error nobody expected: {around_error(broker.log_text())}"
        )
        look_at_files(outcome, broker, served.stored)
    return outcome


class Sender:
    """Sends its share, burst after burst."""

    def __init__(self, outcome: Outcome, port: int, share: int, seed: int) -> None:
        self.reached = 0
        self.future: Future[None] | None = None
        self.stopped = threading.Event()
        self._outcome, self._port, self._share = outcome, port, share
        self._requests, self._known = Requests(seed), Known()

    def run(self) -> None:
        """Until all are sent, or there is no need for more."""
        while self.reached < self._share and not self.stopped.is_set() and len(self._outcome.violations) < ENOUGH:
            frames = self._requests.burst(min(BURST, self._share - self.reached))
            self.reached += play(self._outcome, self._port, frames, self._known)

    def is_done(self) -> bool:
        """Also with an error, which is raised here."""
        assert self.future is not None
        if not self.future.done():
            return False
        self.future.result()
        return True


@contextlib.contextmanager
def senders(outcome: Outcome, port: int, count: int, seed: int) -> Iterator[list[Sender]]:
    """``CLIENTS`` of them, with a thread each, which are over behind the block."""
    shares = [count // CLIENTS + (number < count % CLIENTS) for number in range(CLIENTS)]
    ones = [Sender(outcome, port, share, seed * CLIENTS + number) for number, share in enumerate(shares)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        for one in ones:
            one.future = pool.submit(one.run)
        try:
            yield ones
        finally:
            for one in ones:
                one.stopped.set()


def ends(text: str) -> list[str]:
    """What the supervisor says of processes that died, with the lines before."""
    lines = text.splitlines()
    return [
        line
        for number, line in enumerate(lines)
        if any("supervisor" in one and ("ERROR" in one or "WARNING" in one) for one in lines[number : number + 4])
    ]


def around_error(text: str) -> str:
    """The first one of a log, with what stands about it."""
    at = text.find("Traceback")
    return text[max(0, at - 500) : at + 3000]


def connections(broker: Broker) -> int:
    """Connections that the broker's processes have open."""
    found = [psutil.Process(pid).net_connections("tcp") for role, pid in broker.pids().items()]
    return sum(one.status == psutil.CONN_ESTABLISHED for ones in found for one in ones)


def look_at_files(outcome: Outcome, broker: Broker, watched: list[bytes]) -> None:
    """Every partition is sound, deep in its batches, and the watched one holds what it was given."""
    partitions = [path for path in broker.log_dirs[0].iterdir() if path.is_dir() and not path.name.endswith("-delete")]
    for path in partitions:
        problems = check_partition(path, FileOps()).problems
        outcome.expect(not problems, f"{path.name}: {problems[:3]}")
    files = sorted(broker.partition_directory(WATCHED, 0).glob("*.log"))
    stored = b"".join(path.read_bytes() for path in files)
    outcome.expect(stored == b"".join(watched), "the watched partition is not as it was written")


class Known:
    """Answers that were read to their end before, but for the number of their request: the next such needs no look."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int, bytes]] = set()

    def read(self, frame: Frame, answer: bytes) -> None:
        """Raises what kio says of an answer that is not one to this request."""
        seen = (frame.key, frame.version, answer[:4] + answer[8:])
        if seen in self._seen:
            return
        today.decoded(frame.key, frame.version, answer)
        if len(answer) > MOST_KNOWN_BYTES:
            return
        if len(self._seen) >= MOST_KNOWN:
            self._seen.clear()
        self._seen.add(seen)


class Answers:
    """The answers that come on a connection, one by one."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._data = bytearray()

    def next(self) -> bytes:
        """A frame with its size; EOFError at the end of the connection, TimeoutError as the socket's time says."""
        while True:
            have = len(self._data)
            if have >= 4 and have >= (size := 4 + int.from_bytes(self._data[:4], "big")):
                answer = bytes(self._data[:size])
                del self._data[:size]
                return answer
            piece = self._client.recv(RECEIVED_BYTES)
            if not piece:
                raise EOFError(f"the connection ended, {have} bytes into an answer")
            self._data += piece


def play(outcome: Outcome, port: int, frames: list[Frame], known: Known) -> int:
    """Send a burst, read what comes, and return how many were reached before the connection ended.

    It may end at a request that is not as it should be, and at none before; nothing is awaited behind a frame whose
    head is not as it should be, nor behind one that waits for other members.
    """
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        first = today.frame(today.API_VERSIONS, 0, b"", correlation=SENTINEL)  # says which protocol it is
        data = b"".join([first, *(frame.data for frame in frames)])
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what came before that can be read
            if frames[-1].is_whole:
                client.sendall(data + first)
            else:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
        client.settimeout(WAIT_SECONDS)
        answers = Answers(client)
        try:
            is_first = int.from_bytes(answers.next()[4:8], "big") == SENTINEL
            outcome.expect(is_first, "the first request is not answered first")
        except (OSError, EOFError) as error:
            outcome.expect(any(frame.is_bent for frame in frames), f"no answer to the first request: {error!r}")
            return 0
        return read_answers(outcome, answers, frames, known)


def read_answers(outcome: Outcome, answers: Answers, frames: list[Frame], known: Known) -> int:
    """Each answer belongs to the next frame that has one: all but PRODUCE without acknowledgement have."""
    at = 0
    waited = 0.0
    while True:
        try:
            answer = answers.next()
        except TimeoutError:
            waited += WAIT_SECONDS
            if any(frame.key in MAY_WAIT or not frame.is_whole for frame in up_to_answered(frames[at:])):
                return at + 1
            if waited < PATIENCE:
                continue
            outcome.expect(False, f"no answer and no end of the connection: {shown(frames[at:])}")
            return at + 1
        except (OSError, EOFError) as error:
            # what was sent behind the end resets it, so that answers to those before may be lost on their way
            open_ones = frames[at:] if isinstance(error, OSError) else up_to_answered(frames[at:])
            may_end = [number for number, frame in enumerate(open_ones) if frame.is_bent or frame.key == today.PRODUCE]
            outcome.expect(bool(may_end), f"the connection ended at well-formed requests: {error!r} {shown(open_ones)}")
            return at + 1 + (may_end[0] if may_end else 0)
        waited = 0.0
        correlation = int.from_bytes(answer[4:8], "big")
        if correlation == SENTINEL and frames[-1].is_whole:
            left = [frame for frame in frames[at:] if frame.key != today.PRODUCE]
            outcome.expect(not left, f"not answered: {shown(left)}")
            return len(frames)
        while at < len(frames) and int.from_bytes(frames[at].data[8:12], "big") != correlation:
            outcome.expect(
                frames[at].key == today.PRODUCE or not frames[at].is_whole, f"not answered: {shown([frames[at]])}"
            )
            at += 1
        if at == len(frames):
            outcome.expect(not frames[-1].is_whole, f"an answer to nothing that was asked: {answer[:64].hex()}")
            return at
        frame = frames[at]
        at += 1
        if not frame.is_whole:  # of whatever kind it was taken for
            return at
        try:
            known.read(frame, answer)
        except InvalidUnicode as error:  # a name is told as it came
            outcome.expect(frame.is_bent, f"{shown([frame])}: answered {answer.hex()}: {error!r}")
        except Exception as error:  # whatever the other reading says
            outcome.expect(False, f"{shown([frame])}: answered {answer.hex()}: {error!r}")


def up_to_answered(frames: list[Frame]) -> list[Frame]:
    """Those among which the next is that is answered: up to the first that is no PRODUCE."""
    first = next((number for number, frame in enumerate(frames) if frame.key != today.PRODUCE), len(frames))
    return frames[: first + 1]


def shown(frames: list[Frame]) -> list[tuple[int, int, bool, str]]:
    """As they are told of."""
    return [(frame.key, frame.version, frame.is_bent, frame.data.hex()) for frame in frames]
