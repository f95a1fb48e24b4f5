"""Messages with newlines in them, and with any other byte: in and out as they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog._segment import payloads
from fastlog.tools import lines as lines_module
from fastlog.tools.lines import LENGTH, InputBatches, LineBatches, PrefixedBatches
from fastlog.tools.report import CommandError
from tests.harness.command_line import Commands
from tests.harness.fake_broker import FakeBroker

ANY = [b"", b"\n", b"two\nlines", b"\x00\xff\r\n", bytes(range(256)) * 10, b"", b"last"]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


@pytest.fixture
def run(broker: FakeBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("FASTLOG_BROKERS", broker.address)
    return Commands(capfd)


def prefixed(messages: list[bytes]) -> bytes:
    return b"".join(LENGTH.pack(len(message)) + message for message in messages)


def read(batches: InputBatches, path: Path) -> list[tuple[int, bytes]]:
    """Each message with its number."""
    found: list[tuple[int, bytes]] = []
    with path.open("rb") as file:
        for batch in batches.read(file.fileno(), "f", lambda fd: None):
            assert batches.size == sum(map(len, batch))
            found += enumerate(batch, start=batches.first_line)
    assert batches.given_bytes == path.stat().st_size
    return found


@pytest.mark.parametrize("delimiter", [b"\n", b"\0", b"\n\n", b"aa", b"aba", b"abc"])
def test_delimiters_are_found_as_by_splitting_the_whole(
    delimiter: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However reads cut them, and where one may begin inside another; what is too long is left out and numbered."""
    source = random.Random(7)
    path = tmp_path / "f"
    for most in (3, 1000):
        for _ in range(40):
            text = b"".join(source.choice([b"a", b"b", b"c", b"\n", b"\0", delimiter]) for _ in range(60))
            path.write_bytes(text)
            expected = text.split(delimiter)
            expected = expected if expected[-1] else expected[:-1]
            numbered = [item for item in enumerate(expected, start=1) if len(item[1]) <= most]
            for read_bytes, batch_bytes in ((1, 1), (2, 5), (7, 10), (1000, 1000)):
                monkeypatch.setattr(lines_module, "_READ_BYTES", read_bytes)
                batches = LineBatches(batch_bytes, most, delimiter)
                assert read(batches, path) == numbered, text
                assert batches.too_long == len(expected) - len(numbered)


@pytest.mark.parametrize(("most", "too_long"), [(3000, 0), (9, 1), (4, 2)])
def test_lengths(most: int, too_long: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(prefixed(ANY))
    for read_bytes, batch_bytes in ((1, 1), (3, 10), (1000, 1000), (1 << 20, 1 << 20)):
        monkeypatch.setattr(lines_module, "_READ_BYTES", read_bytes)
        batches = PrefixedBatches(batch_bytes, most)
        assert read(batches, path) == [item for item in enumerate(ANY, start=1) if len(item[1]) <= most]
        assert batches.too_long == too_long
    if too_long == 2:
        assert batches.first_too_long == "f, message 3"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (prefixed([b"one"]) + b"\0\0", "message 2 cannot be read"),
        (prefixed([b"one"]) + LENGTH.pack(5) + b"four", "8 bytes are left"),
        (LENGTH.pack(5000) + b"x" * 4000, "message 1 cannot be read"),
        (LENGTH.pack(5000) + b"x" * 4000, "1000 bytes are missing"),
        (b"\xffext", "4284840052 bytes"),
    ],
)
def test_what_is_no_length(data: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(data)
    with pytest.raises(CommandError, match=says):
        read(PrefixedBatches(100, 1000), path)


def test_any_bytes_are_stored(broker: FakeBroker, run: Commands, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(prefixed(ANY))
    ran = run("produce", "--topic", "t", "--length-prefixed", str(path))
    assert ran.code == 0 and "produced 7 messages" in ran.err
    assert payloads(broker.logs["t", 0]) == ANY


def test_the_bytes_on_stdout(broker: FakeBroker, tmp_path: Path) -> None:
    """To the byte, through processes as a user has them; read again they are the same messages."""
    from tests.harness.command_process import run as run_process

    where = {"FASTLOG_BROKERS": broker.address}
    code, _, err = run_process("produce", "--topic", "t", "--length-prefixed", data=prefixed(ANY), environment=where)
    assert code == 0, err
    code, out, err = run_process("consume", "--topic", "t", "--exit-at-end", "--length-prefixed", environment=where)
    assert (code, out) == (0, prefixed(ANY)) and f"7 messages, {sum(map(len, ANY))} bytes" in err
    code, out, _ = run_process("tail", "t", "--max-messages", "7", "--length-prefixed", environment=where)
    assert (code, out) == (0, prefixed(ANY))
    code, out, err = run_process("consume", "--topic", "t", "--exit-at-end", "--delimiter", r"\0\r", environment=where)
    assert (code, out) == (0, b"".join(message + b"\0\r" for message in ANY))
    assert f"7 messages, {sum(map(len, ANY))} bytes" in err


def test_a_delimiter(broker: FakeBroker, run: Commands, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a\nb\0c\0\0d")
    assert run("produce", "--topic", "t", "--delimiter", r"\0", str(path)).code == 0
    assert payloads(broker.logs["t", 0]) == [b"a\nb", b"c", b"", b"d"]
    ran = run("consume", "--topic", "t", "--exit-at-end", "--delimiter", "--\\n")
    assert ran.out == "a\nb--\nc--\n--\nd--\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "--delimiter", "x", "--length-prefixed"),
        ("produce", "--delimiter", ""),
        ("consume", "--delimiter", "x", "--json"),
        ("consume", "--length-prefixed", "--format", "offsets"),
    ],
)
def test_what_contradicts(arguments: tuple[str, ...], run: Commands) -> None:
    ran = run(*arguments, "--topic", "t")
    assert ran.code == 2 and "--" in ran.refused()[0]


def test_damage_is_named_after_what_was_sent(broker: FakeBroker, run: Commands, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(prefixed(ANY) + b"\0\0\0\x09")
    ran = run("produce", "--topic", "t", "--length-prefixed", str(path))
    assert ran.code == 5 and f"{path}, message 8 cannot be read" in ran.refused()[0]
    assert payloads(broker.logs["t", 0]) == ANY
