"""What is missing for Spark is one clear line."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from fastlog.errors import ConfigError, MissingDependencyError
from fastlog.java import find_spark_java
from fastlog.spark import capabilities, environment
from fastlog.spark.environment import use_this_python
from fastlog.spark.jobs.audit import audit_command
from fastlog.spark.jobs.counts import counts_command
from fastlog.spark.jobs.join import join_command
from fastlog.spark.jobs.load import load_command
from fastlog.spark.jobs.parameters import TablePlace


@pytest.mark.parametrize("name", ["pyspark.sql.datasource", "pyarrow"])
def test_a_package_that_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [item for item in sys.modules if item == name or item.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'fastlog-broker\[spark\]'") as caught:
        environment.session()
    assert "\n" not in str(caught.value)


def test_a_spark_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 lacks what a stream is written with; 4.1 has that, and limits no batches."""
    importlib.import_module("pyspark.sql.datasource")  # of a newer one, which needs what is taken away
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    environment.check_packages()
    assert not capabilities.limits_batches()
    capabilities.check_java_version(21)
    monkeypatch.setattr(environment, "_has_session", lambda: False)
    monkeypatch.setattr(environment, "use_spark_java", lambda: 24)
    with pytest.raises(
        MissingDependencyError, match=r"Spark 4\.1 needs Java 17 or 21, and the one that is found is 24"
    ):
        environment.session()
    monkeypatch.delattr("pyspark.sql.datasource.DataSourceStreamArrowWriter")
    with pytest.raises(MissingDependencyError, match=r"pyspark 4\.1 or newer"):
        environment.check_packages()


@pytest.mark.java
@pytest.mark.spark
def test_a_server_of_spark_connect_is_given_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No master, no setting of a Java and none here; who hands out tasks cannot use one, and says so at once."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere:1")
    monkeypatch.setattr(environment, "use_spark_java", lambda: pytest.fail("no Java is needed here"))
    own = {"spark.sql.x": "1"}
    assert environment._prepared(None, own) == {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.x": "1",
    }
    with pytest.raises(ConfigError, match="SPARK_REMOTE names a server of Spark Connect: unset it, or give no master"):
        environment.session(master="local[2]")
    with pytest.raises(ConfigError, match="unset it, and say where Spark runs"):
        environment.context()
    done = CliRunner().invoke(load_command, ["--topic", "t", "--table", "/nowhere", "--brokers", "127.0.0.1:1"])
    assert isinstance(done.exception, ConfigError) and "unset it" in str(done.exception)


