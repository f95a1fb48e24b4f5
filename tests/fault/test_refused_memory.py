"""A processor that is refused memory closes the connection or answers later; all others are served as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.programs import run_program
from tests.harness import memory_shim
from tests.harness.sanitizer import IS_SANITIZED

LEAST = {"at start": 6, "at work": 8}
"""So many places ask for memory, at least: connections, answers, runs, parts and jobs; tables, queues and buffers."""


@pytest.mark.slow
@pytest.mark.skipif(IS_SANITIZED, reason="the sanitizer has an allocator of its own")
def test_each_place_that_asks_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = memory_shim.build(tmp_path)
    (tmp_path / "log").mkdir()
    monkeypatch.setenv("LD_PRELOAD", memory_shim.preloaded(library))
    told = run_program("tests.fault.refused_memory_program", 200, directory=str(tmp_path / "log"))
    assert told["violations"] == []
    for when, count in LEAST.items():
        assert len(told[when]) >= count, told[when]
