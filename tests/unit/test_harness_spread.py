"""Tests that share a Spark session are handed to one process, and the others by file."""

from __future__ import annotations

from tests.harness.spread import ByFileAndSession


def test_what_is_handed_out_together() -> None:
    """Whether a file takes the session its own source tells."""
    spread = ByFileAndSession.__new__(ByFileAndSession)  # which would look for the processes
    units = {
        "tests/integration/test_spark_late.py::test_each_message_is_counted_or_late[sliding]": "spark",
        "tests/integration/test_demo_spark.py::test_the_demo_passes": "spark",
        "tests/integration/test_spark_submit.py::test_a_load_by_spark_submit": "tests/integration/test_spark_submit.py",
        "tests/unit/test_crc.py::test_values[a::b]": "tests/unit/test_crc.py",
    }
    assert {name: spread._split_scope(name) for name in units} == units
