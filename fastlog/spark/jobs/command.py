"""What the jobs share: their source, the session, signals, and Spark's errors in one line."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

import click

from fastlog import errors
from fastlog.tools import options, report, signals
from fastlog.tools.report import CommandError, note

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_OF_OURS = re.compile(r"fastlog\.errors\.(\w+): (.*)")
_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\] .*", re.MULTILINE)
_OF_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)")
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.*)", re.MULTILINE)
_CALLED = "An error occurred while calling "
"""Begins every error of Java's; what it was comes behind it."""
_OF_A_PROGRAM = {
    *("AnalysisException", "ParseException", "IllegalArgumentException", "UnsupportedOperationException"),
    *("ArithmeticException", "DateTimeException", "NumberFormatException", "ArrayIndexOutOfBoundsException"),
}
"""Errors of Spark's about a query, an expression, a value or an option: the next try would say the same."""
_FOR_GOOD = (
    *(errors.ConfigError, errors.MissingDependencyError),
    *(PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError),
)
_LOG_LEVEL = "spark.log.level"
_QUIET = "FATAL"
"""The job reports what fails in a task, in a line; Spark would add its own calls, for each try of each task."""
_MOST_TOLD = 500
_OF_THE_JOB = {
    *("subscribe", "subscribepattern", "assign", "columns", "includenextoffset", "failondataloss"),
    *("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy"),
    *("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp", "maxbytespertrigger"),
    *("schema", "maxoffsetspertrigger"),
}


def interval(seconds: float) -> str:
    """A duration in seconds as Spark's SQL takes it."""
    return f"{round(seconds * 1000)} milliseconds"


def named(
    given: Iterable[str], settings: Iterable[str], zookeeper: str | None
) -> tuple[dict[str, str], dict[str, str]]:
    """What ``--option`` and ``--zookeeper``, and ``--conf`` say.

    Raises:
        ConfigError: one has no value.
        click.UsageError: brokers are named in two ways.
    """
    found = options.named_values("--option", given)
    if zookeeper is not None:
        context = click.get_current_context()
        typed = context.get_parameter_source("brokers") is click.core.ParameterSource.COMMANDLINE
        if typed or {name.lower() for name in found} & {"brokers", "zookeeper", "zk.connect"}:
            raise click.UsageError("--zookeeper shows where the brokers are: do not name them, or it, a second time")
        found["zookeeper"] = zookeeper
    return found, options.named_values("--conf", settings)


def run(command: click.Command, name: str, argv: list[str] | None) -> NoReturn:
    """Run the command of a job and leave the process."""
    hint = f"python -m fastlog.spark.jobs.{name} --help shows its options, docs/spark.md those of the source (-o)"
    report.run(command, name, argv, settings_hint=hint)


def source_of(brokers: str, found: Mapping[str, str], topics: Iterable[str]) -> dict[str, str]:
    """The options of ``format("fastlog")`` from those of a command.

    Raises:
        ConfigError: one is malformed, or it is the job that decides about it.
    """
    lowered = {name.lower() for name in found}
    for name in found:
        if name.lower() in _OF_THE_JOB:
            raise errors.ConfigError(f"--option {name}: the job sets it itself, or has an option of its own for it")
    own = {"subscribe": ",".join(topics), "schema": "fastlog"}  # the same columns for both kinds of topics
    if not lowered & {"brokers", "zookeeper", "zk.connect"}:
        own["brokers"] = brokers
    return {**found, **own}


