"""``FASTLOG_FAULTS``: which rules are taken, when they come true, and what they do."""

from __future__ import annotations

import errno
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from fastlog.errors import ConfigError
from fastlog.log import _files
from tests.harness.checkout import ROOT
from tests.harness.shared_log import DONE, FAILED, SharedLog, in_child, message
from tests.harness.stopped import stands_still, stopped_at

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(12)
POINTS = sorted(name for name in _files.OPS if "." in name)


def failures(rules: str, role: str = "processor-0", calls: int = 6) -> list[int]:
    """Which of some calls of a point fail under the rules."""
    _files.arm(rules, role)
    failed = []
    for number in range(1, calls + 1):
        try:
            _files.reach("marker.write")
        except OSError as error:
            assert error.errno == errno.EIO
            failed.append(number)
    return failed


@pytest.mark.parametrize(
    ("numbers", "failed"),
    [
        ("", [1, 2, 3, 4, 5, 6]),
        ("@1", [1]),
        ("@3", [3]),
        ("@2-4", [2, 3, 4]),
        ("@4-", [4, 5, 6]),
        ("@1-6", [1, 2, 3, 4, 5, 6]),
        ("@7", []),
    ],
)
def test_a_rule_comes_true_at_its_numbers(numbers: str, failed: list[int]) -> None:
    assert failures(f"marker.write{numbers}=EIO") == failed


def test_several_rules_stand_beside_each_other() -> None:
    assert failures(" marker.write@1=EIO , side_file.write@2=EIO,, marker.write@4-5=EIO ") == [1, 4, 5]


@pytest.mark.parametrize(
    ("role", "taken"),
    [
        ("", True),
        ("processor:", True),
        ("processor-0:", True),
        ("processor-1:", False),
        ("processor-00:", False),
        ("proc:", False),
        ("flusher:", False),
    ],
)
def test_a_rule_is_for_its_role(role: str, taken: bool) -> None:
    assert failures(f"{role}marker.write@1=EIO") == ([1] if taken else [])


def test_arming_again_begins_anew() -> None:
    assert failures("marker.write@2=EIO") == [2]
    assert failures("marker.write@2=EIO") == [2]
    assert failures("") == []


@pytest.mark.parametrize(
    "rule",
    [
        "append.never=stop",
        "append=stop",
        "=stop",
        "pwrite@1",
        "pwrite@1=",
        "pwrite@1=EWHAT",
        "pwrite@1=EIO=EIO",
        "pwrite@x=EIO",
        "pwrite@1-y=EIO",
        "pwrite@1=slow",
        "pwrite@1=slow:soon",
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(rule: str) -> None:
    """A point that nobody reaches would make a test pass for nothing."""
    with pytest.raises(ConfigError, match=f"{re.escape(repr(rule))}.*append.after_lock.*slow:ms, stop, kill"):
        _files.arm(f"marker.write@1=EIO,{rule}", "test")


def test_there_is_room_for_32_rules() -> None:
    _files.arm(",".join(["pread@1=EIO"] * 32), "test")
    with pytest.raises(ConfigError, match="at most 32"):
        _files.arm(",".join(["pread@1=EIO"] * 33), "test")
    _files.arm(",".join(["flusher:pread@1=EIO"] * 40), "test")  # those of others take none


def test_every_point_is_in_the_code_once_and_every_number_has_a_name() -> None:
    """By the name that Python code reaches it with, or by the number of the table."""
    table = (ROOT / "fastlog/log/_files.pyx").read_text()
    paths = [path for ending in ("py", "pyx", "pxd") for path in (ROOT / "fastlog").rglob(f"*.{ending}")]
    code = "\n".join(path.read_text() for path in paths if path.stem != "_files")
    numbers = dict(re.findall(r'"(\w+\.\w+)": (AT_\w+)', table))
    assert sorted(numbers) == POINTS
    found = Counter(re.findall(r"failpoint\((AT_\w+)\)", code))
    found.update(numbers.get(name, name) for name in re.findall(r'(?:reach\(|, )"(\w+\.\w+)"\)', code))
    found["AT_MID_WRITE"] -= 1  # with a rule for it, where half is written; without, behind the whole
    assert {name: found[number] for name, number in numbers.items()} == dict.fromkeys(POINTS, 1)
    assert sorted(_files.OPS.values()) == list(range(len(_files.OPS)))


def test_a_process_stops_at_its_point_and_goes_on(tmp_path: Path) -> None:
    """In the middle of a write: the others see what it has published, and it finishes what it began."""
    log = SharedLog(tmp_path)
    assert log.append(ENTRY) == DONE
    with stopped_at("append.mid_write", lambda: log.append(message(40))) as process:
        assert stands_still(process.pid)
        assert (len(log.stored()), log.view().log_end) == (32, 12)
        assert process.go_on() == DONE
    assert log.stored() == ENTRY + message(40)


def test_a_process_stops_at_each_of_its_points(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    with stopped_at("append.after_lock@2,append.after_write@2", lambda: [log.append(ENTRY) for _ in "abc"]) as process:
        assert (len(log.stored()), log.view().log_end) == (12, 12)
        process.go_on_to_next()
        assert (len(log.stored()), log.view().log_end) == (24, 12)
        assert process.go_on() == [DONE] * 3
    assert log.stored() == ENTRY * 3


def test_a_stopped_process_can_be_killed(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    with stopped_at("append.after_write", lambda: log.append(ENTRY)) as process:
        process.kill()
        assert log.append(message(20)) == DONE
    assert log.stored() == message(20)


def test_the_other_actions(tmp_path: Path) -> None:
    """An error, a call that is cut short, one that takes its time, and the end of the process."""
    log = SharedLog(tmp_path)
    _files.arm("pwrite@1=EDQUOT", "test")
    assert log.try_append(ENTRY)[::3] == (FAILED, errno.EDQUOT)
    _files.arm("pwrite@1=short,pwrite@2=slow:70,pwrite@3=EIO", "test")
    begun = time.monotonic()
    assert log.append(ENTRY) == DONE
    assert time.monotonic() - begun >= 0.07
    assert log.append(ENTRY) == FAILED
    assert in_child(lambda: log.append(ENTRY), "append.after_lock@1=kill") == -9
    assert log.stored() == ENTRY
