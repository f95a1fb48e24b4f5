"""An access log through every kind of producer and reader while processors are killed, and the check that shows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fastlog import codecs
from fastlog.errors import FastlogError
from fastlog.message import encode_set
from scripts import demo_clients_check
from scripts.demo_clients_work import Ack, Digest, Digester
from scripts.demo_text import CheckFailed
from tests.fault.access_log import all_clients
from tests.harness.broker import ROOT, wait_until


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_clients_while_processors_are_killed(tmp_path: Path) -> None:
    """No line is lost, none is stored twice uncounted, keys stay in order, and five ways of reading find the same."""
    outcome = all_clients(1, 1, tmp_path)
    assert outcome.runs == 1
    assert outcome.violations == []


@pytest.mark.slow
def test_a_demo_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM in the middle: no process and no file of it stays behind."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "scripts.demo_clients", "--seconds", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with demo:
        family = psutil.Process(demo.pid)
        wait_until("the readers were started", lambda: len(family.children(recursive=True)) >= 10, 30)
        started = family.children(recursive=True)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 128 + signal.SIGTERM
    wait_until("every process is gone", lambda: not any(one.is_running() for one in started))
    assert list(tmp_path.iterdir()) == []


# --- the check ---

LOG = [b"10.0.0.%d GET /%d" % (number % 3, number) for number in range(12)]


class Case:
    """What a partition holds after three requests of four lines each, of which tries may have been stored before."""

    def __init__(self, codec: int = 0) -> None:
        self.sets = [encode_set(LOG[start : start + 4], codec) for start in (0, 4, 8)]
        self.pieces = [(0, True), (1, True), (2, True)]
        self.expected = list(LOG)

    def check(self) -> int:
        """The duplicates it finds."""
        stored = b""
        acks = []
        for number, is_acknowledged in self.pieces:
            end = len(stored) + len(self.sets[number])
            if is_acknowledged:
                acks.append(Ack(0, len(stored), end, 4))
            stored += self.sets[number]
        return demo_clients_check.check_partition(
            stored, demo_clients_check.stored_messages(stored), acks, self.expected
        )


@pytest.fixture(params=[codecs.NONE, codecs.GZIP, codecs.SNAPPY], ids=["plain", "gzip", "snappy"])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def test_retries_are_counted(case: Case) -> None:
    """Tries without an answer, also several of them and each of some requests, before those that were acknowledged."""
    assert case.check() == 0
    case.pieces = [(0, True), (1, False), (2, False), (1, False), (1, True), (2, False), (2, True)]
    assert case.check() == 16


def test_equal_requests_may_follow_each_other() -> None:
    """A try can be taken apart in several ways when requests are equal; one that fits is enough."""
    case = Case()
    case.sets[1] = case.sets[0]
    case.expected[4:8] = LOG[:4]
    case.pieces = [(0, False), (1, False), (2, False), (0, False), (0, True), (1, True), (2, True)]
    assert case.check() == 16


def lose(case: Case) -> None:
    del case.pieces[1]


def lose_the_last(case: Case) -> None:
    del case.pieces[2]


def swap(case: Case) -> None:
    case.pieces.reverse()


def double_after(case: Case) -> None:
    case.pieces.insert(2, (0, False))


def double_at_the_end(case: Case) -> None:
    case.pieces.append((2, False))


def double_acknowledged(case: Case) -> None:
    case.pieces.insert(1, (0, True))


def skip_in_a_try(case: Case) -> None:
    case.pieces[1:1] = [(2, False)]


def change(case: Case) -> None:
    case.sets[1] = case.sets[1].replace(b"/5", b"/6") if b"/5" in case.sets[1] else encode_set(LOG[3:7], codecs.GZIP)


def send_more(case: Case) -> None:
    case.expected.append(b"10.0.0.1 GET /")


@pytest.mark.parametrize(
    "break_it",
    [
        lose,
        lose_the_last,
        swap,
        double_after,
        double_at_the_end,
        double_acknowledged,
        skip_in_a_try,
        change,
        send_more,
    ],
)
def test_every_broken_promise_is_noticed(case: Case, break_it: Callable[[Case], None]) -> None:
    """A line that is lost, changed, out of order, or stored twice without a retry behind it fails the check."""
    break_it(case)
    with pytest.raises((CheckFailed, FastlogError), match=r"lines|hold|sent again|behind|checksum") as failure:
        case.check()
    assert "\n" not in str(failure.value)


def digest_of(messages: list[tuple[bytes, int, int]], step: int, *, positions: bool = True) -> Digest:
    digester = Digester()
    for start in range(0, len(messages), step):
        payloads, offsets, next_offsets = zip(*messages[start : start + step], strict=True)
        given = (offsets, next_offsets) if positions else (None, None)
        digester.add(b"".join(payloads), map(len, payloads), *given)
    return digester.digest()


def test_readings_are_equal_however_they_came_and_only_then() -> None:
    """Runs of any length give one digest; another payload, border between payloads, or offset gives another."""
    stored = demo_clients_check.stored_messages(encode_set(LOG[:6]) + encode_set(LOG[6:], codecs.GZIP))
    messages = [(each.payload, each.offset, each.next_offset) for each in stored]
    expected = demo_clients_check.digests(stored, [0, 7, 12])

    def is_equal(found: list[tuple[bytes, int, int]], **options: bool) -> bool:
        return demo_clients_check.is_equal(digest_of(found, 5, **options), expected)

    assert is_equal(messages)
    assert is_equal(messages, positions=False)
    assert is_equal(messages[:7])
    assert is_equal([])
    payload, offset, next_offset = messages[5]
    for changed in (
        (payload[:-1] + b"!", offset, next_offset),
        (payload, offset + 1, next_offset),
        (payload, offset, next_offset + 1),
    ):
        assert not is_equal([*messages[:5], changed, *messages[6:]])
    moved = [(messages[4][0] + payload[:1], *messages[4][1:]), (payload[1:], offset, next_offset)]
    assert not is_equal([*messages[:4], *moved, *messages[6:]])
    assert not is_equal([*messages[:4], *moved, *messages[6:]], positions=False)
