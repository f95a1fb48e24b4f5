"""When a session without a server is given up."""

from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.coordination import outage
from fastlog.coordination.outage import Outage


def test_after_two_of_its_time_outs_to_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from the last answer of a server; the next session has as long again."""
    now = [50.0]
    monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: now[0]))
    session: Any = SimpleNamespace(timeout=0.5, is_connected=False)
    found = Outage()
    for _ in range(2):
        for seconds, is_for_good in ((0.0, False), (0.75, False), (0.25, True)):
            now[0] += seconds
            assert found.is_for_good(session) is is_for_good
    assert not found.is_for_good(session)
    session.is_connected = True
    now[0] += 1.0
    assert not found.is_for_good(session)
    session.is_connected = False
    now[0] += 1.0
    assert not found.is_for_good(session)
