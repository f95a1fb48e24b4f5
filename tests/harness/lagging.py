"""A pytest plugin that finds what counts on another thread having gone on.

``scripts/test -p tests.harness.lagging FILE``: what a test waits for it sees at the first moment, and the other threads
lag behind: they pause now and then, wherever one of fastlog's functions begins or ends. With ``FASTLOG_LAG_WHO=test``
the test's own thread lags in place of them. What fails by that fails without it, too, once in many runs on a busy
machine. ``FASTLOG_LAG_SEED`` chooses other pauses, ``FASTLOG_LAG_MS`` their length. The files of tests of interrupts
use the same hook of the interpreter for themselves, and are skipped.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import defaultdict
from types import FrameType
from typing import Any

import pytest

from tests.harness.checkout import ROOT

SHARE = 0.04
"""Of the calls and returns, those at which a thread pauses that has not just done so."""
PAUSE_SECONDS = float(os.environ.get("FASTLOG_LAG_MS", "3")) / 1000
LEAST_BETWEEN_SECONDS = 0.02
LONGEST_POLL_SECONDS = 0.005
"""A sleep of a test that is no longer than this is one between two looks."""
SWITCH_SECONDS = 1e-4

_OURS = f"{ROOT}/fastlog/", f"{ROOT}/tests/"
_sleep = time.sleep
_random = random.Random(int(os.environ.get("FASTLOG_LAG_SEED", "1")))
_pauses_at: defaultdict[int, float] = defaultdict(float)


def pytest_configure() -> None:
    """Begin, for the length of the process."""
    sys.setswitchinterval(SWITCH_SECONDS)
    if os.environ.get("FASTLOG_LAG_WHO") == "test":
        sys.setprofile(_lag)
        return
    time.sleep = _sleep_unless_a_test_polls
    threading.setprofile(_lag)


def pytest_unconfigure() -> None:
    """The interpreter's own end is not looked at."""
    sys.setprofile(None)
    threading.setprofile(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what uses the hook itself."""
    for item in items:
        if "_interrupts.py" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="needs the interpreter's hook for itself"))


def _sleep_unless_a_test_polls(seconds: float) -> None:
    is_poll = seconds <= LONGEST_POLL_SECONDS and "/tests/" in sys._getframe(1).f_code.co_filename
    _sleep(0 if is_poll else seconds)


def _lag(frame: FrameType, event: str, _: Any) -> None:
    if event not in ("call", "return") or _random.random() >= SHARE:
        return
    if not frame.f_code.co_filename.startswith(_OURS):
        return
    now, thread = time.monotonic(), threading.get_ident()
    if now >= _pauses_at[thread]:
        _pauses_at[thread] = now + LEAST_BETWEEN_SECONDS
        _sleep(PAUSE_SECONDS)
