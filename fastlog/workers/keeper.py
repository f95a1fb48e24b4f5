"""The keeper: retention, side files, and saying aloud what changed. Killing it delays no flush and no request."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastlog import logs
from fastlog.log import _files, parallel, retention
from fastlog.log._append import Appender, roll_now
from fastlog.log._arena import WHY_NAME
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import COUNTERS, FLUSHER, KEEPER, STAGE_KEEPER
from fastlog.log.files import FileOps
from fastlog.log.formats import FORMATS, LogFormat, format_name
from fastlog.log.internal_logs import newest_snapshot
from fastlog.log.manager import LogManager
from fastlog.log.side_file import SideFile, read_side_file, write_side_file
from fastlog.log.slots import Segment, SlotView
from fastlog.segment_files import FLUSH_MARKS_NAME, list_segments, partition_directory_name, segment_name
from fastlog.workers import advertised, child
from fastlog.workers.deletions import Deletions
from fastlog.workers.log_starts import LogStarts
from fastlog.workers.producer_states import ProducerStates
from fastlog.workers.recoveries import Recoveries

if TYPE_CHECKING:
    from fastlog.registry import Registry

log = logging.getLogger(__name__)

TICK_SECONDS = child.HEARTBEAT_MS / 1000
LOOK_SECONDS = 1.0
DELETE_SECONDS = 1.0
"""How long segments of one partition are removed at a stretch: each waits for the disk, and there is other work."""
CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_SECONDS = 10.0
CLOCK_JUMP_MS = 60_000
CLOCK = retention.SteadyClock()
"""Made when the supervisor imports this module, before it forks, so that a new keeper sees an earlier jump too."""
ALL_SEGMENTS = 1 << 63
"""An index above that of every segment."""
DEREGISTER_SECONDS = 1.0
"""From the first stage of the stop on; a ZooKeeper that does not answer until then ends the session by its time-out."""
FINAL = STAGE_KEEPER
"""The stage of the stop at which the keeper writes its last side files and leaves."""

_POSTPONED = {
    "flushes_without_room": f"no room in a log directory, for {FLUSH_MARKS_NAME} or the like; make some",
    "flushes_without_files": "no file descriptors or no memory for the flusher; raise the limit (ulimit -n)",
}


class Keeper:
    """The keeper's duties and when each is due; not thread-safe."""

    def __init__(self, shared: child.Shared, clock: retention.SteadyClock = CLOCK) -> None:
        self._shared = shared
        self._config = shared.config
        self._arena = shared.arena
        self._files = FileOps()
        self._clock = clock
        self._segment_files = SegmentFiles(shared.arena, 16)
        self._appender = Appender(shared.arena, self._segment_files, KEEPER)
        manager = LogManager(self._config, shared.arena, self._files)
        self._starts = LogStarts(shared.arena, manager, self._files)
        self._deletions = Deletions(shared.arena, self._appender, self._files, self._starts)
        retry_seconds = self._config.recovery_retry_ms / 1000
        self._recoveries = Recoveries(shared.arena, self._appender, manager, self._files, retry_seconds)
        self._changes_seen = shared.arena.change_count
        self._policy = retention.load_policy(self._config.retention_policy)
        self._states: dict[int, int] = {}
        self._written: dict[int, tuple[int, int, float]] = {}  # slot: (flushed end, tail, when)
        self._again: set[int] = set()
        self._producers = ProducerStates(shared.arena, self._directory, self._config.producer_expiry_ms, self._files)
        self._jumped = False
        self._believed = retention.BelievedTimes()
        self._reported: dict[str, int] = {}
        self._postponed = self._arena.counters(FLUSHER)  # as they were at the last look
        self._waiting_for: dict[str, int] = {}  # counter: flushes that had come through when it was last seen to wait
        self._registry: Registry | None = None
        if shared.config.zookeeper:
            from fastlog.registry import Registry  # not for a broker that registers nowhere

            self._registry = Registry(shared)
        self._leave_by = 0.0

    def run(self) -> int:
        """Work until the final stage of the stop; the exit code of the process."""
        self._appender.take_over()
        for view in self._arena.views():
            self._keep_starts()
            self._finish_deletions(view)
        # a predecessor may have unlinked and not come to say so
        self._arena.retention_done()
        cleanup_seconds = self._config.cleanup_interval_minutes * 60
        # 0.7 waits a minute before the first clean-up
        next_cleanup = time.monotonic() + min(60.0, cleanup_seconds)
        next_look = next_report = time.monotonic()
        next_report += self._config.monitoring_period_seconds
        waiting = select.poll()
        waiting.register(self._arena.eventfd(KEEPER), select.POLLIN)
        if self._registry is not None:
            self._registry.start()
        if self._shared.monitor is not None:
            from fastlog.workers import monitor  # not for a broker that nobody asks

            monitor.start(self._shared, self._shared.monitor, self._registry)
        while True:
            self._arena.beat(KEEPER)
            if os.getppid() != self._shared.supervisor_pid:
                return 1
            now = time.monotonic()
            self._forget_gone()
            if self._registry is not None and self._registration_ends(self._registry, now):
                self._look(final=True)
                return child.MAY_NOT_RUN
            if self._arena.stopping >= FINAL:
                self._look(final=True)
                if self._registry is not None:
                    self._registry.wait_stopped(self._leave_by - time.monotonic())
                return 0
            if now >= next_look:
                next_look = now + LOOK_SECONDS
                self._look(final=False)
                self._tell_of_postponed_flushes()
                self._producers.tell_of_forgotten(now)
                logs.catch_up()
                self._clean_all(sorted(self._again | self._starts.moved))
            if now >= next_cleanup:
                next_cleanup = now + cleanup_seconds
                self._clean_all([view.index for view in self._arena.views()])
            if now >= next_report:
                next_report = now + self._config.monitoring_period_seconds
                self._report()
            pause = min(TICK_SECONDS, next_look - now, next_cleanup - now, next_report - now)
            if not self._arena.stopping:
                turns = (self._starts.turn(), self._deletions.turn(), self._recoveries.turn())
                pause = max(0.0, min(pause, *(more for more in turns if more is not None)))
            if waiting.poll(pause * 1000):
                self._arena.wake_taken(KEEPER)

    def _forget_gone(self) -> None:
        """Between two turns: know nothing any more of partitions that have gone, and say so."""
        now, changed = self._arena.changed(self._changes_seen)
        for index in range(self._arena.slot_count) if changed is None else changed:
            self._states.pop(index, None)
            self._written.pop(index, None)
            self._producers.forget(index)
            self._again.discard(index)
            self._starts.moved.discard(index)
            self._believed.forget(index, ALL_SEGMENTS)
        self._changes_seen = now
        self._arena.see(KEEPER, now)

    def _registration_ends(self, registry: Registry, now: float) -> bool:
        """Tell the registry what happened; True when it found that this broker may not run."""
        if self._arena.stopping:
            # at the first stage already: whoever looks for a broker should not find this one any more
            self._leave_by = self._leave_by or now + DEREGISTER_SECONDS
            registry.stop()
            return False
        self._arena.wait_for_creation(KEEPER)
        registry.look()
        return registry.may_not_run

    # -- states and side files -----------------------------------------------------------------------------------------

    def _look(self, *, final: bool) -> None:
        if self._arena.create_lock():
            # whoever died with it has not announced its changes; the one who takes it next does
            self._arena.create_unlock()
        now = time.monotonic()
        due = []
        for view in self._arena.views():
            self._arena.beat(KEEPER)
            self._tell_of_state(view)
            if view.state:
                self._recoveries.consider(view)
            # what is damaged keeps the checkpoint it had
            if not view.state and format_name(view.format) is not None and self._is_due(view, now, final):
                due.append((view.directory, view))
        # with a beat for what is done, and none while nothing is: so the supervisor sees how a stop goes on
        parallel.for_each(due, lambda view: self._checkpoint(view, now, final), turn=lambda: self._arena.beat(KEEPER))

    def _tell_of_state(self, view: SlotView) -> None:
        if view.state == self._states.get(view.index, 0):
            return
        self._states[view.index] = view.state
        log.error(
            "partition %s topic=%r partition=%d visible_end=%d log_end=%d: reads below the visible end go on "
            "unless it is offline%s",
            self._arena.describe_state(view.state),
            view.topic,
            view.partition,
            view.visible_offset,
            view.log_offset,
            f" path={self._directory(view) / segment_name(view.log_offset, _suffix(view))}"
            if _why(view) == WHY_NAME
            else "",
        )

    def _is_due(self, view: SlotView, now: float, final: bool) -> bool:
        """Whether the side file of a partition is to be written, or to be looked at for the first time."""
        last = self._written.get(view.index)
        if last is None:
            return True
        moved, rolled = view.flushed_end - last[0], view.table_tail != last[1]
        late = final or now - last[2] >= CHECKPOINT_SECONDS
        return rolled or moved >= CHECKPOINT_BYTES or (moved > 0 and late)

    def _checkpoint(self, view: SlotView, now: float, final: bool) -> None:
        """Write the side file of a partition if it is due; several threads at once, on different partitions."""
        if view.index not in self._written:
            self._written[view.index] = self._on_disk(view, now)
        if self._is_due(view, now, final) and self._write_side_file(view, final):
            self._written[view.index] = (view.flushed_end, view.table_tail, now)

    def _on_disk(self, view: SlotView, now: float) -> tuple[int, int, float]:
        """What the side file says that a former keeper, or nobody, wrote; its checkpoint as a position.

        As many bytes back as offsets; where an offset takes several bytes that is too few, and time alone makes it due.
        """
        try:
            side = read_side_file(self._directory(view), self._files)
        except OSError:
            side = None
        if side is None:
            return 0, -1, now
        if side.unnumbered:
            self._producers.unnumbered_below(view.index, side.checkpoint)
        position = view.flushed_end - (view.flushed_offset - side.checkpoint)
        sealed = self._arena.segments(view.index)[:-1]
        known = all(item.base in side.segments for item in sealed if item.last_ms)
        return position, view.table_tail if known else -1, now

    def _write_side_file(self, view: SlotView, final: bool) -> bool:
        segments = self._arena.segments(view.index)
        is_numbered = self._producers.are_there(view)
        if is_numbered:
            self._producers.checkpoint(view, final)  # where it cannot be, a start reads more
        side = SideFile(
            created_ms=view.created_ms,
            format=str(format_name(view.format)),
            checkpoint=view.flushed_offset,
            unnumbered=not is_numbered,
            segments={item.base: (item.first_ms, item.last_ms) for item in segments if item.last_ms},
            sealed=_sealed(segments, view),
            inode=self._inode(segments, view),
        )
        try:
            write_side_file(self._directory(view), side, self._files)
        except OSError as error:
            log.warning("side file not written path=%s reason=%s: tried again", self._directory(view), error)
            return False
        if side.unnumbered:
            self._producers.unnumbered_below(view.index, side.checkpoint)
        return True

    def _inode(self, segments: Sequence[Segment], view: SlotView) -> tuple[int, int] | None:
        """Base offset and inode of the segment that a checkpoint at the flushed end lies in, or ends."""
        base = max((item.base for item in segments if item.base <= view.flushed_offset), default=None)
        if base is None or not _format(view).is_dense:
            return None  # of 0.7's logs a copy is as good: nothing else appends to them
        try:
            return base, (self._directory(view) / segment_name(base, _suffix(view))).stat().st_ino
        except OSError:
            return None

    def _directory(self, view: SlotView) -> Path:
        name = partition_directory_name(view.topic, view.partition)
        return Path(self._arena.log_dirs[view.directory]) / name

    # -- retention -----------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        jumped = self._clock.jump_ms() > CLOCK_JUMP_MS
        if jumped and not self._jumped:
            log.warning(
                "the clock jumped ahead by more than a minute since the start: retention goes by the steady clock"
            )
        self._jumped = jumped
        return self._clock.now_ms()

    def _clean_all(self, indices: Iterable[int]) -> None:
        """Drop the segments of some slots that may go."""
        for index in indices:
            view = self._arena.live_view(index)  # not sooner: its start may have moved while others were cleaned
            if view is not None:
                self._clean(view)
            self._keep_starts()

    def _keep_starts(self) -> None:
        """Between two partitions: removing may take each ``DELETE_SECONDS``, and clients wait for starts alone."""
        if not self._arena.stopping:
            self._starts.turn()

    def _clean(self, view: SlotView) -> None:
        """Drop the segments of one partition that its policy lets go."""
        self._arena.beat(KEEPER)
        self._again.discard(view.index)
        self._starts.moved.discard(view.index)
        if view.state or format_name(view.format) is None:
            # what is damaged is kept whole for a person to look at
            return
        self._finish_deletions(view)
        rows = self._arena.segments(view.index)
        if view.topic.startswith("__"):
            self._clean_own(view, rows)
            return
        now_ms = self._now_ms()
        segments = list(self._held(view, rows, now_ms))
        held = retention.Held(view.topic, view.partition, segments, now_ms, view.retention_ms, view.retention_bytes)
        drop = max(self._wished_for(held), _below(rows, view.kept_start, view.log_offset))
        if drop == len(segments):
            # the active segment goes too: an empty one takes its place first, so that the end never goes back
            drop -= 1
            if segments[-1].size and roll_now(self._appender, view.index):
                self._arena.demand_flush(view.index)
                self._again.add(view.index)
            self._segment_files.close_unused()
        # only what is flushed and visible may go, so that the log start passes neither; and only while the name of what
        # stays is durable, so that a power loss never leaves a partition without any segment
        most = min(view.flushed_end, view.visible_end)
        while drop and (rows[drop].start > most or rows[drop].index >= view.dir_synced_tail):
            drop -= 1
            self._again.add(view.index)
        if drop:
            self._delete(view, rows, drop, held.now_ms)

    def _wished_for(self, held: retention.Held) -> int:
        """How many of the oldest segments the policy lets go."""
        try:
            drop = self._policy(held)
            allowed = 0 <= drop <= len(held.segments) and drop == int(drop)
        except Exception as error:
            line = "retention policy failed topic=%r partition=%d error=%r: it drops nothing"
            log.exception(line, held.topic, held.partition, error)
            return 0
        if not allowed:
            line = "retention policy asked for %r of %d segments topic=%r: it drops nothing"
            log.error(line, drop, len(held.segments), held.topic)
            return 0
        return int(drop)

    def _clean_own(self, view: SlotView, rows: list[Segment]) -> None:
        """Drop what is before the newest whole snapshot; no policy is about the broker's own logs."""
        directory, suffix = self._directory(view), _suffix(view)
        visible = [(row, view.visible_end - row.start) for row in rows if row.index < view.dir_synced_tail]
        segments = [(directory / segment_name(row.base, suffix), seen) for row, seen in visible if seen > 0]
        try:
            number = newest_snapshot(segments, self._files) if len(segments) > 1 else None
            if number:
                self._delete(view, rows, number, self._now_ms())
        except OSError as error:
            log.warning("not looked at path=%s reason=%s", directory, error)

    def _held(self, view: SlotView, rows: list[Segment], now_ms: int) -> Iterator[retention.HeldSegment]:
        for number, row in enumerate(rows):
            end = rows[number + 1].start if number + 1 < len(rows) else max(view.flushed_end, row.start)
            last_ms = row.last_ms and self._believed.last_ms((view.index, row.index), row.last_ms, now_ms)
            yield retention.HeldSegment(row.base, end - row.start, row.first_ms, last_ms)

    def _delete(self, view: SlotView, rows: list[Segment], drop: int, now_ms: int) -> None:
        """Publish the new start, unlink, have every process close its descriptors; readers in flight finish theirs."""
        if not self._producers.outlive(view, rows[drop].base):
            self._again.add(view.index)
            return
        start = max(rows[drop].base, view.log_start)
        self._believed.forget(view.index, rows[drop].index)
        self._arena.publish_retention(view.index, rows[drop].index, start)
        _files.reach("retention.published")
        directory = self._directory(view)
        enough = time.monotonic() + DELETE_SECONDS
        for row in rows[:drop]:
            if self._arena.stopping or not self._unlink(directory / segment_name(row.base, _suffix(view))):
                break  # oldest first, or the next start would find a gap
            for suffix in _format(view).companions:
                self._unlink(directory / segment_name(row.base, suffix))
            log.info(
                "segment dropped topic=%r partition=%d base=%d last_append_age_s=%d",
                view.topic,
                view.partition,
                row.base,
                max(0, now_ms - row.last_ms) // 1000 if row.last_ms else 0,
            )
            if self._is_enough(view, enough):
                break
        self._arena.retention_done()

    def _is_enough(self, view: SlotView, enough: float) -> bool:
        """Whether other work comes first now; the rest of the files follows at the next look."""
        if time.monotonic() < enough:
            return False
        self._again.add(view.index)
        return True

    def _unlink(self, path: Path) -> bool:
        """Remove a segment, durably: after a power loss no younger one is missing before it. False when it is there.

        Not every file system keeps the order of two unlinks.
        """
        self._arena.beat(KEEPER)
        _files.reach("retention.unlink")
        try:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(path)
            self._files.fsync_dir(path.parent)
        except OSError as error:
            log.warning("segment not removed path=%s reason=%s: tried again at the next clean-up", path, error)
            return False
        return True

    def _finish_deletions(self, view: SlotView) -> None:
        """Remove files below a published log start: the disk refused, or a predecessor did not come to it."""
        if not view.log_start or view.state:
            return
        rows = self._arena.segments(view.index)
        if _below(rows, view.log_start, view.log_offset):  # it did not even come to say so
            self._again.add(view.index)
        enough = time.monotonic() + DELETE_SECONDS
        try:
            for item in list_segments(self._directory(view), _suffix(view)):
                if item.base >= rows[0].base or self._arena.stopping:
                    break
                if not self._producers.outlive(view, rows[0].base) or not self._unlink(item.path):
                    break
                for suffix in _format(view).companions:
                    self._unlink(item.path.with_suffix(suffix))
                if self._is_enough(view, enough):
                    break
        except OSError as error:
            log.warning("cannot look for dropped segments path=%s reason=%s", self._directory(view), error)

    # -- counters ------------------------------------------------------------------------------------------------------

    def _tell_of_postponed_flushes(self) -> None:
        """A line when flushes begin to be put off, and one when they are not any more; they are tried all the time."""
        before, self._postponed = self._postponed, self._arena.counters(FLUSHER)
        for name, reason in _POSTPONED.items():
            if self._postponed[name] > before[name]:
                if name not in self._waiting_for:
                    log.warning(
                        "flushes wait and are tried again; what they would make visible is not read: %s", reason
                    )
                self._waiting_for[name] = before["flushes"]
            elif self._postponed["flushes"] > self._waiting_for.get(name, self._postponed["flushes"]):
                # one that is only slow to try again has not come through
                del self._waiting_for[name]
                log.info("flushes do not wait any more: there is what was missing (%s)", reason)

    def _report(self) -> None:
        """One line of what the broker did since the last one, all processes together."""
        total = dict.fromkeys(COUNTERS, 0)
        for process in range(self._arena.processes):
            for name, value in self._arena.counters(process).items():
                total[name] += value
        changed = {name: value - self._reported.get(name, 0) for name, value in total.items()}
        self._reported = total
        text = " ".join(f"{name}={value}" for name, value in changed.items() if value and "_within_" not in name)
        log.info("last %d s: %s", self._config.monitoring_period_seconds, text or "nothing happened")


def _below(rows: list[Segment], offset: int, end: int) -> int:
    """How many of the oldest segments lie wholly below an offset; the newest one has records up to ``end``."""
    ends = [*(following.base for following in rows[1:]), end]
    return sum(row.base < row_end <= offset for row, row_end in zip(rows, ends, strict=True))


def _sealed(rows: Sequence[Segment], view: SlotView) -> dict[int, tuple[int, int]]:
    """Size and next offset of each sealed and flushed segment, by its base offset, where offsets are no positions."""
    if not _format(view).is_dense:
        return {}
    return {
        one.base: (following.start - one.start, following.base)
        for one, following in itertools.pairwise(rows)
        if following.base <= view.flushed_offset
    }


def _format(view: SlotView) -> LogFormat:
    return FORMATS[str(format_name(view.format))]


def _suffix(view: SlotView) -> str:
    """The end of the names of a partition's segments."""
    return _format(view).suffix


def _why(view: SlotView) -> int:
    """The number of the reason in a slot's state word."""
    return view.state >> 8 & 0xFF


def run(shared: child.Shared, number: int) -> int:
    """Keep house until the broker stops; the exit code of the process."""
    child.begin(shared, number)
    advertised.start_check(shared)
    return Keeper(shared).run()
