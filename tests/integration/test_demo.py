"""The demo keeps its promise on a small file, its check notices every way to break it, and it leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from scripts import demo_run, demo_text
from tests.harness.broker import ROOT, wait_until
from tests.harness.data import generated_lines

Lines = list[bytes]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A thousand access-log lines, the last one without a newline."""
    path = tmp_path / "access.log"
    path.write_bytes(b"\n".join(generated_lines(1000)))
    return path


def numbered(count: int) -> list[Lines]:
    """What each of three partitions was given."""
    lines = [b"%d\ttext of line %d\n" % (number, number) for number in range(count)]
    return [lines[partition::3] for partition in range(3)]


def interleaved(parts: list[Lines]) -> Lines:
    """A way in which it may come back: one partition's lines in runs, between those of the others."""
    return [line for run in range(0, 12, 4) for part in parts for line in part[run : run + 4]]


def test_what_came_back_whole_passes() -> None:
    """Partitions may take turns in any way."""
    parts = numbered(30)
    assert demo_text.check(interleaved(parts), parts) == 30
    assert demo_text.check([*parts[2], *parts[0], *parts[1]], parts) == 30


def drop(lines: Lines, at: int) -> Lines:
    return lines[:at] + lines[at + 1 :]


def double(lines: Lines, at: int) -> Lines:
    return lines[: at + 1] + lines[at:]


def swap(lines: Lines, at: int) -> Lines:
    """Exchange a line with the next one of its partition."""
    changed = list(lines)
    number = int(lines[at].split(b"\t")[0])
    next_number = number + 3 if number < 27 else number - 3
    other = lines.index(b"%d\ttext of line %d\n" % (next_number, next_number))
    changed[at], changed[other] = changed[other], changed[at]
    return changed


def garble(lines: Lines, at: int) -> Lines:
    return [*lines[:at], lines[at].replace(b"text", b"test"), *lines[at + 1 :]]


def cut(lines: Lines, at: int) -> Lines:
    return [*lines[:at], lines[at][:-1], *lines[at + 1 :]]


def foreign(lines: Lines, at: int) -> Lines:
    return [*lines[:at], b"nobody published this\n", *lines[at:]]


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (drop, "is lost"),
        (double, "twice|was complete"),
        (swap, "out of order"),
        (garble, "changed"),
        (cut, "changed"),
        (foreign, "nobody published"),
    ],
)
def test_every_broken_promise_is_noticed(break_it: Callable[[Lines, int], Lines], complaint: str) -> None:
    """A line that is lost, doubled, exchanged or changed fails the check wherever it stands."""
    parts = numbered(30)
    whole = interleaved(parts)
    for at in range(len(whole)):
        with pytest.raises(demo_text.CheckFailed, match=complaint) as failure:
            demo_text.check(break_it(whole, at), parts)
        assert "\n" not in str(failure.value)


def test_a_line_after_the_end_and_nothing_at_all_are_noticed() -> None:
    """The last line of a partition may neither come twice nor stay away."""
    parts = numbered(30)
    whole = interleaved(parts)
    for broken in (double(whole, len(whole) - 1), drop(whole, len(whole) - 1), []):
        with pytest.raises(demo_text.CheckFailed):
            demo_text.check(broken, parts)


def test_text_is_repeated_as_a_whole(text_file: Path, tmp_path: Path) -> None:
    """Every line of the file is published at least once, with its number, in the partition of that number."""
    found = demo_text.write_numbered(demo_text.find_source(text_file), 2500, tmp_path)
    assert (found.lines, found.passes) == (3000, 3)
    expected = text_file.read_bytes().split(b"\n") * 3
    for partition, path in enumerate(found.files):
        lines = path.read_bytes().splitlines(keepends=True)
        numbers = range(partition, 3000, demo_text.PARTITIONS)
        assert lines == [b"%d\t%s\n" % (number, expected[number]) for number in numbers]


def test_without_a_file_and_without_logs_there_is_text_too(tmp_path: Path) -> None:
    """A machine without readable logs gets generated lines."""
    source = demo_text.find_source(None, tmp_path)
    assert source.name == "generated access-log lines"
    assert len(set(source.lines())) == demo_text.GENERATED_LINES


def test_a_file_without_lines_is_refused(tmp_path: Path) -> None:
    """An empty or absent file is one clear line, not a broker that waits."""
    empty = tmp_path / "empty.log"
    empty.touch()
    with pytest.raises(demo_text.DemoFailed, match="has no lines"):
        demo_text.write_numbered(demo_text.find_source(empty), 10, tmp_path)
    with pytest.raises(demo_text.DemoFailed, match="is not a file"):
        demo_text.find_source(tmp_path / "absent.log")


@pytest.mark.slow
def test_the_demo_passes(text_file: Path, tmp_path: Path) -> None:
    """All of it on few lines: a processor that serves the reader is killed half-way, and everything comes back."""
    work = tmp_path / "work"
    work.mkdir()
    said: list[str] = []
    demo_run.run(text_file, 20_000, work, said.append)
    steps = [line.split()[0] for line in said]
    assert steps == ["text", "broker", "published", "consumed", "killed", "checked", "stopped", "promised"]
    assert "20,000 lines came back exactly once and in order" in said[5]
    assert "kill -9 after 5" in said[4]


@pytest.mark.slow
def test_a_demo_that_is_interrupted_leaves_nothing(text_file: Path, tmp_path: Path) -> None:
    """SIGTERM in the middle: no process and no file of it stays behind."""
    work = tmp_path / "work"
    work.mkdir()
    demo = subprocess.Popen(
        [sys.executable, "-m", "scripts.demo_run", str(text_file), "--lines", "400000"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(work)},
    )
    with demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith(b"broker"):
                break
        started = psutil.Process(demo.pid).children(recursive=True)
        assert len(started) >= demo_run.PROCESSORS
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 128 + signal.SIGTERM
    wait_until("every process is gone", lambda: not any(one.is_running() for one in started))
    assert list(work.iterdir()) == []
