"""Who may read what the broker writes: the modes of its files, the warning about older ones, and local readers."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fastlog.consumer.simple import SimpleConsumer
from fastlog.log import access
from tests.harness import raw_client as raw
from tests.harness.broker import ROOT, Broker

MODES = {"owner": (0o700, 0o600), "group": (0o750, 0o640), "all": (0o755, 0o644)}
NOBODY = 65534
OPEN = "log directory open to other users"


def modes_below(directory: Path) -> dict[Path, int]:
    """The mode of a directory and of everything in it that stays."""
    modes = {}
    for path in [directory, *directory.rglob("*")]:
        with suppress(FileNotFoundError):  # a side file that is written has another name soon
            modes[path] = stat.S_IMODE(path.lstat().st_mode)
    return modes


def assert_modes(directory: Path, who: str) -> set[str]:
    """All modes are as promised; the names of the files."""
    expected_directory, expected_file = MODES[who]
    for path, mode in modes_below(directory).items():
        assert mode == (expected_directory if path.is_dir() else expected_file), path
    return {path.name for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(("who", "umask"), [("owner", 0o000), ("group", 0o077), ("all", 0o022)], ids=MODES)
def test_every_file_has_the_mode_that_was_asked_for(
    start_broker: Callable[..., Broker], topic: str, who: str, umask: int
) -> None:
    """Directories, segments, side files, lock, marker, what recovery quarantines, whatever the user's umask."""
    with access.umask(umask):
        broker = start_broker(settings={"log.file.size": 100, **({"log.access": who} if who != "owner" else {})})
    data = broker.log_dirs[0]
    with broker.connect() as client:
        for number in range(6):
            assert client.produce_ack(topic, 0, raw.entry(b"%060d" % number), raw.FLUSHED).error == 0
    assert_modes(data, who)
    assert broker.stop() == 0
    assert ".kafka_cleanshutdown" in assert_modes(data, who)
    newest = max(broker.segments(topic, 0).items())[1]
    with newest.open("ab") as file:
        file.write(raw.entry(b"torn")[:-1])
    with access.umask(umask):
        broker.start()
    assert OPEN not in broker.log_text()
    assert broker.stop() == 0
    names = assert_modes(data, who)
    assert any(".truncated" in name for name in names)
    assert {".lock", ".kafka_cleanshutdown", newest.name} <= names


@pytest.mark.slow
def test_a_directory_that_is_more_open_is_named(start_broker: Callable[..., Broker], topic: str) -> None:
    """The broker starts, says what is open and how to close it, and changes nothing; then it has nothing to say."""
    broker = start_broker()
    data = broker.log_dirs[0]
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, raw.entry(b"a"), raw.FLUSHED).error == 0
    broker.stop()
    data.chmod(0o755)
    broker.partition_directory(topic, 0).chmod(0o750)
    broker.start()
    broker.wait_log(rf"{OPEN} path={data} mode=0755 partitions_as_open=1 log.access=owner: chmod -R go-rwx closes it")
    assert stat.S_IMODE(data.stat().st_mode) == 0o755
    broker.stop()
    data.chmod(0o700)
    broker.start()
    assert OPEN not in broker.log_text()


@pytest.mark.parametrize(
    ("mode", "who", "said"),
    [
        (0o700, "owner", None),
        (0o750, "owner", "chmod -R go-rwx"),
        (0o711, "owner", "chmod -R go-rwx"),
        (0o750, "group", None),
        (0o755, "group", "chmod -R g-w,o-rwx"),
        (0o770, "group", "chmod -R g-w,o-rwx"),
        (0o755, "all", None),
        (0o777, "all", "chmod -R go-w"),
    ],
)
def test_what_counts_as_open(tmp_path: Path, mode: int, who: str, said: str | None) -> None:
    """More than the setting gives, and the command takes away just that."""
    log = tmp_path / "log"
    log.mkdir()
    log.chmod(mode)
    line = access.opened_wider(log, who)
    assert (line is None) == (said is None)
    if line is not None and said is not None:
        assert said in line
        log.chmod(mode & ~access.UMASKS[who])
        assert access.opened_wider(log, who) is None


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
@pytest.mark.parametrize(("who", "source"), [("owner", "socket"), ("all", "read")])
def test_local_reading_follows_the_rights(topic: str, who: str, source: str) -> None:
    """The same user reads the files; another one only when the setting says so, else through the socket."""
    # not below tmp_path, which is closed to others itself
    with tempfile.TemporaryDirectory() as directory, Broker(Path(directory), settings={"log.access": who}) as broker:
        Path(directory).chmod(0o755)
        with broker.connect() as client:
            assert client.produce_ack(topic, 0, raw.entry(b"a"), raw.FLUSHED).error == 0
        for user, expected in ((0, "read"), (NOBODY, source)):
            os.seteuid(user)
            try:
                if not os.access(directory, os.X_OK, effective_ids=True):
                    pytest.skip(f"{directory} is in a directory that is closed to others")
                with SimpleConsumer("127.0.0.1", broker.port, local="auto") as consumer:
                    assert consumer.fetch(topic, 0, 0).payloads() == [b"a"]
                    assert consumer.source_of(topic, 0)[0] == expected
            finally:
                os.seteuid(0)


@pytest.mark.slow
@pytest.mark.parametrize("who", MODES)
def test_a_repair_makes_files_for_the_same_users(tmp_path: Path, who: str) -> None:
    """fsck does not know the setting, and the umask of who runs it may be any: it looks at the directory."""
    data = tmp_path / "data"
    partition = data / "t-0"
    with access.umask(access.UMASKS[who]):
        partition.mkdir(parents=True)
        data.chmod(MODES[who][0])
        segment = partition / f"{0:020}.kafka"
        segment.touch(0o644)
    segment.write_bytes(raw.entry(b"whole") + raw.entry(b"torn")[:-1])
    with access.umask(0):
        done = subprocess.run(
            [sys.executable, "-m", "fastlog", "fsck", "--repair", "--no-progress", str(data)],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert segment.read_bytes() == raw.entry(b"whole"), done
    names = assert_modes(data, who)
    assert any(".truncated" in name for name in names)
