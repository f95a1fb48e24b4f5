"""Records that are deleted from a broker whose processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.delete_records import delete_records


@pytest.mark.slow
def test_what_is_deleted_stays_deleted_and_the_rest_is_there(tmp_path: Path) -> None:
    """With this seed each kind of process dies, the broker as a whole, and the keeper between file and memory."""
    outcome = delete_records(7, 30, tmp_path)
    assert outcome.runs == 7
    assert outcome.violations == []
