"""How ``scripts/test`` hands tests out to its processes."""

from __future__ import annotations

from functools import cache

from xdist.scheduler import LoadFileScheduling

from tests.harness.broker import ROOT


@cache
def shares_the_session(file: str) -> bool:
    """Whether tests of a file, named from the checkout's root, take the Spark session that their process has."""
    return "spark: SparkSession" in (ROOT / file).read_text()


class ByFileAndSession(LoadFileScheduling):
    """By file, and all files that share a Spark session to one process: each more would start one, and a Java is slow
    until it has run everything once, which costs as much as several files of tests."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "spark" if shares_the_session(file) else file
