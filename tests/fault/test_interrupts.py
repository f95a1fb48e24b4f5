"""R-1, R-29: signals at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.interrupts import interrupts, signal_close


@pytest.mark.slow
def test_ctrl_c_ends_each_blocking_call(tmp_path: Path) -> None:
    """KeyboardInterrupt soon after SIGINT, however early it comes; what was interrupted can be closed, others go on."""
    outcome = interrupts(3, 1, tmp_path)
    assert outcome.runs >= 3 * 12
    assert outcome.violations == []


@pytest.mark.slow
def test_close_in_a_signal_handler(tmp_path: Path) -> None:
    """It ends in time, what the handler interrupted says ClosedError, and what was delivered is in the log once."""
    outcome = signal_close(25, 29, tmp_path)
    assert outcome.runs == 25
    assert outcome.violations == []