class LazySpark:
    """The Spark of a job, started when it is first asked for. ``close`` ends one that was started here."""

    def __init__(self, job: str, master: str | None, settings: Mapping[str, str]) -> None:
        self._name = f"fastlog {job}"
        self._master = master
        self._settings = {"spark.ui.enabled": "false", **settings}
        self._session: SparkSession | None = None
        self._context: SparkContext | None = None
        self._own = False

    def __enter__(self) -> Self:
        from fastlog.spark.environment import NOT_REMOTE, is_remote

        if is_remote(self._settings):
            raise errors.ConfigError(NOT_REMOTE)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def session(self) -> SparkSession:
        """With SQL. Raises ``MissingDependencyError``, and whatever Spark has to say."""
        if self._session is None:
            from fastlog.spark.environment import session

            with self._started():
                self._session = session(self._name, master=self._master, settings=self._settings)
                self._context = self._session.sparkContext
        return self._session

    @property
    def context(self) -> SparkContext:
        """For tasks that need no SQL, which takes seconds to start. Raises as ``session``."""
        if self._context is None:
            from fastlog.spark.environment import check_packages, context

            check_packages()
            from pyspark import SparkContext

            if SparkContext._active_spark_context is not None:
                return self.session.sparkContext  # Spark runs in this process: what takes the time has been started
            with self._started():
                self._context = context(self._name, master=self._master, settings=self._settings)
        return self._context

    @property
    def has_ended(self) -> bool:
        """Whether Spark was started and has been ended by somebody else, such as a cluster whose executors all fail."""
        context = self._context
        return context is not None and (context._jsc is None or bool(context._jsc.sc().isStopped()))

    def close(self) -> None:
        """May be called when nothing was started, and when Java is gone, as after a signal to the whole group."""
        session, context, self._session, self._context = self._session, self._context, None, None
        if not self._own or context is None:
            return
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        with contextlib.suppress(OSError, Py4JError):
            (session or context).stop()

    @contextlib.contextmanager
    def _started(self) -> Iterator[None]:
        from fastlog.spark.environment import check_packages

        check_packages()
        from pyspark import SparkContext

        first = self._context is None
        if first:
            self._own = SparkContext._active_spark_context is None
        interrupt = signal.getsignal(signal.SIGINT)
        yield
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)  # pyspark has taken it for itself
        context = self._context if first and self._own else None
        if context is not None and not context.getConf().contains(_LOG_LEVEL):  # else a user has chosen one
            context.setLogLevel(_QUIET)


@contextlib.contextmanager
def batches_unbroken() -> Iterator[None]:
    """A signal ends the job where it waits, and not inside a batch; the second one does not wait for that.

    In threads other than the main one nothing is changed: Python has signals in that one alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signals.install()
    try:
        with signals.deferred():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(seconds: float) -> None:
    """Wait; a signal, also one that came before, ends the job here."""
    with signals.waiting():
        time.sleep(seconds)


def told(error: BaseException) -> str:
    """What an error of Spark's says, in one line: what Python says in it, where there is that, or what began it."""
    text = str(error).strip()
    ours = _OF_OURS.findall(text)
    if ours:
        return str(ours[-1][1])
    of_python = [line for line in _OF_PYTHON.findall(text) if _CALLED not in line]
    condition = _CONDITION.search(text)
    causes = _CAUSE.findall(text)
    if of_python:
        line = of_python[-1]
    elif causes and _CALLED in text:
        line = causes[-1]
    elif condition:
        line = condition[0]
    else:
        lines = text.split("\n")
        line = lines[1].removeprefix(": ") if lines[0].startswith(_CALLED) and len(lines) > 1 else lines[0]
    return line[:_MOST_TOLD] or type(error).__name__


def may_pass(error: Exception) -> bool:
    """Whether an error is one of the world's, such as a broker or a worker that is gone, and the next try may go well.

    A loss is one of those where a task has found it: the next plan says what is lost.
    """
    own = own_error(error)
    if own is not None or isinstance(error, OSError):
        return not isinstance(own or error, _FOR_GOOD) and not isinstance(error, errors.DataLossError)
    name = type(error).__name__
    if name in _OF_A_PROGRAM or (name.startswith("PySpark") and name != "PySparkException"):
        return False  # the latter: Spark cannot be used so, or not started
    return _is_of_spark(error)


def is_of_expression(error: Exception) -> bool:
    """Whether an error may be one of an expression on a message: Spark's, and not of what the message came by."""
    return _is_of_spark(error) and own_error(error) is None


def for_good(error: Exception) -> Exception:
    """What to raise for an error that the next try would raise again."""
    own = own_error(error)
    if own is not None or not _is_of_spark(error):
        return own or error
    why = "Spark says so, and would say it again"
    return CommandError(told(error), why, "mend the expression, the option or the setting that it speaks of")


def _is_of_spark(error: Exception) -> bool:
    return (type(error).__module__ or "").partition(".")[0] in ("pyspark", "py4j")


def own_error(error: BaseException) -> errors.FastlogError | None:
    """The error of ours that one of Spark's tells about, as an object; None when it is about something else."""
    if isinstance(error, errors.FastlogError):
        return error
    found = _OF_OURS.findall(str(error))
    made = getattr(errors, found[-1][0], None) if found else None
    if isinstance(made, type) and issubclass(made, errors.FastlogError):
        return made(found[-1][1])
    return None


def show_summary(summary: Mapping[str, Any]) -> None:
    """Print the summary of a job, one JSON object on stdout."""
    click.echo(json.dumps(summary))


def as_text(value: Any) -> str:
    """For JSON: bytes as text, and times, which Spark hands out as local ones, in UTC."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


def say(text: str, shown: bool = True) -> None:
    """Print a line of progress with the time on stderr, if ``shown``."""
    if shown:
        note(f"{time.strftime('%H:%M:%S')} {text}")
