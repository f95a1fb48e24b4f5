"""What the machine gives without fastlog: each probe does all that it claims, and leaves nothing."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import psutil
import pytest

from perf.figures.results import Result, load
from perf.machine import probes
from perf.machine.__main__ import main
from perf.report.page import render

KIB = 1 << 10
MIB = 1 << 20


def measured(tmp_path: Path, *arguments: str, code: int = 0) -> Result:
    """The result of two rounds; nothing is left in the scratch directory."""
    out, scratch = tmp_path / "result.json", tmp_path / "scratch"
    shared = ["--rounds", "2", "--scratch", str(scratch), "--out", str(out)]
    assert main([*shared, *arguments], standalone_mode=False) == code
    assert list(scratch.iterdir()) == []
    return load(out)


def test_a_file_is_read_by_one_and_by_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each time all of it, dropped from memory before."""
    monkeypatch.setattr(os, "O_DIRECT", 0)  # a temporary directory in memory knows none
    read: Counter[int] = Counter()
    dropped: list[int] = []
    preadv, fadvise = os.preadv, os.posix_fadvise

    def counted(file: int, buffers: list[memoryview], offset: int) -> int:
        count = preadv(file, buffers, offset)
        read[offset] += count
        return count

    def dropping(file: int, offset: int, size: int, advice: int) -> None:
        dropped.append(advice)
        fadvise(file, offset, size, advice)

    monkeypatch.setattr(os, "preadv", counted)
    monkeypatch.setattr(os, "posix_fadvise", dropping)
    result = measured(tmp_path, "disk-read", "--bytes", "3MiB")
    names = [series.scenario for series in result.series]
    assert names == [
        *("disk-read-cached-1", "disk-read-cached-4", "disk-read-direct-1", "disk-read-direct-2", "disk-read-direct-8")
    ]
    runs = [run for series in result.series for run in series.runs]
    assert len(runs) == 2 * len(names)
    assert read == dict.fromkeys((0, MIB, 2 * MIB), MIB * len(runs))
    assert dropped == [os.POSIX_FADV_DONTNEED] * len(runs)
    for run in runs:
        assert run.value == pytest.approx(3 * MIB / run.detail["seconds"] / 1e6)
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)
    assert "The machine without fastlog" in render([result])


def test_a_file_that_is_too_short_is_no_figure(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(MIB + 1))
    with pytest.raises(OSError, match="a short read at 1048576"):
        probes._read(path, 2 * MIB, 2, False)


def test_what_a_file_system_cannot_do_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are measured, and the exit code tells of it."""
    opened = os.open
    monkeypatch.setattr(os, "O_DIRECT", 1 << 30)

    def refusing(path: str, flags: int, *rest: int, **named: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refusing)
    result = measured(tmp_path, "disk-read", "--bytes", "1MiB", code=1)
    for series in result.series:
        if "direct" in series.scenario:
            assert (series.runs, series.absent) == ((), "[Errno 22] Invalid argument")
        else:
            assert len(series.runs) == 2
    assert len(result.notes) == 3


def test_small_writes_fill_their_files_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes in each way, one piece behind the other in every file."""
    written: dict[tuple[int, int], list[int]] = {}
    pwrite = os.pwrite

    def counted(file: int, data: bytes, offset: int) -> int:
        written.setdefault((os.fstat(file).st_ino, len(data)), []).append(offset)
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", counted)
    monkeypatch.setattr(probes, "WRITES", ((1, 16 * KIB), (4, KIB)))
    with probes.small_writes(tmp_path, 64 * KIB) as found:
        runs = [probe.measure() for probe in found]
    assert sorted((size, offsets) for (_, size), offsets in written.items()) == [
        *[(KIB, list(range(0, 16 * KIB, KIB)))] * 4,
        (16 * KIB, list(range(0, 64 * KIB, 16 * KIB))),
    ]
    for probe, run in zip(found, runs, strict=True):
        piece = probe.parameters["piece_bytes"]
        assert run.value == pytest.approx(piece / run.detail["write_us"])  # bytes a microsecond are MB/s
        assert run.detail["of_10500_bytes_us"] == pytest.approx(run.detail["write_us"] * 10_500 / piece)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_every_piece_is_flushed_beside_busy_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops run meanwhile and are gone afterwards; a wait includes the flush."""
    loops: list[int] = []
    before = len(psutil.Process().children())
    fdatasync = os.fdatasync

    def counted(file: int) -> None:
        loops.append(len(psutil.Process().children()) - before)
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", counted)
    options = ["--rate", "1MB", "--interval-ms", "5", "--seconds", "0.05", "--busy", "0", "--busy", "2"]
    result = measured(tmp_path, "flushes", *options)
    assert [series.scenario for series in result.series] == ["flush-lag-beside-0", "flush-lag-beside-2"]
    assert set(loops) == {0, 2}
    runs = [run for series in result.series for run in series.runs]
    assert len(loops) == sum(run.detail["flushes"] for run in runs)
    for run in runs:
        assert run.detail["count"] == 10
        assert 0 < run.detail["p50_ms"] <= run.value <= run.detail["max_ms"]
    assert len(psutil.Process().children()) == before


def test_sleeps_are_late_and_never_early(tmp_path: Path) -> None:
    (series,) = measured(tmp_path, "sleeps", "--count", "20").series
    assert (series.scenario, series.unit, series.better) == ("sleep-late", "ms", "lower")
    for run in series.runs:
        assert run.detail["count"] == 20
        assert 0 <= run.detail["p50_ms"] <= run.detail["p99_ms"] == run.value
