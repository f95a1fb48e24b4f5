"""A piece of a broker's life in four acts, in which one call of one process may fail, and what has to hold then."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.harness import raw_client as raw
from tests.harness.disk_shim import KILL, SHORT, Shim
from tests.harness.forked_broker import Broken, Life
from tests.harness.history import History, Place
from tests.harness.monitor import Monitor

Fault = tuple[str, str, int, int]
"""Role, kind and number of the call, and what happens to it: an errno, SHORT, or TORN."""
TORN = -3
"""SHORT, and ENOSPC for the next one of the kind."""
SETTINGS = {
    "port": "0",
    "num.threads": "1",
    "max.message.size": "1000000",
    "max.partitions": "16",
    "max.segments.per.partition": "64",
    "log.file.size": "300",
    "topic.log.file.size": f"big:{32 << 20}",
    "topic.log.retention.size": "dropped:700",
    "log.cleanup.interval.mins": "0.003",
    "log.default.flush.interval.ms": "20",
    "log.early.writeback.bytes": str(1 << 20),
    "log.cache.keep.bytes": str(1 << 20),
    "monitor.address": "127.0.0.1:0",
}
A: Place = ("first", 0)
B: Place = ("second", 0)
DROPPED: Place = ("dropped", 0)
BIG: Place = ("big", 0)
SERVED, REFUSED, STORAGE = 0, 101, 103
HALF = b"\0\0\0\x20half a mess"
LOST = (raw.ConnectionClosed, BrokenPipeError, ConnectionResetError, ConnectionRefusedError)
# What lies in a log directory when nobody runs, besides what a recovery has quarantined.
_KNOWN = re.compile(
    r"\.lock|\.kafka_cleanshutdown|\.fastlog-flushing|meta\.properties(\.tmp)?"
    r"|[a-z0-9]+-0(/([0-9]{20}\.kafka|fastlog\.json|\.flushed-[0-9]{20}))?"
)
_QUARANTINED = re.compile(r"[a-z0-9]+-0/[0-9]{20}\.kafka\.[0-9]+\.truncated")


@dataclass
class State:
    """What clients know of a log directory between two lives of its broker."""

    history: History = field(default_factory=History)
    dropped: bytes = b""
    """All that was acknowledged in the topic of which the oldest goes."""
    turn: int = 0
    """Acts that were played: every payload is used once."""

    def copy(self) -> State:
        return State(self.history.copy(), self.dropped, self.turn)


class Play:
    """Lives of one broker, of which one may meet a call that fails."""

    settings: ClassVar[dict[str, str]] = SETTINGS

    def __init__(self, directory: Path, shim: Shim, state: State) -> None:
        self.directory = directory
        self.shim = shim
        self.state = state
        self.fault: Fault | None = None
        self.violations: list[str] = []
        self.refusals: list[str] = []
        self.descriptors: dict[str, int] = {}
        self.lives = 0
        self.act = 0
        self.noticed = False
        self.met: str | None = None  # the file of the call that failed
        self.life: Life | None = None
        self.client: raw.RawClient | None = None
        self.acts: tuple[Callable[[], None], ...] = (self.first, self.second, self.third, self.last)

    def run(self, act: int, fault: Fault | None = None) -> None:
        """One life. When a call of the start fails, another start follows without that."""
        self.shim.begin(self.directory)
        self.act, self.fault = act, fault
        self.state.turn += 1
        self.arm(fault)
        self.refusals = []
        self.start()
        self.acts[act]()
        self.check_files()

    def arm(self, fault: Fault | None, before: int = 0) -> None:
        """Let a call fail, that many of its kind from now on."""
        if fault is None:
            return
        role, kind, number, action = fault
        self.shim.arm(0, role, kind, before + number, SHORT if action == TORN else action)
        if action == TORN:
            self.shim.arm(4, role, kind, before + number + 1, errno.ENOSPC)

    # -- acts ----------------------------------------------------------------------------------------------------------

    def first(self) -> None:
        """Topics are made, segments rolled, old ones dropped, space is reserved; a clean stop."""
        self.ask(lambda client: client.create_topic("made"))
        self.work("first")
        for number in range(2):
            self.append(BIG, [b"%d %d" % (number, index) + bytes(720_000) for index in range(3)], raw.FLUSHED)
        for number in range(6):
            self.append(DROPPED, [b"%d" % number + b"." * 300], raw.FLUSHED)
        self.wait_for_retention()
        self.read(BIG)
        self.ask_health()
        self.end_of_life()
        self.stop()

    def second(self) -> None:
        """A start after a clean stop; a processor dies in the middle of a write, the flusher in a sync; all die."""
        self.work("second")
        self.shim.arm(1, "processor", "pwrite", self.shim.count("processor", "pwrite") + 2, SHORT)
        self.shim.arm(2, "processor", "pwrite", self.shim.count("processor", "pwrite") + 3, KILL)
        for number in range(4):
            self.append(A, [b"second, a death %d %d" % (number, index) for index in range(2)], raw.APPENDED)
        self.shim.arm(3, "flusher", "fdatasync", self.shim.count("flusher", "fdatasync") + 2, KILL)
        for number in range(4):
            self.append(B, [b"second, another %d" % number], raw.FLUSHED)
        self.end_of_life()
        self.kill()
        newest = self.segments(A)[-1]
        with newest.open("ab") as file:
            file.write(HALF)
        (self.directory / ".fastlog-flushing").write_bytes(b"\0\1")  # a sync was under way

    def third(self) -> None:
        """A start that recovers, with a torn end and a sync that nobody knows the end of; a clean stop."""
        self.work("third")
        self.end_of_life()
        self.stop()

    def last(self) -> None:
        """Everything is there, everything works, and nothing is left over; with a fault, after the next."""
        self.work("last")
        self.end_of_life()
        self.stop()
        if self.fault is not None:
            return
        assert self.life is not None
        self.expect(not self.refusals, f"a life without a fault refuses: {self.refusals}")
        self.expect(self.life.exit_code == 0, f"the last stop ended with {self.life.exit_code}")
        self.check_names()

    def work(self, name: str) -> None:
        """What every life does: appends of all three kinds, in several segments, and every kind of read."""
        for number in range(3):
            for place in (A, B):
                payloads = [
                    b"%s %d %d %d" % (name.encode(), self.state.turn, number, index) + b"-" * 60 for index in range(2)
                ]
                self.append(place, payloads, (raw.APPENDED, raw.FLUSHED, 0)[number])
        self.read(A)
        self.ask(lambda client: client.multifetch([(*A, 0, 1000), (*B, 0, 1000)]))
        self.ask(lambda client: client.held_fetch(*A, 0))
        self.ask(lambda client: client.cut_points(*A, 0, 400, 100))
        self.ask(lambda client: client.local_read(*A))
        self.ask(lambda client: client.offsets(*B, raw.EARLIEST))
        self.ask(lambda client: client.metadata())

    # -- steps ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker: at once, or, when the call that fails is one of the start, at the second try."""
        for _ in range(2):
            before = self.shim.has_fired(0)
            self.life = Life(self.directory, self.shim, self.lives, self.settings)
            self.lives += 1
            if self.life.has_started:
                self.state.history.restarted()
                return
            if before or not self.shim.has_fired(0):
                raise Broken(f"no start\n{self.life.log()}")
            self.check_refusal(self.life)
        raise Broken("the broker does not start")

    def check_refusal(self, life: Life) -> None:
        """A start that fails says why, in one line, and leaves with 1."""
        self.expect(life.exit_code == 1, f"a start that failed left with {life.exit_code}")
        lines = [line for line in life.log().splitlines() if line.startswith("fastlog-broker: ")]
        wanted = reason(self.fault) if self.fault is not None else ""
        self.expect(any(wanted in line for line in lines), f"a start that failed says {lines}, and not {wanted!r}")
        self.expect(any(str(self.directory) in line for line in lines), f"a start that failed names no file: {lines}")
        self.check_log(life)

    def connected(self) -> raw.RawClient:
        if self.client is None:
            self.client = raw.RawClient(self.life.port)
        return self.client

    def disconnect(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    def ask(self, question: Callable[[raw.RawClient], object]) -> Any:
        """Ask, and note a refusal; None then. What is no answer at all is a violation."""
        try:
            return question(self.connected())
        except (*LOST, AssertionError) as error:
            if isinstance(error, AssertionError) and "answered error" not in str(error):
                raise
            self.refusals.append(repr(error))
            self.disconnect()
        except TimeoutError:
            self.disconnect()
            self.expect(False, f"no answer\n{self.life.log()[-2000:]}")
        return None

    def append(self, place: Place, payloads: list[bytes], acks: int) -> int | None:
        """Append; the error that it was answered with, None where the connection was closed."""
        data = raw.message_set(payloads)
        if place != DROPPED:
            self.state.history.sent(place, "sender", payloads)
        if not acks:
            self.ask(lambda client: client.produce(*place, data))
            self.ask(lambda client: client.metadata([]))  # behind it: whether the connection lives
            return None
        answer = self.ask(lambda client: client.produce_ack(*place, data, acks))
        if answer is None:
            return None
        self.expect(answer.error in (SERVED, REFUSED, STORAGE), f"{place[0]}: produce answered {answer.error}")
        if answer.error:
            self.refusals.append(f"{place[0]}: {answer.error}")
            if answer.error == STORAGE:
                self.check_cut(place)
        elif place == DROPPED:
            self.expect(answer.base_offset == len(self.state.dropped), f"{place[0]}: lies at {answer.base_offset}")
            self.state.dropped += data
        else:
            self.state.history.acked(place, answer.base_offset, answer.next_offset, data, flushed=acks == raw.FLUSHED)
        return int(answer.error)

    def read(self, place: Place) -> None:
        """Read all that is visible."""
        known = 0 if self.is_short_of_room(place) else self.state.history.known_end(place)
        ends = self.ask(lambda client: client.offsets(*place, raw.LATEST, 1))
        if ends:
            self.state.history.visible(place, ends[0], known)
        data = self.ask(lambda client: client.read_all(*place))
        if data is not None:
            self.state.history.shown(place, 0, data)

    def is_short_of_room(self, place: Place) -> bool:
        """Whether a full disk lets a partition be read up to what was flushed for certain, which may be less."""
        lines = self.life.log().splitlines() if self.life is not None else []
        return any(f"topic={place[0]!r} " in line and "the disk is full; nothing was cut" in line for line in lines)

    def wait_for_retention(self) -> None:
        """Until the keeper has dropped the oldest segments, or has met the call that fails."""
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            starts = self.ask(lambda client: client.offsets(*DROPPED, raw.EARLIEST, 1))
            if (starts and starts[0]) or self.shim.has_fired(0):
                return
            time.sleep(0.01)

    def ask_health(self) -> None:
        """A probe of the disks comes with it."""
        found = re.search(r"\bmonitor=(\S+):(\d+)", self.life.log())
        assert found is not None
        with contextlib.suppress(OSError):
            Monitor(found[1], int(found[2])).get("/health")

    def end_of_life(self) -> None:
        """What holds before a life ends: the fault is over, so what was not taken out of service takes an append."""
        assert self.life is not None
        stopped = self.life.out_of_service()
        for place in (A, B):
            errors: list[int | None] = []
            while len(errors) < 2 or (errors[-1] != SERVED and len(errors) < 4):
                payload = b"the end %d %s %d" % (self.state.turn, place[0].encode(), len(errors))
                errors.append(self.append(place, [payload], raw.FLUSHED))
            if errors[-1] == SERVED:
                continue
            deadline = time.monotonic() + 5
            while place[0] not in stopped and time.monotonic() < deadline:  # the keeper says it once a second
                time.sleep(0.05)
                stopped = self.life.out_of_service()
            self.expect(
                self.shim.has_fired(0) and errors[-1] == REFUSED and place[0] in stopped,
                f"{place[0]} answers {errors}; out of service are {stopped}\n{self.life.log()[-2000:]}",
            )
            self.refusals.append(f"{place[0]} is out of service")
        self.read(A)
        self.read(B)
        self.check_processes()
        self.disconnect()

    def stop(self) -> None:
        assert self.life is not None
        self.life.stop()
        fired = self.shim.has_fired(0)
        code, log = self.life.exit_code, self.life.log()
        self.check_log(self.life)
        if code != 0:
            self.expect(fired, f"a stop without a fault ended with {code}\n{log[-2000:]}")
            self.expect(
                "stopped without the clean marker: " in log, f"exit code {code}, and no word why\n{log[-2000:]}"
            )
        self.check_marker()

    def kill(self) -> None:
        assert self.life is not None
        self.life.kill()
        self.check_log(self.life)

    def log_lines(self) -> list[str]:
        """What the lives of this run have said."""
        paths = sorted(self.directory.parent.glob("log-*"), key=lambda path: path.stat().st_mtime_ns)
        return [line for path in paths for line in path.read_text(errors="replace").splitlines()]

    # -- checks --------------------------------------------------------------------------------------------------------

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(f"act {self.act + 1}: {what}")

    def segments(self, place: Place) -> list[Path]:
        return sorted((self.directory / f"{place[0]}-0").glob("*.kafka"))

    def check_cut(self, place: Place) -> None:
        """Of a request that was refused nothing stays, unless it was the cut that failed."""
        data = b"".join(path.read_bytes() for path in self.segments(place))
        failed = self.fault is not None and self.fault[1] in ("ftruncate", "fstat")
        more = len(data) - len(whole(data))
        self.expect(failed or not more, f"{place[0]}: {more} bytes of what was refused are left")

    def check_log(self, life: Life) -> None:
        log = life.log()
        for line in ("Traceback", "ended by an error", "could not start", ": killed"):
            self.expect(line not in log, f"{line!r} in the log\n{log[-3000:]}")
        damaged = "side file damaged" in log or ("marker names no log" in log and "marker unreadable" not in log)
        self.expect(not damaged, f"what was put in place is not whole\n{log[-3000:]}")

    def check_processes(self) -> None:
        """None has died but those that were to, and none holds on to what it is through with."""
        assert self.life is not None
        died = self.life.died()
        planned = [role for rule, role in ((3, "flusher"), (2, "processor-0")) if self.shim.has_fired(rule)]
        self.expect(died == planned, f"died: {died}; that was to die: {planned}\n{self.life.log()[-3000:]}")
        for what, count in self.life.open_files().items():
            self.descriptors[what] = max(self.descriptors.get(what, 0), count)

    def has_noticed(self, fault: Fault, before: int = 0) -> bool:
        """Whether anybody was told: a client that was refused, besides for a death that was planned, a log, a parent.

        ``before`` lines of the log are older.
        """
        assert self.life is not None
        said = reason(fault)
        refused = len(self.refusals) > self.shim.has_fired(2)
        return (
            refused
            or self.life.exit_code not in (None, 0, -9)
            or any(said in line for line in self.log_lines()[before:])
        )

    def check_names(self) -> None:
        """Nothing is left over but what recovery has quarantined, which is what was torn."""
        for path in sorted(self.directory.rglob("*")):
            name = str(path.relative_to(self.directory))
            if _QUARANTINED.fullmatch(name):
                data = path.read_bytes()
                self.expect(data == HALF, f"{name}: {len(data)} bytes were quarantined: {data[:60]!r}")
            elif path.is_file():
                self.expect(_KNOWN.fullmatch(name) is not None, f"{name} is left over")

    def check_marker(self) -> None:
        """A clean marker names only what is there to the byte, and a stop that says 0 has left one."""
        assert self.life is not None
        path = self.directory / ".kafka_cleanshutdown"
        if not path.exists():
            self.expect(self.life.exit_code != 0, "exit code 0, and no clean marker")
            return
        ends = json.loads(path.read_bytes())["ends"]
        stopped = self.life.out_of_service()
        for name, end in ends.items():
            newest = sorted((self.directory / name).glob("*.kafka"))[-1]
            real = int(newest.stem) + newest.stat().st_size
            self.expect(real == end, f"the clean marker says that {name} ends at {end}, and it ends at {real}")
            self.expect(name[:-2] not in stopped, f"the clean marker names {name}, which is out of service")
        if self.life.exit_code == 0:
            for place in self.state.history.places():
                named = f"{place[0]}-0" in ends
                self.expect(named or place[0] in stopped, f"the clean marker does not name {place[0]}-0")

    def check_files(self) -> None:
        """The history against what lies there now, but for what a broker that was killed left behind the log end."""
        assert self.life is not None
        halves = [path.name for path in self.directory.rglob("*.truncated.tmp")]
        self.expect(not halves or (self.fault is not None and self.fault[1] == "unlink"), f"{halves} are left over")
        torn = self.life.exit_code not in (0, 1)
        out = self.life.out_of_service()
        stored = {}
        for place in self.state.history.places():
            data = b"".join(path.read_bytes() for path in self.segments(place))
            if torn or place[0] in out:  # of what is out of service nothing was cut
                data = whole(data)
            stored[place] = data
        self.violations += [f"act {self.act + 1}: {line}" for line in self.state.history.check(stored)]
        paths = self.segments(DROPPED)
        if paths:
            start = int(paths[0].stem)
            data = whole(b"".join(path.read_bytes() for path in paths))
            wanted = self.state.dropped[start:]
            self.expect(
                data[: len(wanted)] == wanted, f"dropped: {len(data)} bytes from {start}, {len(wanted)} acknowledged"
            )


def reason(fault: Fault) -> str:
    """What the log says of it; nothing that it ever says where nothing has failed."""
    action = errno.ENOSPC if fault[3] == TORN else fault[3]
    return os.strerror(action) if action > 0 else "cut short by a test"


def whole(data: bytes) -> bytes:
    """The whole messages at the front."""
    position = 0
    while len(data) - position > 4 and 4 + int.from_bytes(data[position : position + 4], "big") <= len(data) - position:
        position += 4 + int.from_bytes(data[position : position + 4], "big")
    return data[:position]
