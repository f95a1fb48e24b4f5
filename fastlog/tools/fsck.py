"""``fastlog fsck``: says what is wrong with log directories, and repairs them when asked."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fastlog.clock import SystemClock
from fastlog.log import access
from fastlog.log.check import Report, Span, check_partition
from fastlog.log.discovery import scan_log_dirs, shown
from fastlog.log.files import FileOps, open_lock
from fastlog.log.formats import format_of_files
from fastlog.log.repair import keep_span, quarantine_unexpected_files
from fastlog.segment_files import SIDE_FILE_NAME, split_directory_name
from fastlog.tools import options, signals
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DAMAGED, EXIT_DONE, EXIT_USAGE, CommandError


@click.command(
    cls=options.Command,
    name="fsck",
    examples=("fastlog fsck ./fastlog-data", "fastlog fsck ./fastlog-data/logs-0 --repair --keep before"),
)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@options.option("--repair", group="Selection", is_flag=True, help="Put it right; no broker may use the directory.")
@options.option(
    "--keep",
    group="Selection",
    type=click.Choice(["before", "after"]),
    help="What a repair keeps when whole messages stand on both sides of the damage.",
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object for each partition.")
@options.option("--no-progress", group="Format", is_flag=True, help="Say nothing on stderr while it runs.")
def fsck_command(directory: Path, repair: bool, keep: str | None, as_json: bool, no_progress: bool) -> int:
    """Check every message of a log directory, or of one partition in it.

    Reads only, also beside a running broker, unless --repair is given. A repair removes no byte: what leaves
    the log is kept in files that end in .truncated or .bad.

    With damage in the middle a repair keeps one side. "before" cuts there: offsets that readers have already
    seen are given out again. "after" begins the log behind the damage, as retention does: the end stays where
    readers know it.
    """
    if keep and not repair:
        raise click.UsageError("--keep is for --repair")
    log_directory, partitions, skipped = _targets(directory)
    with _lock(log_directory, exclusive=repair) as live:
        files, progress = FileOps(), ConsoleProgress("checked", shown=not no_progress)
        damaged = False
        for path in partitions:
            report = check_partition(path, files, live=live)
            done: list[str] = []
            if repair and report.problems:
                with signals.deferred(), access.umask(access.umask_like(report.directory)):
                    report, done = _repair(report, keep, files)
            progress.add(report.messages, report.size)
            damaged = damaged or bool(report.problems)
            click.echo(json.dumps(_as_json(report, done)) if as_json else _as_text(report, done))
    if not as_json:
        for line in skipped:
            click.echo(line)
        if not partitions:
            click.echo(f"{shown(directory)}: no partitions")
    return EXIT_DAMAGED if damaged else EXIT_DONE


def _targets(directory: Path) -> tuple[Path, list[Path], list[str]]:
    """The log directory, the partitions to check in it, and what was passed over."""
    directory = directory.absolute()
    if split_directory_name(directory.name) is not None and (
        (directory / SIDE_FILE_NAME).exists() or format_of_files(item.name for item in directory.iterdir()) is not None
    ):
        return directory.parent, [directory], []
    found, warnings = scan_log_dirs([directory])
    return directory, [partition.directory for partition in found], warnings


@contextlib.contextmanager
def _lock(log_directory: Path, *, exclusive: bool) -> Iterator[bool]:
    """Whether a broker has the directory; with ``exclusive`` the lock is held instead, or the command refused."""
    try:
        mode = 0o644 & ~access.umask_like(log_directory)
        fd = open_lock(log_directory, (os.O_RDWR | os.O_CREAT) if exclusive else os.O_RDONLY, mode)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            if exclusive:
                raise CommandError(
                    f"a broker has {shown(log_directory)}",
                    "a repair changes files that it would go on using",
                    "stop the broker first, or leave out --repair to look only",
                    EXIT_USAGE,
                ) from None
            yield True
            return
        if not exclusive:
            fcntl.flock(fd, fcntl.LOCK_UN)  # a broker may start while we look
        yield False
    finally:
        os.close(fd)


def _repair(report: Report, keep: str | None, files: FileOps) -> tuple[Report, list[str]]:
    """Repair what can be repaired without guessing; return the check after it, and what was done."""
    now_ms = SystemClock().now_ms()
    done = quarantine_unexpected_files(report, files, now_ms)
    if done:
        report = check_partition(report.directory, files)
    span = _chosen(report, keep)
    if span is not None:
        done += keep_span(report, span, files, now_ms)
        report = check_partition(report.directory, files)
    return report, done


def _chosen(report: Report, keep: str | None) -> Span | None:
    choices = report.choices
    if not any(problem.kind in ("damage", "tail", "gap", "overlap", "short") for problem in report.problems):
        return None
    if len(choices) < 2:
        return choices[0] if choices else None
    return {"before": choices[0], "after": choices[1]}.get(keep or "")


def _as_text(report: Report, done: list[str]) -> str:
    lines = [f"  repaired: {line}" for line in done]
    for problem in report.problems:
        place = "" if problem.position is None else f" position {problem.position} (offset {problem.offset})"
        lines.append(f"  {problem.kind}: {Path(problem.file).name}{place}: {problem.text}")
    lines += [f"  note: {line}" for line in report.notes]
    if report.problems and len(report.choices) == 2:
        before, after = report.choices
        lines.append(f"  --repair --keep before keeps {_extent(before)}")
        lines.append(f"  --repair --keep after  keeps {_extent(after)}")
    state = f"{len(report.problems)} problem(s)" if report.problems else "ok"
    kept = f"{report.segments} segment(s), {report.size} bytes, {report.messages} messages"
    return "\n".join([f"{shown(report.directory)}: {state}, {kept}", *lines])


def _extent(span: Span) -> str:
    return f"offsets {span.start_offset} to {span.end_offset}, {span.messages} entries"


def _as_json(report: Report, done: list[str]) -> dict[str, Any]:
    return {
        "directory": shown(report.directory),
        "ok": not report.problems,
        "segments": report.segments,
        "bytes": report.size,
        "messages": report.messages,
        "problems": [asdict(problem) for problem in report.problems],
        "notes": report.notes,
        "spans": [
            {"start": span.start_offset, "end": span.end_offset, "entries": span.messages} for span in report.spans
        ],
        "repaired": done,
    }
