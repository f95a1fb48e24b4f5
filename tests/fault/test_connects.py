"""Connections that come and go at once, as health checks make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.connects import connects


@pytest.mark.slow
def test_connections_that_go_at_once_disturb_nobody(tmp_path: Path) -> None:
    outcome = connects(1000, 5, tmp_path)
    assert outcome.runs == 1000
    assert outcome.violations == []
