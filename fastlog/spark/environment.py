"""What a Spark session needs of the machine: pyspark, a Java, and workers that run the right interpreter."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastlog.errors import ConfigError, MissingDependencyError
from fastlog.installation import how_to_install
from fastlog.java import find_spark_java, use_spark_java
from fastlog.spark.capabilities import check_java_version

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_SOURCE = "pyspark_fastlog"
_JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
_TIME_ZONE = "spark.sql.session.timeZone"
NOT_REMOTE = (
    "SPARK_REMOTE: tasks are handed out here, which a server of Spark Connect does not allow: unset it, and say where"
    " Spark runs with --master, or with spark-submit"
)
_QUICK_START = "-XX:TieredStopAtLevel=1"


def session(
    name: str = "fastlog", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session for the source: that of this process when there is one, else a new one.

    ``master`` is Spark's; without it, and without one in Spark's own configuration, tasks run in this machine's
    processors and are tried four times. ``settings`` are Spark's and go before the ones given here: times in UTC, no
    progress bar. Where ``SPARK_REMOTE`` names a server of Spark Connect, the session is one with that.

    Raises:
        ConfigError: a master is given, and a server of Spark Connect.
        MissingDependencyError: pyspark, pyarrow or a Java is missing or too old; says what to install.
    """
    given = _prepared(master, settings or {})
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    for key, value in given.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    activate(made)
    if not any(found.name == _SOURCE for found in pkgutil.iter_modules()):
        # An editable installation may bring modules by an import hook, which is not where Spark looks for sources.
        from fastlog.spark.source import FastlogDataSource

        made.dataSource.register(FastlogDataSource)
    return made


def activate(session: SparkSession) -> None:
    """Let this thread write with sources that have a name: Spark looks for them in the session that a thread has.

    A thread that has made none may have none, and ``frame.write.format("fastlog")`` finds nothing there.
    """
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is None:
        session.createDataFrame([], "nothing int")  # what makes it the thread's own


def context(
    name: str = "fastlog", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkContext:
    """As ``session``, without what SQL needs: that takes seconds to start. A session that is made later uses it.

    For drivers that hand out tasks and do little else: a Java that is started here compiles with its first compiler
    alone, which halves the processor time of a start, unless ``SPARK_SUBMIT_OPTS`` says how Java is to run. What
    ``spark.driver.extraJavaOptions`` says comes behind that and counts.

    Raises:
        MissingDependencyError: as ``session``.
    """
    if is_remote(settings or {}):
        raise ConfigError(NOT_REMOTE)
    given = _prepared(master, settings or {})
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setAppName(name).setAll(list(given.items()))
    if _JAVA_OPTIONS in os.environ:
        return SparkContext.getOrCreate(conf)
    # Nothing here that an option of the user's contradicts: with two collectors, for one, Java does not start.
    os.environ[_JAVA_OPTIONS] = _QUICK_START
    try:
        return SparkContext.getOrCreate(conf)
    finally:
        del os.environ[_JAVA_OPTIONS]


def use_this_python() -> None:
    """Let the workers of sessions that are made from now on run this interpreter, unless the environment names another.

    Spark would take the ``python3`` of ``PATH``, which is another one where a virtual environment is not activated: a
    query then fails with "Python worker exited unexpectedly", or the source is not found.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def check_java() -> int:
    """The version of the Java that Spark will start.

    Raises:
        MissingDependencyError: there is none, or it is too old; says what to do.
    """
    return find_spark_java().version


def check_packages() -> None:
    """Raise ``MissingDependencyError`` unless pyspark, new enough, and pyarrow are installed; says what to install."""
    try:
        import pyarrow  # type: ignore[import-untyped]  # noqa: F401
        from pyspark.sql.datasource import DataSourceStreamArrowWriter  # noqa: F401 - not there before 4.1
    except ImportError as error:
        raise MissingDependencyError(
            f"pyspark 4.1 or newer, or pyarrow, is not installed ({error}): {how_to_install('spark')}"
        ) from error


def _prepared(master: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings, on a machine that was found to have what Spark needs."""
    check_packages()
    remote = _remote(settings)
    if remote and (master is not None or "spark.master" in settings):
        raise ConfigError("SPARK_REMOTE names a server of Spark Connect: unset it, or give no master")
    is_started_here = not remote or remote.startswith("local")  # Spark starts a server of its own for that
    runs_already = "PYSPARK_GATEWAY_PORT" in os.environ or _has_session()
    if is_started_here and not runs_already:
        check_java_version(use_spark_java())
    use_this_python()
    if remote:
        return {_TIME_ZONE: "UTC", **settings}  # what belongs to a Java is the server's to say
    given = {_TIME_ZONE: "UTC", "spark.ui.showConsoleProgress": "false", **settings}
    if master is not None:
        given["spark.master"] = master
    elif not _is_submitted():
        given.setdefault("spark.master", "local[*,4]")
    return given


def _has_session() -> bool:
    """Whether this thread has one: each load asks for one anew, and to ask a Java what it is takes 0.1 s."""
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and sql.SparkSession.getActiveSession() is not None


def is_remote(settings: Mapping[str, str]) -> bool:
    """Whether Spark is a server that is reached by Spark Connect, as the environment or these settings say."""
    return bool(_remote(settings))


def _remote(settings: Mapping[str, str]) -> str:
    return settings.get("spark.remote") or os.environ.get("SPARK_REMOTE") or ""


def _is_submitted() -> bool:
    """Whether ``spark-submit`` runs this program and says where tasks run."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "spark.master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
