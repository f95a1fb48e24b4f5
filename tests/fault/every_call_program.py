"""Plays ``every_call_play`` again and again, behind the shim, each time with another call that fails.

Started by ``tests.fault.every_call``, which writes what to try to standard input, a JSON array a line, and reads what
came of it, a JSON object a line. The broker is forked from this process, which is its only client.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.fault import every_call_rules as rules
from tests.fault.every_call_play import TORN, Fault, Play, State
from tests.fault.every_call_rules import errors, judge, sort_of
from tests.fault.every_call_scenes import Scenes, Starts
from tests.harness.disk_shim import SHORT, Call, Shim
from tests.harness.forked_broker import Broken

_PR_SET_CHILD_SUBREAPER = 36


class Theatre:
    """Where plays are given: the state before each act, as a play without a fault left it, and runs from there."""

    def __init__(self, directory: Path, shim: Shim) -> None:
        self.directory = directory
        self.shim = shim
        self.states: list[State] = []

    def rehearse(self) -> list[dict[str, Any]]:
        """All acts in a row, without a fault: what is told of each."""
        shutil.rmtree(self.directory, ignore_errors=True)
        data = self.directory / "data"
        data.mkdir(parents=True)
        told = []
        play = Play(data, self.shim, State())
        for act in range(len(play.acts)):
            self.states.append(play.state.copy())
            shutil.copytree(data, self.directory / f"before-{act}")
            told.append(self._give(play, act, None))
        return told

    def run(self, act: int, fault: Fault) -> dict[str, Any]:
        """One act with a fault, and a last one without."""
        data = self.directory / "data"
        shutil.rmtree(data)
        shutil.copytree(self.directory / f"before-{act}", data)
        for path in self.directory.glob("log-*"):
            path.unlink()
        play = Play(data, self.shim, self.states[act].copy())
        told = self._give(play, act, fault)
        if not told["violations"]:
            told["violations"] = self._give(play, len(play.acts) - 1, None)["violations"]
        return told

    def _give(self, play: Play, act: int, fault: Fault | None) -> dict[str, Any]:
        started = time.monotonic()
        play.violations = []
        try:
            play.run(act, fault)
        except Exception:
            log = play.life.log()[-3000:] if play.life is not None else ""
            play.violations.append(f"act {act + 1}: {traceback.format_exc()}\n{log}")
        finally:
            close(play)
        return {
            "violations": play.violations,
            "refusals": play.refusals,
            "noticed": fault is not None and play.life is not None and play.has_noticed(fault),
            "seconds": round(time.monotonic() - started, 3),
            "fired": self.shim.fired(0),
            "descriptors": play.descriptors,
            "exit": play.life.exit_code if play.life is not None else None,
            "counts": [[*each, count] for each, count in self.shim.counts().items()],
        }


def action(error: str) -> int:
    """What the play takes for it."""
    return {"short": SHORT, rules.TORN: TORN}.get(error) or int(getattr(errno, error))


def few(calls: Iterable[Call], others: Sequence[str]) -> Iterator[tuple[str, str, int, str]]:
    """Of each role and kind the first call, with each error; with ``others`` the last, and one of each sort of file."""
    made: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        made.setdefault((call.role, call.kind), []).append(call)
    for (role, kind), group in made.items():
        begin = group[0].number - 1
        yield from ((role, kind, 1, error) for error in errors(kind))
        numbers = {sort_of(call.name): call.number - begin for call in reversed(group)} if kind in BY_FILE else {}
        for number in sorted({*numbers.values(), group[-1].number - begin} - {1}):
            yield from ((role, kind, number, error) for error in errors(kind) if error in others)


BY_FILE = ("open", "pread", "pwrite", "ftruncate", "fdatasync", "fsync", "rename", "unlink")
"""Calls of which it matters what they are about."""
RETENTION = ("opendir", "readdir", "unlink", "fsync")
SAID_FIRST = (("fsync", 1, "EIO"), ("opendir", 1, "EIO"))
"""The keeper says it of the first topic, and does not repeat it at once for the next: logs are limited."""
SCENES: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
    ("processor", lambda role, kind: role in ("processor", "flusher")),
    ("keeper", lambda role, kind: role == "keeper" and kind in RETENTION),
)
"""Who writes and reads, and who drops; with the calls that come with each such scene, whatever the time."""


class Dose:
    """The first and the last call of each kind, with each error: in one broker that runs on, and in many starts."""

    def __init__(self, directory: Path, shim: Shim) -> None:
        self._directory = directory
        self._shim = shim
        self.told: dict[str, Any] = {"runs": 0, "missed": [], "violations": []}

    def scenes(self) -> None:
        """Of processor, flusher and keeper."""
        play = Scenes(self._fresh(), self._shim)
        with self._closed(play):
            play.opening()
            for role, wanted in SCENES:
                before = len(list(self._shim.calls()))
                play.scene(role, None)
                time.sleep(0.05)  # what the flusher does behind an answer
                made = list(self._shim.calls())[before:]
                found = few(
                    [call for call in made if wanted(call.role, call.kind)], ("EIO", "EINTR", "short", rules.TORN)
                )
                for case in sorted(found, key=lambda case: case[1:] not in SAID_FIRST):
                    self._run(play, case, partial(play.scene, role))
            play.closing()

    def starts(self) -> None:
        """Of the supervisor."""
        play = Starts(self._fresh(), self._shim)
        with self._closed(play):
            play.opening()
            play.scene(None)
            made = [call for call in self._shim.calls() if call.role in ("supervisor", "keeper")]
            for case in few(made, ("EIO", "short", rules.TORN)):
                self._run(play, case, play.scene)
            play.closing()

    def tools(self) -> None:
        """Of programs besides the broker: so many runs, drawn by a seed, or as many as there are."""
        from tests.fault.every_call_tools import Tries  # more than a broker that is forked needs

        tries = Tries(self._directory, self._shim)
        self._fresh()
        tries.run(action, int(sys.argv[3]), int(sys.argv[4]))
        self.told.update(runs=tries.runs, missed=tries.missed, violations=tries.violations)

    def _run(self, play: Play, case: tuple[str, str, int, str], scene: Callable[[Fault], object]) -> None:
        role, kind, number, error = case
        before = len(play.violations)
        fault = role, kind, number, action(error)
        scene(fault)
        self.told["runs"] += 1
        name = play.met
        if name is None:
            self.told["missed"].append(case)
        else:
            limited = role == "keeper" and isinstance(play, Scenes) and case[1:] not in SAID_FIRST
            limited = limited and error not in ("EINTR", "short")
            said = play.noticed or limited
            wrong = judge(role, kind, name, error, said)
            play.expect(not wrong, wrong)
            if name == ".fastlog-flushing" and case[1:] == ("pwrite", 1, "EIO"):  # before the sync, and not behind it
                play.expect(play.noticed, "a flush went on without its mark")
        self.told["violations"] += [f"{role} {kind} {number} {error}: {line}" for line in play.violations[before:]]
        del play.violations[before:]

    def _fresh(self) -> Path:
        shutil.rmtree(self._directory, ignore_errors=True)
        data = self._directory / "data"
        data.mkdir(parents=True)
        return data

    @contextlib.contextmanager
    def _closed(self, play: Play) -> Iterator[None]:
        try:
            yield
        except Exception:
            play.violations.append(f"{traceback.format_exc()}\n{play.log_lines()[-20:]}")
        finally:
            self.told["violations"] += play.violations
            close(play)


def close(play: Play) -> None:
    """End what a play has left running."""
    play.disconnect()
    if play.life is not None and play.life.exit_code is None:
        with contextlib.suppress(Broken, ProcessLookupError):
            play.life.kill()


def main() -> None:
    """A dose, or else: the rehearsal is told first, an array; then a line for each line read, which is a case."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    directory, shim = Path(sys.argv[1]).resolve(), Shim()
    if sys.argv[2:]:
        dose = Dose(directory, shim)
        getattr(dose, sys.argv[2])()
        print(json.dumps(dose.told))
        return
    theatre = Theatre(directory, shim)
    print(json.dumps(theatre.rehearse()), flush=True)
    for line in sys.stdin:
        act, role, kind, number, error = json.loads(line)
        print(json.dumps(theatre.run(act, (role, kind, number, action(error)))), flush=True)


if __name__ == "__main__":
    main()
