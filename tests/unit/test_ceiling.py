"""The C programs that measure the ceiling do the work they claim: all of it, and no figure without it."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.errors import ConfigError
from fastlog.tools.fsck import fsck_command
from perf.ceiling import loadgen, pair, programs, run
from tests.harness import raw_format
from tests.harness.raw_client import RawClient
from tests.harness.raw_wire import frame, metadata_body, own_frame, place, produce_frame

LATE = {"log.default.flush.interval.ms": 600_000, "flush.min.interval.ms": 0}
"""A policy by which nothing is flushed unless somebody waits."""
SET = raw_format.message_set([b"one", b"", b"three" * 1000])


@pytest.fixture
def ceiling(tmp_path: Path) -> Iterator[pair.Ceiling]:
    with pair.Ceiling(tmp_path, LATE) as running:
        yield running


def test_the_log_it_writes_is_a_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fsck finds every message, and another reader the right lengths and checksums; the rest of a batch counts too."""
    with pair.Ceiling(tmp_path) as ceiling:
        figures = ceiling.produce(1234, batch=50, size=77)
    assert figures["messages"] == 1234
    assert figures["rate"] == pytest.approx(1234 / figures["seconds"], rel=0.01)
    assert figures["seconds"] <= figures["visible_seconds"]
    entries = raw_format.entries(ceiling.log.read_bytes())
    assert len(entries) == 1234
    assert len({entry.payload for entry in entries}) > 1000, "not one message again and again"
    assert fsck_command.main([str(tmp_path)], standalone_mode=False) == 0
    assert f"1 segment(s), {1234 * 87} bytes, 1234 messages" in capsys.readouterr().out


@pytest.mark.parametrize("batch", [1, 7, 5000])
@pytest.mark.parametrize("encode", ["each", "once"])
def test_every_way_to_send_arrives_whole(ceiling: pair.Ceiling, batch: int, encode: str) -> None:
    """Single messages, small sets that are moved together, frames larger than the receive buffer."""
    options = {"port": ceiling.port, "topic": pair.TOPIC, "batch": batch, "size": 200, "encode": encode}
    assert loadgen.run("produce", {**options, "messages": 12_345})["messages"] == 12_345
    assert len(raw_format.entries(ceiling.log.read_bytes())) == 12_345


@pytest.mark.parametrize("fetch_size", [300, 1000, 1 << 20])
def test_the_reader_counts_every_message(ceiling: pair.Ceiling, fetch_size: int) -> None:
    """Also where nearly every answer ends inside a message."""
    ceiling.produce(2000)
    figures = ceiling.consume(fetch_size)
    assert figures["messages"] == 2000
    assert figures["bytes"] == 2000 * 210


def test_the_reader_finds_a_damaged_message(ceiling: pair.Ceiling) -> None:
    """A byte that changed on the disk ends the run instead of giving a figure."""
    ceiling.produce(2000)
    with ceiling.log.open("r+b") as file:
        file.seek(1500 * 210 + 100)
        file.write(b"\0")
    with pytest.raises(RuntimeError, match="wrong checksum"):
        ceiling.consume(10_000)


