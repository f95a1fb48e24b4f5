"""``fastlog dump-log``: 0.7's lines, what is inside wrappers, and damage by exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastlog.tools.dump_log import dump_log_command
from fastlog.tools.report import CommandError
from tests.harness import logs, raw_format


def dump(*arguments: str | Path) -> int:
    code = dump_log_command.main([str(argument) for argument in arguments], standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_the_lines_of_0_7(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Source: Kafka 0.7.2 (DumpLogSegments): these words in this order, wrappers not expanded."""
    snappy = raw_format.message_set([b"in", b"side"], codec=raw_format.SNAPPY)
    data = raw_format.entry(b"hello", magic=0) + raw_format.entry("gr\u00fcn".encode()) + raw_format.entry(b"")
    path = logs.segment_path(tmp_path, 216)
    path.write_bytes(data + snappy)
    assert dump("--no-print", path) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Dumping {path}",
        "Starting offset: 216",
        "offset: 216 isvalid: true payloadsize: 5 magic: 0 compresscodec: NoCompressionCodec",
        "offset: 230 isvalid: true payloadsize: 5 magic: 1 compresscodec: NoCompressionCodec",
        "offset: 245 isvalid: true payloadsize: 0 magic: 1 compresscodec: NoCompressionCodec",
        f"offset: 255 isvalid: true payloadsize: {len(snappy) - 10} magic: 1 compresscodec: SnappyCompressionCodec",
        f"tail of the log is at offset: {216 + len(data) + len(snappy)}",
    ]
    assert dump(path) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[3] == "payload:\thello"
    assert out[5] == "payload:\tgr\u00fcn"


def test_deep_shows_what_is_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each inner message is indented under its wrapper; the offsets are those a consumer would see."""
    path = logs.segment_path(tmp_path, 0)
    path.write_bytes(raw_format.message_set([b"one", b"two"], magic=0, codec=raw_format.GZIP))
    assert dump("--deep", path) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if line.startswith("  ")] == [
        "  offset: 0 isvalid: true payloadsize: 3 magic: 0 compresscodec: NoCompressionCodec",
        "  payload:\tone",
        "  offset: 0 isvalid: true payloadsize: 3 magic: 0 compresscodec: NoCompressionCodec",
        "  payload:\ttwo",
    ]
    assert dump("--deep", "--json", path) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    end = path.stat().st_size
    assert [(row["inside"], row["next_offset"]) for row in rows] == [(False, end), (True, 0), (True, end)]


def test_damage_does_not_end_the_listing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong checksum, codec or magic is shown as not valid and passed over by its length; exit code 5."""
    entries = [raw_format.entry(b"message %d" % n) for n in range(5)]
    entries[1] = entries[1][:-1] + b"?"
    entries[2] = entries[2][:5] + b"\x03" + entries[2][6:]
    entries[3] = entries[3][:4] + b"\x09" + entries[3][5:]
    path = logs.segment_path(tmp_path, 0)
    path.write_bytes(b"".join(entries) + b"\0\0\0")
    assert dump("--json", path) == 5
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [row["valid"] for row in rows] == [True, False, False, False, True]
    assert [row["offset"] for row in rows] == [19 * n for n in range(5)]
    assert rows[4]["payload"] == "message 4"
    assert "3 bytes from position 95 on" in captured.err
    assert dump("--no-print", path) == 5
    assert "magic: 9" in capsys.readouterr().out


def test_a_wrapper_that_does_not_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = logs.segment_path(tmp_path, 0)
    path.write_bytes(raw_format.entry(b"not gzip", attributes=raw_format.GZIP) + raw_format.entry(b"next"))
    assert dump(path) == 0
    assert dump("--deep", path) == 5
    captured = capsys.readouterr()
    assert "offset 0 does not open" in captured.err
    assert "payload:\tnext" in captured.out


def test_bytes_that_are_no_text_are_base64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = logs.segment_path(tmp_path, 0)
    path.write_bytes(raw_format.entry(b"\xff\x00") + raw_format.entry(b"text"))
    assert dump("--json", path) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["payload"], row["base64"]) for row in rows] == [("/wA=", True), ("text", False)]
    assert dump("--json", "--no-print", path) == 0
    assert "payload" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0\0\x04abcd", b"\xff\xff\xff\xff\0\0\0\0\0\0", b"\x7f\xff\xff\xff\0\0\0\0\0\0"]
)
def test_files_without_a_message(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A length that cannot be right ends the listing, as in 0.7."""
    path = logs.segment_path(tmp_path, 7)
    path.write_bytes(data)
    assert dump(path) == (5 if data else 0)
    assert capsys.readouterr().out.splitlines()[1:] == ["Starting offset: 7", "tail of the log is at offset: 7"]


def test_a_directory_stands_for_its_segments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, and for nothing else in it; also by a link. One without a segment is refused."""
    folder = tmp_path / "logs-0"
    folder.mkdir()
    with pytest.raises(CommandError, match="no segment"):
        dump(folder)
    first = raw_format.entry(b"first")
    logs.segment_path(folder, 0).write_bytes(first)
    logs.segment_path(folder, len(first)).write_bytes(raw_format.entry(b"second"))
    (folder / "00000000000000000000.kafka.7.truncated").write_bytes(b"rest")
    (tmp_path / "link").symlink_to(folder)
    (folder / "link.kafka").symlink_to(logs.segment_path(folder, 0))
    for path in (folder, tmp_path / "link"):
        assert dump("--json", path) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["offset"], row["payload"]) for row in rows] == [(0, "first"), (len(first), "second")]
    assert dump("--json", folder / "link.kafka") == 0


def test_a_side_file_of_a_later_version_is_named(tmp_path: Path) -> None:
    """Nobody guesses what its segments hold."""
    logs.write_side_file(tmp_path, 0, log_format="later")
    path = logs.segment_path(tmp_path, 0)
    path.write_bytes(raw_format.entry(b"x"))
    with pytest.raises(CommandError, match="names the log format 'later'"):
        dump(path)
