"""``fastlog dump-log``: what is in segment files, message by message, as 0.7's DumpLogSegments prints it.

Source: Kafka 0.7.2 (tools/DumpLogSegments).
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from fastlog import _segment, message
from fastlog._crc import crc32
from fastlog.errors import InvalidFetchSizeError, InvalidMessageError, MissingCodecError
from fastlog.segment_files import LENGTH_BYTES, parse_segment_name, windows
from fastlog.tools import old_names, options
from fastlog.tools.report import EXIT_DAMAGED, EXIT_DONE, note

CODEC_NAMES = {0: "NoCompressionCodec", 1: "GZIPCompressionCodec", 2: "SnappyCompressionCodec"}
_MIN_MESSAGE_BYTES = 5
_HEADER_BYTES = 10


class Dumped(NamedTuple):
    """One entry as it stands in a file, valid or not."""

    offset: int
    next_offset: int
    valid: bool
    magic: int
    attributes: int
    payload: bytes


@click.command(
    cls=options.Command,
    name="dump-log",
    examples=(
        "fastlog dump-log fastlog-data/logs-0/00000000000000000000.kafka",
        "fastlog dump-log --deep --json fastlog-data/logs-0/*.kafka",
    ),
    old_names={"-noprint": old_names.flag("--no-print")},
)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options.option("--print/--no-print", "show", group="Format", default=True, help="Show payloads, or leave them out.")
@options.option("--deep", group="Format", is_flag=True, help="Open compressed sets and show what is inside.")
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object for each message.")
def dump_log_command(files: tuple[Path, ...], show: bool, deep: bool, as_json: bool) -> int:
    """Show what is in segment files.

    Without --json the lines are those of Kafka 0.7's DumpLogSegments; --deep adds the messages inside a compressed
    set, indented. Exit code 5 when a message is not valid or bytes are left over at the end.
    """
    sound = True
    for path in files:
        base = _first_offset(path)
        if not as_json:
            _print(f"Dumping {path}")
            _print(f"Starting offset: {base}")
        end = base
        for entry in entries(path, base):
            end = entry.next_offset
            sound = sound and entry.valid
            _show(entry, show, as_json, path)
            if deep and entry.valid and entry.attributes:
                sound = _show_inside(entry, show, as_json, path) and sound
        if not as_json:
            _print(f"tail of the log is at offset: {end}")
        left = path.stat().st_size - (end - base)
        if left > 0:
            sound = False
            note(f"{path}: {left} bytes from position {end - base} on are no whole message")
    return EXIT_DONE if sound else EXIT_DAMAGED


def entries(path: Path, base: int) -> Iterator[Dumped]:
    """Yield every entry of a file that is whole, going on behind one that is not valid as far as its length is right.

    Source: Kafka 0.7.2 (FileMessageSet's iterator), which ends at a length below 5 or past the end of the file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        position = 0
        while position < size:
            for window in windows(fd, position, size):
                for offset, following, magic, attributes, payload in _segment.entries(
                    window.entries, base + window.position
                ):
                    yield Dumped(offset, following, True, magic, attributes, payload)
                position = window.position + len(window.entries)
            damaged = _damaged_entry(fd, position, size, base)
            if damaged is None:
                return
            yield damaged
            position = damaged.next_offset - base
    finally:
        os.close(fd)


def _damaged_entry(fd: int, position: int, size: int, base: int) -> Dumped | None:
    head = os.pread(fd, _HEADER_BYTES, position)
    length = int.from_bytes(head[:LENGTH_BYTES], "big", signed=True)
    if len(head) < LENGTH_BYTES + _MIN_MESSAGE_BYTES or not _MIN_MESSAGE_BYTES <= length <= size - position - 4:
        return None
    magic = head[4]
    body = os.pread(fd, length - 1, position + LENGTH_BYTES + 1)
    attributes = body[0] if magic == 1 else 0
    stored, payload = (body[1:5], body[5:]) if magic == 1 else (body[:4], body[4:])
    valid = magic < 2 and attributes in CODEC_NAMES and crc32(payload) == int.from_bytes(stored, "big")
    start = base + position
    return Dumped(start, start + LENGTH_BYTES + length, valid, magic, attributes, payload)


def _show_inside(entry: Dumped, show: bool, as_json: bool, path: Path) -> bool:
    """Print the messages of a wrapper; False when it does not open."""
    data = message.Message(entry.payload, entry.magic, entry.attributes).encode()
    try:
        for inner, offset in message.deep(data, entry.offset):
            dumped = Dumped(entry.offset, offset, True, inner.magic, inner.attributes, inner.payload)
            _show(dumped, show, as_json, path, inside=True)
    except (InvalidMessageError, InvalidFetchSizeError, MissingCodecError) as error:
        note(f"{path}: the compressed set at offset {entry.offset} does not open: {error}")
        return False
    return True


def _show(entry: Dumped, show: bool, as_json: bool, path: Path, *, inside: bool = False) -> None:
    if as_json:
        _print(json.dumps(_as_json(entry, show, path, inside)))
        return
    indent = "  " if inside else ""
    codec = CODEC_NAMES.get(entry.attributes & 3, f"unknown({entry.attributes & 3})")
    _print(
        f"{indent}offset: {entry.offset} isvalid: {str(entry.valid).lower()} payloadsize: {len(entry.payload)} "
        f"magic: {entry.magic} compresscodec: {codec}"
    )
    if show:
        _print(f"{indent}payload:\t{entry.payload.decode('utf-8', 'replace')}")


def _as_json(entry: Dumped, show: bool, path: Path, inside: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "file": str(path),
        "offset": entry.offset,
        "next_offset": entry.next_offset,
        "valid": entry.valid,
        "magic": entry.magic,
        "codec": entry.attributes & 3,
        "size": len(entry.payload),
        "inside": inside,
    }
    if show:
        try:
            fields["payload"], fields["base64"] = entry.payload.decode(), False
        except UnicodeDecodeError:
            fields["payload"], fields["base64"] = base64.b64encode(entry.payload).decode(), True
    return fields


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def _first_offset(path: Path) -> int:
    base = parse_segment_name(path.name)
    return 0 if base is None else base