@pytest.mark.parametrize(
    ("job", "arguments"),
    [
        (audit_command, ["--events", "sent"]),
        (audit_command, ["--events", "sent", "--table", "/nowhere"]),
        (join_command, ["--with", "other", "--on", "key", "--within", "5s", "--table", "/nowhere"]),
        (counts_command, ["--window", "5s"]),
    ],
    ids=["audit", "audit to a table", "join", "counts"],
)
def test_a_job_that_is_well_described_comes_as_far_as_spark(
    job: click.Command, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere:1")
    done = CliRunner().invoke(job, ["--topic", "t", "--brokers", "127.0.0.1:1", *arguments])
    assert isinstance(done.exception, ConfigError), done.output
    assert "with --master, or with spark-submit" in str(done.exception)


@pytest.mark.parametrize(
    ("remote", "port", "is_looked_for"),
    [(None, None, True), ("local[2]", None, True), ("sc://nowhere:1", None, False), (None, "1", False)],
)
def test_a_java_is_looked_for_where_spark_starts_one(
    remote: str | None, port: str | None, is_looked_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SPARK_REMOTE", remote), ("PYSPARK_GATEWAY_PORT", port)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    looked: list[bool] = []
    sessions: list[object] = [None]
    spark = SimpleNamespace(SparkSession=SimpleNamespace(getActiveSession=lambda: sessions[0]))
    monkeypatch.setitem(sys.modules, "pyspark.sql", spark)
    monkeypatch.setattr(environment, "check_packages", lambda: None)
    monkeypatch.setattr(environment, "use_this_python", lambda: None)
    monkeypatch.setattr(environment, "use_spark_java", lambda: looked.append(True) or 17)
    environment._prepared(None, {})
    assert looked == [True] * is_looked_for
    sessions[0] = object()
    environment._prepared(None, {})
    assert looked == [True] * is_looked_for, "it is looked for once, not for each session that is asked for"


def test_workers_run_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user has chosen another one."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/mine")
    use_this_python()
    assert (os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"]) == (sys.executable, "/mine")


def java_options_of_a_start(monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``context`` tells Spark's starter about Java, which is not started."""
    from pyspark import SparkContext

    seen: list[str] = []
    monkeypatch.setattr(SparkContext, "getOrCreate", lambda conf: seen.append(os.environ["SPARK_SUBMIT_OPTS"]))
    environment.context()
    (options,) = seen
    return options


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "own",
    ["-XX:+UseG1GC", "-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:-TieredCompilation", "-XX:TieredStopAtLevel=4"],
)
def test_java_takes_the_options_of_a_user_behind_those_of_a_start(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they come from ``spark.driver.extraJavaOptions``; of two that contradict each other Java may refuse both."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    given = java_options_of_a_start(monkeypatch)
    assert "SPARK_SUBMIT_OPTS" not in os.environ, "processes that are started later are not meant"
    java = find_spark_java().path
    done = subprocess.run([java, *given.split(), own, "-version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.slow
def test_how_a_user_lets_java_run_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+UseG1GC")
    assert java_options_of_a_start(monkeypatch) == os.environ["SPARK_SUBMIT_OPTS"] == "-XX:+UseG1GC"


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.slow
def test_why_the_source_cannot_be_used_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would say that there is no such source, if the module that it looks for could not be imported."""
    monkeypatch.delitem(sys.modules, "pyspark_fastlog", raising=False)
    monkeypatch.setitem(sys.modules, "fastlog.spark.source", None)
    source = importlib.import_module("pyspark_fastlog").DefaultSource
    monkeypatch.delitem(sys.modules, "pyspark_fastlog")
    assert source.name() == "fastlog"
    with pytest.raises(ImportError, match=r"needs pyspark 4\.1 or newer, and fastlog with its extensions built: "):
        source({})


def test_a_thread_without_a_session_is_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark looks for a source's name in the session of the thread."""
    from pyspark.sql import SparkSession

    made: list[object] = []
    session = SimpleNamespace(createDataFrame=lambda rows, schema: made.append((rows, schema)))
    for active, expected in ((None, [([], "nothing int")]), (session, [])):
        made.clear()
        monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda active=active: active))
        environment.activate(session)  # type: ignore[arg-type]
        assert made == expected


@pytest.mark.parametrize("place", ["ftp://host/t", "s3:/b/t"])
def test_a_place_that_no_table_can_have_is_a_mistake_in_the_command(place: str) -> None:
    with pytest.raises(click.BadParameter, match=place):
        TablePlace().convert(place, None, None)


@pytest.mark.parametrize(
    ("master", "own", "variables", "expected"),
    [
        (None, {}, {}, "local[*,4]"),
        (None, {"spark.master": "spark://h:1"}, {}, "spark://h:1"),
        ("local[2]", {}, {}, "local[2]"),
        (None, {}, {"PYSPARK_SUBMIT_ARGS": "--conf spark.master=yarn pyspark-shell"}, None),
        (None, {}, {"PYSPARK_GATEWAY_PORT": "1"}, None),
    ],
)
def test_where_tasks_run(
    monkeypatch: pytest.MonkeyPatch,
    master: str | None,
    own: dict[str, str],
    variables: dict[str, str],
    expected: str | None,
) -> None:
    """Here, in all processors and with tries, unless a user or ``spark-submit`` says otherwise."""
    monkeypatch.setattr(environment, "use_spark_java", lambda: 17)
    for name in ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment._prepared(master, own).get("spark.master") == expected
