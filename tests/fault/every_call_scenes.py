"""Calls that fail one after another in one broker that runs on, and in one start after another on the same files.

Quicker than a run of its own for each (``every_call_play``), so that the default suite can afford it: a call of a
processor, of the flusher or of the keeper fails while a topic of its own is written, read and dropped; a call of the
supervisor fails in a start that finds a torn end and a sync without an end, or in the stop that follows.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import ClassVar

from tests.fault.every_call_play import DROPPED, HALF, REFUSED, SERVED, A, B, Fault, Play, State, reason
from tests.harness import raw_client as raw
from tests.harness.disk_shim import Shim
from tests.harness.history import Place

PATIENCE_SECONDS = 2.0
"""How long a scene waits for a call that may never be made."""
MOST_SCENES = 300
SETTINGS = {
    "max.partitions": "1024",
    "log.cleanup.interval.mins": "0.0001",
    "topic.log.retention.size": ",".join(f"keeper{number}:700" for number in range(MOST_SCENES)),
}


class Scenes(Play):
    """One broker that runs on while calls fail; ``closing`` ends it and looks at what is left."""

    settings: ClassVar[dict[str, str]] = {**Play.settings, **SETTINGS}

    def __init__(self, directory: Path, shim: Shim) -> None:
        super().__init__(directory, shim, State())
        self.places: list[Place] = []
        self.kept: dict[Place, bytes] = {}  # what was acknowledged in topics of which the oldest goes
        self.out: set[Place] = set()

    def opening(self) -> None:
        """Start the broker, and play a scene of each kind without a fault, so that all is loaded and opened."""
        self.shim.begin(self.directory)
        self.start()
        self.scene("processor", None)
        self.scene("keeper", None)

    def scene(self, role: str, fault: Fault | None) -> None:
        """Play with a topic of its own."""
        self.state.turn += 1
        self.refusals, self.fault = [], fault
        said = self.log_lines()
        if fault is not None:
            self.arm(fault, self.shim.count(fault[0], fault[1]))
        (self.dropping if role == "keeper" else self.writing)()
        self.met = self.shim.fired(0)
        self.shim.disarm(0)
        self.shim.disarm(4)
        self.noticed = fault is not None and self.has_noticed(fault, len(said))

    def has_noticed(self, fault: Fault, before: int = 0) -> bool:
        """As for every play, but for what the log says late of the topic of another scene."""
        said = reason(fault)
        lines = [line for line in self.log_lines()[before:] if said in line]
        topics = {f"{kind}{self.state.turn}" for kind in ("writing", "keeper")} | {(self.met or "").partition("-")[0]}
        named = [set(re.findall(r"\b(?:writing|keeper)[0-9]+\b", line)) for line in lines]
        return bool(self.refusals) or any(found <= topics for found in named)

    def writing(self) -> None:
        """A topic is made, written and read; then a plain append has to be taken, unless the topic stands still."""
        place = (f"writing{self.state.turn}", 0)
        self.places.append(place)
        for number, acks in enumerate((raw.APPENDED, raw.FLUSHED, 0)):
            self.append(place, [b"%d %d %d" % (self.state.turn, number, index) + b"-" * 60 for index in range(2)], acks)
        self.read(place)
        self.ask(lambda client: client.held_fetch(*place, 0))
        self.settle(place)
        self.read(place)

    def settle(self, place: Place) -> None:
        errors: list[int | None] = []
        while not errors or (errors[-1] != SERVED and len(errors) < 3):
            errors.append(self.append(place, [b"the end %d %d" % (self.state.turn, len(errors))], raw.FLUSHED))
        if errors[-1] == REFUSED:
            self.out.add(place)
        fired = self.shim.has_fired(0)
        self.expect(errors[-1] == SERVED or (fired and errors[-1] == REFUSED), f"{place[0]} answers {errors}")

    def dropping(self) -> None:
        """The oldest segments of a topic go, and what is younger is served, to the byte."""
        place = (f"keeper{self.state.turn}", 0)
        self.kept[place] = b""
        for number in range(6):
            data = raw.message_set([b"%d %d" % (self.state.turn, number) + b"." * 300])
            answer = self.ask(lambda client, data=data: client.produce_ack(*place, data, raw.FLUSHED))
            self.expect(answer is not None and answer.error == SERVED, f"{place[0]}: {answer}")
            self.kept[place] += data
        deadline = time.monotonic() + PATIENCE_SECONDS
        start = 0
        # also the files: a retention that was interrupted goes on at the next look
        while (not start or len(self.segments(place)) > 3) and time.monotonic() < deadline:
            start = (self.ask(lambda client: client.offsets(*place, raw.EARLIEST, 1)) or [0])[0]
            time.sleep(0.002)
        self.expect(start > 0 and len(self.segments(place)) <= 3, f"{place[0]}: nothing was dropped")
        self.read_the_rest(place)

    def read_the_rest(self, place: Place) -> None:
        """What is left of a topic of which the oldest goes, also while more of it goes."""
        data, start, later = None, 0, -1
        while data is None and start != later:
            start = (self.ask(lambda client: client.offsets(*place, raw.EARLIEST, 1)) or [0])[0]
            data = self.ask(lambda client, start=start: client.read_all(*place, start))
            later = (self.ask(lambda client: client.offsets(*place, raw.EARLIEST, 1)) or [0])[0]
        self.expect(data == self.kept[place][start:], f"{place[0]}: what is left from {start} is not what was written")

    def closing(self) -> None:
        """A stop, and a life without a fault."""
        assert self.life is not None
        self.fault = None
        for what, count in self.life.open_files().items():
            self.expect(
                count == 1 and not what.endswith((".tmp", "a directory", "(deleted)")), f"{what} is open {count} times"
            )
        self.expect(self.life.died() == [], f"died: {self.life.died()}")
        self.disconnect()
        self.life.stop()
        self.check_log(self.life)
        self.check_marker()
        self.check_files()
        self.shim.begin(self.directory)
        self.start()
        self.refusals = []
        for place in self.places:
            self.state.turn += 1
            self.out.discard(place)
            self.settle(place)
            self.read(place)
        for place in self.kept:
            self.read_the_rest(place)
        self.expect(not self.refusals, f"a life without a fault refuses: {self.refusals}")
        self.end()

    def end(self) -> None:
        """The last stop."""
        assert self.life is not None
        self.disconnect()
        self.life.stop()
        self.expect(
            self.life.exit_code == 0, f"the last stop ended with {self.life.exit_code}\n{self.life.log()[-600:]}"
        )
        self.check_files()
        self.check_names()


class Starts(Play):
    """One start after another on the same files, each of which finds a torn end and a sync without an end."""

    def __init__(self, directory: Path, shim: Shim) -> None:
        super().__init__(directory, shim, State())

    def opening(self) -> None:
        """What the starts find."""
        self.shim.begin(self.directory)
        self.start()
        for number in range(4):
            for place in (A, B, DROPPED):
                self.append(place, [b"%d %s" % (number, place[0].encode()) + b"-" * 120], raw.FLUSHED)
        self.disconnect()
        assert self.life is not None
        self.life.stop()

    def scene(self, fault: Fault | None) -> None:
        """One start and one stop with a fault. What it has left offline comes back."""
        self.state.turn += 1
        self.refusals, self.fault = [], fault
        with self.segments(A)[-1].open("ab") as file:
            file.write(HALF)
        (self.directory / ".fastlog-flushing").write_bytes(b"\0\1")
        (self.directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
        before = len(self.log_lines())
        self.life_of_its_own(fault)
        self.met = self.shim.fired(0)
        self.noticed = fault is not None and self.has_noticed(fault, before)
        assert self.life is not None
        if self.refusals or self.life.exit_code or self.life.out_of_service():
            self.refusals, self.fault = [], None
            self.life_of_its_own(None)
            self.expect(not self.refusals, f"a life without a fault refuses: {self.refusals}")

    def life_of_its_own(self, fault: Fault | None) -> None:
        self.shim.begin(self.directory)
        self.arm(fault)
        self.start()
        self.append(
            B, [b"%d" % len(self.log_lines()) + b"life %d of turn %d" % (self.lives, self.state.turn)], raw.FLUSHED
        )
        self.read(A)
        self.disconnect()
        self.stop()
        self.check_files()

    def closing(self) -> None:
        """A life without a fault, and what it leaves."""
        self.fault, self.refusals = None, []
        self.life_of_its_own(None)
        self.expect(not self.refusals, f"a life without a fault refuses: {self.refusals}")
        self.check_names()
