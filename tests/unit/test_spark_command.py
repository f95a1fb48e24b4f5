"""What the commands of jobs share: an error of Spark's is one line, and its end is no error of the job."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from click.testing import CliRunner

from fastlog.errors import ConfigError
from fastlog.spark import environment
from fastlog.spark.jobs import command, counts, load
from fastlog.spark.jobs.command import LazySpark, told

IN_A_TASK = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 3.0 (TID 3) (10.0.0.1 executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/fastlog/spark/row_files.py", line 138, in write
    self._writer.write_table(table, row_group_size=table.num_rows)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
OSError: [Errno 28] No space left on device
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
"""
IN_JAVA = """\
An error occurred while calling o563.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 9.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2887)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\t... 28 more
Caused by: java.io.IOException: No space left on device
\t... 40 more
"""
IN_A_BATCH = f"""\
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function. SQLSTATE: 39000
Traceback (most recent call last):
  File "/pyspark/sql/utils.py", line 164, in call
py4j.protocol.Py4JJavaError: {IN_JAVA}"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (IN_A_TASK, "OSError: [Errno 28] No space left on device"),
        (IN_A_TASK.replace("OSError", "fastlog.errors.ConfigError"), "[Errno 28] No space left on device"),
        (IN_JAVA, "No space left on device"),
        (
            IN_JAVA.partition("Caused")[0],
            "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in",
        ),
        (IN_A_BATCH, "No space left on device"),
        (
            "[PATH_NOT_FOUND] Path does not exist: /x. SQLSTATE: 42K03;\n'Relation",
            "[PATH_NOT_FOUND] Path does not exist",
        ),
        ("An error occurred while calling o1.x", "An error occurred while calling o1.x"),
        ("x" * 1000, "x" * 500),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_is_told_and_not_where_it_passed_by(text: str, line: str) -> None:
    found = told(RuntimeError(text))
    assert found.startswith(line)
    assert "\n" not in found
    assert len(found) <= 500


class Gone:
    """A session, and its context, whose Java has been ended."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.levels: list[str] = []
        self._settings = settings

    def getConf(self) -> Gone:
        return self

    def contains(self, name: str) -> bool:
        return name in self._settings

    @property
    def sparkContext(self) -> Gone:
        return self

    def setLogLevel(self, level: str) -> None:
        self.levels.append(level)

    def stop(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    @property
    def _jsc(self) -> Gone:
        return self

    def sc(self) -> Gone:
        return self

    def isStopped(self) -> bool:
        return True


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.parametrize(("settings", "levels"), [({}, ["FATAL"]), ({"spark.log.level": "INFO"}, [])])
def test_a_signal_that_ended_java_as_well(
    settings: dict[str, str], levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ends as it would have. What Spark logs is for the user to say."""
    gone = Gone(settings)
    monkeypatch.setattr(environment, "session", lambda *_, **__: gone)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)  # of other tests of this process
    with LazySpark("load", None, {}) as spark:
        assert not spark.has_ended
        assert spark.session is gone  # type: ignore[comparison-overlap]
        assert spark.has_ended
    assert gone.levels == levels


def test_the_zookeeper_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with every other command; beside brokers that are named it would be one of the two that counts."""
    seen: list[dict[str, str]] = []

    def load_seen(*_: object, source_options: dict[str, str], **__: object) -> None:
        seen.append(source_options)
        raise ConfigError("that is enough")

    monkeypatch.setattr(load, "load", load_seen)
    monkeypatch.setenv("FASTLOG_BROKERS", "h:1")
    given = ["--topic", "t", "--table", "/t", "--zookeeper", "zk:2181/x"]
    CliRunner().invoke(load.load_command, [*given, "-o", "envelope=true"])
    assert seen == [{"zookeeper": "zk:2181/x", "envelope": "true"}]
    for more in (["--brokers", "h:1"], ["-o", "zk.connect=other:2181"], ["-o", "Brokers=h:1"]):
        done = CliRunner().invoke(load.load_command, [*given, *more])
        assert done.exit_code == 2 and "a second time" in done.output
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["subscribe", "startingOffsets", "ENDINGOFFSETS", "failOnDataLoss", "columns"])
def test_what_a_job_decides_is_no_option_of_its_source(name: str) -> None:
    """One of two would be passed over, whichever it is; the same in any case of letters."""
    with pytest.raises(ConfigError, match=f"--option {name}: the job sets it itself"):
        command.source_of("h:1", {"envelope": "true", name: "x"}, ["t"])
    assert command.source_of("h:1", {"envelope": "true"}, ["t", "u"]).items() >= {
        ("envelope", "true"), ("subscribe", "t,u"), ("brokers", "h:1"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--window 60 --every 5", "--every needs a --table"),
        ("", "give one of --window and --session"),
        ("--window 60 --session 60", "give one of --window and --session"),
        ("--session 60 --slide 10", "--slide is for --window"),
        ("--window 60 --slide 61", "--slide is for --window, and not longer"),
        ("--window 60 --slide 0", "--slide"),
    ],
)
def test_counts_that_cannot_be(given: str, said: str) -> None:
    """Wrong usage is told before a Spark is started, and nothing that was given is passed over."""
    done = CliRunner().invoke(counts.counts_command, ["--brokers", "h:1", "--topic", "t", *given.split()])
    assert done.exit_code == 2
    assert said in done.output


def test_an_option_that_is_wrong_names_where_options_stand(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a job, not those of a broker."""
    with pytest.raises(SystemExit) as left:
        load.main(["--topic", "t", "--table", "/nowhere", "-o", "envelop=true"])
    assert left.value.code == 2
    text = capsys.readouterr().err
    assert "fastlog-broker" not in text
    assert "do:  python -m fastlog.spark.jobs.load --help shows its options, docs/spark.md those of the source" in text