REFUSED = {
    "checksum": (produce_frame(pair.TOPIC, 0, raw_format.entry(b"two", crc=1)), "wrong checksum"),
    "attributes": (produce_frame(pair.TOPIC, 0, raw_format.message_set([b"two"], codec=1)), "compressed"),
    "magic": (produce_frame(pair.TOPIC, 0, raw_format.entry(b"twotwo", magic=0)), "magic"),
    "cut short": (produce_frame(pair.TOPIC, 0, SET[:-1]), "wrong size"),
    "size 0": (produce_frame(pair.TOPIC, 0, bytes(12)), "wrong size"),
    "set size": (frame(0, place(pair.TOPIC, 0) + struct.pack(">i", 99) + SET), "another size"),
    "topic": (produce_frame("another", 0, SET), "another topic"),
    "partition": (produce_frame(pair.TOPIC, 1, SET), "another topic or partition"),
    "empty frame": (struct.pack(">i", 0), "without a request"),
    "frame size": (struct.pack(">i", -1), "too large"),
    "request": (frame(9, place(pair.TOPIC, 0)), "not known"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_request_is_refused(ceiling: pair.Ceiling, name: str) -> None:
    """What came before it is kept, nothing of it or behind it is, and the connection ends."""
    bad, reason = REFUSED[name]
    good = produce_frame(pair.TOPIC, 0, SET)
    with RawClient(ceiling.port) as client:
        client.send_raw(good + bad + good)
        assert client.is_closed()
    with RawClient(ceiling.port) as client:
        assert client.log_end(pair.TOPIC, 0) == len(SET)
    assert ceiling.log.read_bytes() == SET
    assert reason in ceiling.stop()


def test_requests_split_anywhere(ceiling: pair.Ceiling) -> None:
    """However the bytes arrive, the same log."""
    small = raw_format.message_set([b"a", b"bc"])
    data = produce_frame(pair.TOPIC, 0, small) + produce_frame(pair.TOPIC, 0, SET)
    with RawClient(ceiling.port) as client:
        for cut in range(60):
            client.send_raw(data[:cut])
            client.send_raw(data[cut:])
        assert client.log_end(pair.TOPIC, 0) == 60 * len(small + SET)
    assert ceiling.log.read_bytes() == 60 * (small + SET)


def test_readers_see_what_was_flushed(ceiling: pair.Ceiling) -> None:
    """Appended is not visible, and a reader that waits at the end brings on the flush."""
    with RawClient(ceiling.port) as client:
        client.produce(pair.TOPIC, 0, SET)
        assert client.log_end(pair.TOPIC, 0) == len(SET)
        assert client.offsets(pair.TOPIC, 0) == [0]
        assert client.fetch(pair.TOPIC, 0, 0).body == b""
        client.wait_visible(pair.TOPIC, 0, len(SET))
        assert client.fetch_ok(pair.TOPIC, 0, 0) == SET
        assert client.fetch(pair.TOPIC, 0, len(SET) + 1).error == 1
        assert client.fetch(pair.TOPIC, 0, -1).error == 1


@pytest.mark.parametrize("limit", ["messages", "bytes"])
def test_appends_wait_for_the_flush(tmp_path: Path, limit: str) -> None:
    """However many requests arrive at once, never more is unflushed than M messages or B bytes."""
    messages = raw_format.message_set([b"x" * 90] * 3)
    policy = {**LATE, "log.flush.interval": 10} if limit == "messages" else {**LATE, "flush.max.unflushed.bytes": 1000}
    ask = own_frame(1002, metadata_body([pair.TOPIC]))
    with pair.Ceiling(tmp_path, policy) as ceiling, RawClient(ceiling.port) as client:
        client.send_raw((produce_frame(pair.TOPIC, 0, messages) * 4 + ask) * 50)
        for count in range(1, 51):
            *_, visible, end = struct.unpack(">qqq", client.recv_frame()[-24:])
            assert end == count * 4 * len(messages)
            # none is left when the flush that the limit called for is through by now
            assert 0 <= end - visible <= (10 * 100 if limit == "messages" else 1000)


def test_one_request_may_be_larger_than_the_limit(tmp_path: Path) -> None:
    """A partition that is flushed takes it; else it would wait for ever."""
    with pair.Ceiling(tmp_path, {**LATE, "log.flush.interval": 1}) as ceiling:
        assert ceiling.produce(200, batch=50)["messages"] == 200


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """The functions remove what they wrote, and also what a run that failed wrote."""
    assert pair.produce(500, directory=tmp_path)["messages"] == 500
    assert pair.consume(500, 4000, directory=tmp_path)["messages"] == 500
    with pytest.raises(RuntimeError, match="no whole message"):
        pair.consume(500, 100, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_says_why_it_does_not_start(tmp_path: Path) -> None:
    """In one line: the directory is missing, or a setting is none of fastlog's."""
    with pytest.raises(RuntimeError, match="No such file or directory"), pair.Ceiling(tmp_path / "gone"):
        pass
    with pytest.raises(ConfigError, match=r"log\.flush\.intervall"):
        pair.Ceiling(tmp_path, {"log.flush.intervall": 1})


def test_the_flush_policy_is_the_brokers() -> None:
    """fastlog's settings by name, its defaults for the rest."""
    policy = {"log.flush.interval": 500, "log.preallocate": "false", "log.early.writeback.bytes": "1MiB"}
    options = iter(pair.flush_arguments(policy))
    given = dict(zip(options, options, strict=True))
    assert given["--flush-messages"] == "500"
    assert given["--preallocate"] == "0"
    assert given["--writeback"] == str(1 << 20)
    assert given["--flush-ms"] == "1000"


def test_a_program_is_compiled_once_for_each_version(tmp_path: Path) -> None:
    """Another source, header or flag makes another program; the same ones do not."""
    source, header, place = tmp_path / "p.c", tmp_path / "h.h", tmp_path / "build"
    source.write_text('#include "h.h"\nint main(void) { return VALUE; }\n')
    header.write_text("#define VALUE 3\n")
    program = programs.build(source, directory=place)
    assert subprocess.run([program]).returncode == 3
    made = program.stat().st_ino
    assert programs.build(source, directory=place).stat().st_ino == made
    header.write_text("#define VALUE 4\n")
    assert subprocess.run([programs.build(source, directory=place)]).returncode == 4
    assert sorted(path.name for path in place.iterdir()) == ["p", "p.sha256"]


def test_what_cannot_be_compiled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's words, or that there is none."""
    source = tmp_path / "p.c"
    source.write_text("int main(void) { return none; }\n")
    with pytest.raises(programs.CannotBuild, match="none"):
        programs.build(source, directory=tmp_path)
    assert list(tmp_path.iterdir()) == [source], "no half-made program"
    monkeypatch.setenv("CC", "no-such-compiler -x")
    with pytest.raises(programs.CannotBuild, match="no-such-compiler"):
        programs.build(source, directory=tmp_path)


def test_quick_leaves_what_was_asked_for() -> None:
    """It shortens what nobody gave a length for, in whatever order the options come."""
    for words in (["--messages", "7", "--quick"], ["--quick", "--messages", "7"]):
        found = run.main.make_context("ceiling", words).params
        assert (found["messages"], found["repetitions"], found["backlog_bytes"]) == (7, 2, 210_000_000)
    assert run.main.make_context("ceiling", []).params["repetitions"] == 5
