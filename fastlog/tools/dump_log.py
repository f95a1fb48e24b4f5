"""``fastlog dump-log``: what is in segment files, as DumpLogSegments prints it: that of 0.7, or of today's Kafka.

What an entry is, and what there is to say of it, the log format knows.

Source: Kafka 0.7.2 (tools/DumpLogSegments), Apache Kafka 4.2 (tools/DumpLogSegments).
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import click

from fastlog.log.check import log_start_of
from fastlog.log.discovery import shown
from fastlog.log.files import FileOps
from fastlog.log.formats import FORMATS, DeepFindings, DumpedEntry, LogFormat, format_of_files
from fastlog.log.side_file import read_side_file
from fastlog.segment_files import KAFKA_0_7, SIDE_FILE_NAME, SegmentFile, list_segments, parse_segment_name
from fastlog.tools import old_names, options
from fastlog.tools.report import EXIT_DAMAGED, EXIT_DONE, EXIT_USAGE, CommandError, note


@click.command(
    cls=options.Command,
    name="dump-log",
    examples=(
        "fastlog dump-log fastlog-data/logs-0/00000000000000000000.kafka",
        "fastlog dump-log --deep --json fastlog-data/logs-0",
    ),
    old_names={"-noprint": old_names.flag("--no-print")},
)
@click.argument("paths", metavar="FILES...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@options.option("--print/--no-print", "show", group="Format", default=True, help="Show payloads, or leave them out.")
@options.option(
    "--deep", group="Format", is_flag=True, help="Open compressed sets, and record batches, and show what is inside."
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object for each message.")
def dump_log_command(paths: tuple[Path, ...], show: bool, deep: bool, as_json: bool) -> int:
    """Show what is in segment files; a partition's directory stands for all of its segments.

    Without --json the lines are those of Kafka 0.7's DumpLogSegments; --deep adds the messages inside a compressed
    set, indented. Of record batches they are those of Apache Kafka's: a line for each batch, and with --deep for each
    record, with its key and payload. Exit code 5 when a message is not valid or bytes are left over at the end.
    """
    sound = True
    for path in paths:
        log_format, segments = _segments(path)
        start = log_start_of((path if path.is_dir() else path.parent).absolute(), log_format, FileOps())
        if start:
            note(f"{path}: what is before offset {start} has been deleted")
        for segment in segments:
            sound = _dump(segment, log_format, show, deep, as_json) and sound
    return EXIT_DONE if sound else EXIT_DAMAGED


def _segments(path: Path) -> tuple[LogFormat, list[SegmentFile]]:
    """The segments that a path stands for, and their format: what the side file beside them says, or their names.

    A file with another name is one of Kafka 0.7 that begins at offset 0, as DumpLogSegments takes it.
    """
    directory = path if path.is_dir() else path.parent
    files = path.iterdir() if path.is_dir() else [path]
    side = read_side_file(directory, FileOps())
    if side is not None and side.format not in FORMATS:
        raise CommandError(
            f"{shown(path)} cannot be read",
            f"{SIDE_FILE_NAME} beside it names the log format {side.format!r}, unknown to this version",
            "use the version that wrote it",
            EXIT_DAMAGED,
        )
    log_format = (
        FORMATS[side.format] if side is not None else format_of_files(item.name for item in files) or FORMATS[KAFKA_0_7]
    )
    if directory is not path:
        base = parse_segment_name(path.name, log_format.suffix)
        return log_format, [SegmentFile(base or 0, path, path.stat().st_size)]
    segments = list_segments(path, log_format.suffix)
    if not segments:
        raise CommandError(
            f"there is no segment in {shown(path)}",
            "it is not the directory of a partition",
            "name a directory such as fastlog-data/logs-0, or files",
            EXIT_USAGE,
        )
    return log_format, segments


def _dump(segment: SegmentFile, log_format: LogFormat, show: bool, deep: bool, as_json: bool) -> bool:
    """Print one file; False when a message is not valid, does not open, or bytes are left over."""
    path, files = segment.path, FileOps()
    if not as_json:
        _print(f"Dumping {path}")
        _print(f"{'Starting' if log_format.is_for_kafka07 else 'Log starting'} offset: {segment.base}")
    sound, position, end = True, 0, segment.base
    inside = DeepFindings() if deep else None
    with path.open("rb") as file:  # also through a link, which the broker's own seam refuses
        fd = file.fileno()
        segment = segment._replace(size=files.size(fd))
        for entry in log_format.dump(files, fd, segment, inside):
            sound = _note_damaged(segment, log_format, inside) and sound and entry.valid
            if not entry.inside:
                position, end = entry.end, entry.next_offset
            _show(entry, log_format, show, as_json, path)
        sound = _note_damaged(segment, log_format, inside) and sound
        left = files.size(fd) - position
    if not as_json:
        _print(f"tail of the log is at offset: {end}")
    if left > 0:
        sound = False
        note(f"{path}: {left} bytes from position {position} on are no whole message")
    return sound


def _note_damaged(segment: SegmentFile, log_format: LogFormat, inside: DeepFindings | None) -> bool:
    """Say which compressed set did not open since it was asked last; False when one did not."""
    damaged = [] if inside is None else inside.damaged_wrappers
    for position, why in damaged:
        offset = log_format.end_offset(segment._replace(size=position))
        note(f"{segment.path}: the compressed set at offset {offset} does not open: {why}")
    sound = not damaged
    damaged.clear()
    return sound


def _show(entry: DumpedEntry, log_format: LogFormat, show: bool, as_json: bool, path: Path) -> None:
    if as_json:
        _print(json.dumps(_as_json(entry, show, path)))
        return
    if not log_format.is_for_kafka07:  # as Apache Kafka's tool has it: a record is one line
        fields = (("key", entry.key), ("payload", entry.payload)) if show else ()
        shown = [f" {name}: {value.decode('utf-8', 'replace')}" for name, value in fields if value is not None]
        _print("".join((entry.text, *shown)))
        return
    indent = "  " if entry.inside else ""
    _print(f"{indent}{entry.text}")
    if show and entry.payload is not None:
        _print(f"{indent}payload:\t{entry.payload.decode('utf-8', 'replace')}")


def _as_json(entry: DumpedEntry, show: bool, path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "file": str(path),
        "offset": entry.offset,
        "next_offset": entry.next_offset,
        "valid": entry.valid,
        **entry.fields,
        "inside": entry.inside,
    }
    if show and entry.key is not None:
        fields["key"], fields["key_base64"] = _as_text(entry.key)
    if show and entry.payload is not None:
        fields["payload"], fields["base64"] = _as_text(entry.payload)
    return fields


def _as_text(data: bytes) -> tuple[str, bool]:
    """Bytes as text if they are some; else in base64, and True."""
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), True


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
