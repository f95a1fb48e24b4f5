"""Disk calls that fail, one at a time, in the processes of a real broker: a dose, and the shim that makes them fail."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import fastlog
from tests.fault.every_call import cases, dose, ends
from tests.fault.every_call_rules import Case, errors, judge
from tests.harness import disk_shim

_FILE_CALLS = re.compile(
    r"[fl]?(open|creat|close|p?(read|write)v?|stat|statx|truncate|(data)?sync|sync_file_range|allocate|unlink|remove"
    r"|rename|link|symlink|readlink|mkdir|rmdir|sendfile|copy_file_range|advise|chmod|chown|utimens?|flock|statfs|statvfs"
    r"|opendir|readdir|closedir|mmap|msync|access)(at)?2?(64)?(v2)?|posix_f(advise|allocate)(64)?"
)


@pytest.mark.slow
def test_one_broker_meets_the_first_and_the_last_call_of_each_kind(tmp_path: Path) -> None:
    """Processor, flusher and keeper: nothing is lost or invented, what fails is noticed, and it goes on."""
    told = dose(tmp_path, "scenes")
    assert told["violations"] == []
    assert told["runs"] - len(told["missed"]) >= 45


@pytest.mark.slow
def test_starts_meet_the_first_and_the_last_call_of_each_kind(tmp_path: Path) -> None:
    """The supervisor, which recovers and writes the clean marker; and the keeper's last side files."""
    told = dose(tmp_path, "starts")
    assert told["violations"] == []
    assert told["runs"] - len(told["missed"]) >= 50


def test_no_file_call_of_the_compiled_code_passes_by_the_shim(tmp_path: Path) -> None:
    """What the extensions ask the C library for is among what the shim stands before."""

    def symbols(path: Path, *options: str) -> set[str]:
        listed = subprocess.run(["nm", "-D", *options, str(path)], capture_output=True, text=True, check=True).stdout
        return {line.split()[-1].partition("@")[0] for line in listed.splitlines()}

    there = symbols(disk_shim.build(tmp_path), "--defined-only")
    modules = list(Path(fastlog.__file__).parent.rglob("*.so"))
    asked = {name for path in modules for name in symbols(path, "--undefined-only") if _FILE_CALLS.fullmatch(name)}
    assert {"pwrite64", "fdatasync", "rename"} <= asked
    assert asked <= there


def test_every_call_of_a_rehearsal_is_a_case() -> None:
    """With each error it may have; and of each kind the ends come first."""
    rehearsal = [{"counts": [["flusher", "fdatasync", 3]]}, {"counts": [["flusher", "fdatasync", 1]]}]
    every = cases(rehearsal)
    assert len(every) == 4 * 3 == len(set(every))
    assert sorted(ends(every)) == sorted(
        Case(act, "flusher", "fdatasync", 1, error) for act in (0, 1) for error in ("EIO", "ENOSPC", "EINTR")
    )
    assert list(errors("pwrite")) == ["EIO", "ENOSPC", "EINTR", "short", "torn"]
    assert list(errors("stat")) == ["EIO"]


@pytest.mark.parametrize(
    ("case", "noticed", "wrong"),
    [
        (("flusher", "fdatasync", "first-0/00000000000000000000.kafka", "EIO"), True, False),
        (("flusher", "fdatasync", "first-0/00000000000000000000.kafka", "EIO"), False, True),
        (("flusher", "fdatasync", "first-0/00000000000000000000.kafka", "EINTR"), False, True),
        (("processor", "pwrite", "first-0/00000000000000000000.kafka", "EINTR"), True, True),
        (("processor", "pwrite", "first-0/00000000000000000000.kafka", "short"), False, False),
        (("flusher", "fadvise", "first-0/00000000000000000000.kafka", "EIO"), False, False),
    ],
)
def test_what_fails_is_noticed_and_what_is_only_cut_short_is_not(
    case: tuple[str, str, str, str], noticed: bool, wrong: bool
) -> None:
    """Nothing is said of a call that is simply gone on with."""
    assert bool(judge(*case, noticed)) == wrong
