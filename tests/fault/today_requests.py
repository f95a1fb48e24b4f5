"""Requests of today's protocol that nobody should send, of every kind and version, while others are served as ever."""

from __future__ import annotations

import contextlib
import socket
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
    requests, outcome = Requests(seed), Outcome()
    with Broker(directory, processors=2, settings=SETTINGS) as broker, contextlib.ExitStack() as stack:
        served = stack.enter_context(contextlib.closing(Served(broker)))
        pids = broker.pids()
        before = 0
        while outcome.runs < count:
            frames = requests.burst(min(BURST, count - outcome.runs))
            play(outcome, broker.port, frames)
            outcome.runs += len(frames)
            served.go_on(outcome)
            if outcome.runs >= count // 4 and not before:
                before = sum(broker.memory().values())
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


def play(outcome: Outcome, port: int, frames: list[Frame]) -> None:
    """Send a burst and read what comes; nothing is awaited behind a frame whose head is not as it should be."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        today.asked(client, today.API_VERSIONS, 0)  # the first request says which protocol it is
        is_whole = frames[-1].is_whole
        try:
            client.sendall(b"".join(frame.data for frame in frames))
            if any(frame.key in MAY_WAIT for frame in frames):
                client.settimeout(WAIT_SECONDS)  # also with the end of the connection, which waits for the answer
            if is_whole:
                client.sendall(today.frame(today.API_VERSIONS, 0, b"", correlation=SENTINEL))
            else:
                client.shutdown(socket.SHUT_WR)
            read_answers(outcome, client, frames if is_whole else frames[:-1], is_whole)
        except TimeoutError:
            shown = [(frame.key, frame.version, frame.data.hex()) for frame in frames]
            outcome.expect(client.gettimeout() == WAIT_SECONDS, f"no answer and no end of the connection: {shown}")
        except (OSError, EOFError):
            is_bent = any(frame.is_bent or frame.key == today.PRODUCE for frame in frames)
            outcome.expect(is_bent, f"the connection ended at well-formed requests: {frames}")


def read_answers(outcome: Outcome, client: socket.socket, frames: list[Frame], is_last_answered: bool) -> None:
    """Each answer belongs to the next frame that has one: all but PRODUCE without acknowledgement have."""
    at = 0
    while True:
        answer = today.answer_of(client)
        correlation = int.from_bytes(answer[4:8], "big")
        if is_last_answered and correlation == SENTINEL:
            left = [frame for frame in frames[at:] if frame.key != today.PRODUCE]
            outcome.expect(not left, f"not answered: {[(one.key, one.version, one.data.hex()) for one in left]}")
            return
        while at < len(frames) and int.from_bytes(frames[at].data[8:12], "big") != correlation:
            outcome.expect(frames[at].key == today.PRODUCE, f"out of order, or not answered: {frames[at]}")
            at += 1
        if at == len(frames):
            outcome.expect(not is_last_answered, f"an answer to nothing that was asked: {answer[:64].hex()}")
            return
        frame = frames[at]
        at += 1
        try:
            today.decoded(frame.key, frame.version, answer)
        except InvalidUnicode as error:  # a name is told as it came
            outcome.expect(frame.is_bent, f"{frame}: answered {answer.hex()}: {error!r}")
        except Exception as error:  # whatever the other reading says
            outcome.expect(False, f"{frame}: answered {answer.hex()}: {error!r}")
