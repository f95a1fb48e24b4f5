"""The demo of the pipeline keeps its promise on a small log, and its checks notice what is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from fastlog.spark.jobs.loader import Loader
from scripts import demo_spark, demo_spark_ask
from scripts.demo_spark_ask import Answers
from scripts.demo_text import CheckFailed
from tests.harness.broker import wait_until
from tests.harness.lake import run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = (
    b'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 100 "-" "x"',
    b'10.0.0.1 - - [17/May/2015:10:59:59 +0200] "GET /b?q=1 HTTP/1.1" 404 - "-" "x"',
    b'10.0.0.2 - - [17/May/2015:08:00:00 +0000] "GET /b HTTP/1.1" 500 7 "-" "x"',
    b'10.0.0.2 - - [yesterday] "GET /a HTTP/1.1" 500 3 "-" "\xff"',
    b"no line of an access log",
)
HOUR = 397_736  # 2015-05-17 08:00 UTC


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_passes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it in the session that is there, so the load is cut off instead of killed."""
    monkeypatch.setattr(demo_spark, "BATCHES", 3)
    monkeypatch.setattr(demo_spark, "KILL_AT", 2)
    log = tmp_path / "access.log"
    log.write_bytes(b"\n".join([*demo_spark.made_up(), *LINES]))
    said: list[str] = []
    here = demo_spark.Spark(lambda name, given: run_job(name, *given), cut_off_load, demo_spark_ask.by_spark)
    demo_spark.run(log, 1, tmp_path, said.append, here)
    steps = [line.split()[0] for line in said if not line.startswith(("/", "10.", "2015"))]
    begun, ended = ["text", "published", "killed", "loaded", "checked"], ["answered", "audited"]
    assert steps == [*begun, "page", "hour", "client", *ended]
    assert f"{demo_spark.MADE_UP_LINES + len(LINES):,} rows: none is missing" in said[4]


class CutOff(BaseException):
    """Nothing of the job takes it for an error that may pass."""


def cut_off_load(given: Sequence[str]) -> int:
    """The load, up to where the demo's own kills it."""
    said: list[str] = []

    def say(_: Loader, text: str) -> None:
        said.append(text)
        if len(demo_spark.BATCH.findall("\n".join(said))) == demo_spark.KILL_AT:
            raise CutOff

    with pytest.MonkeyPatch.context() as patch, pytest.raises(CutOff):
        patch.setattr(Loader, "_say", say)
        run_job("load", *given)
    return 1


def test_a_job_is_killed_with_all_that_it_started() -> None:
    """Also what is in a group of its own, as Spark's workers are."""
    starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE) as job:
        family = psutil.Process(job.pid)
        wait_until("it has started another", lambda: bool(family.children()), 30)
        (other,) = family.children()
        assert demo_spark.kill_all(job) == 2
        assert job.returncode == -signal.SIGKILL
    wait_until("the other one is gone", lambda: not other.is_running(), 30)


def test_python_answers_as_one_reads_the_lines() -> None:
    """Hours are those of UTC, sizes that are not told count nothing, what is no line of a log has empty columns."""
    found = demo_spark_ask.by_python(LINES)
    assert found.pages == {"/a": 2, "/b?q=1": 1, "/b": 1, "": 1}
    assert found.errors == {HOUR: 2, None: 1}
    assert found.sizes == {"10.0.0.1": 100, "10.0.0.2": 10, "": 0}
    assert demo_spark_ask.decode(demo_spark_ask.encode(found)) == found


def test_rows_and_answers_that_are_wrong_are_noticed() -> None:
    """A row too few, one too many, another one; an answer that is missing, new or different."""
    sent = Counter({b"a": 2, b"b": 1})
    assert demo_spark.check_rows(Counter(sent), sent) == 3
    for wrong in ({b"a": 1, b"b": 1}, {b"a": 3, b"b": 1}, {b"a": 2, b"c": 1}, {}):
        with pytest.raises(CheckFailed, match="rows are missing"):
            demo_spark.check_rows(Counter(wrong), sent)
    right = demo_spark_ask.by_python(LINES)
    demo_spark.check_answers(right, right)
    for errors in ({}, {**right.errors, 5: 1}, {**right.errors, HOUR: 3}):
        with pytest.raises(CheckFailed, match="errors"):
            demo_spark.check_answers(right._replace(errors=errors), right)


def test_a_log_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was asked for, then the one of the tests, then one of this machine, then made up lines."""
    monkeypatch.setattr(demo_spark, "LOGS", (str(tmp_path / "access.log"),))
    monkeypatch.delenv("FASTLOG_TEST_DATA", raising=False)
    made_up = demo_spark.find_log(None)
    answers = demo_spark_ask.by_python(made_up.lines())
    assert sum(answers.pages.values()) == demo_spark.MADE_UP_LINES and "" not in answers.pages
    assert sum(answers.errors.values()) > 0 and None not in answers.errors
    data = tmp_path / "data"
    data.mkdir()
    given = tmp_path / "given"
    for path, text in ((tmp_path / "access.log", b"1"), (data / "apache_access.log", b"2"), (given, b"3")):
        path.write_bytes(text)
    assert list(demo_spark.find_log(None).lines()) == [b"1"]
    monkeypatch.setenv("FASTLOG_TEST_DATA", str(data))
    assert list(demo_spark.find_log(None).lines()) == [b"2"]
    assert list(demo_spark.find_log(given).lines()) == [b"3"]


def test_answers_are_shown_beside_each_other() -> None:
    """The most first; a number that differs is to be seen before the check fails."""
    right = demo_spark_ask.by_python(LINES)
    shown = list(demo_spark.tables(right, Answers({**right.pages, "/a": 9}, right.errors, right.sizes)))
    assert [line.split() for line in shown[:2]] == [["page", "hits,", "Spark", "Python"], ["/a", "2", "9"]]
    assert any(line.split() == ["2015-05-17", "08:00", "2", "2"] for line in shown)
