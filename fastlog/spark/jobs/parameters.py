"""What the commands of all jobs have on their command line, and what they make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from fastlog import errors
from fastlog.spark.iceberg import SCHEME, AnyLake, opened
from fastlog.spark.jobs.command import named
from fastlog.spark.lake import Lake
from fastlog.spark.storage import TableLocation, local_path, located
from fastlog.tools import options

EXIT_CODES = (
    ("0", "done"),
    ("1", "it failed, or a check found a gap"),
    ("2", "wrong usage"),
    ("3", "cannot reach the broker"),
    ("130, 143", "stopped by SIGINT, by SIGTERM, after the batch that was under way"),
)
UPKEEP_EXIT_CODES = (("0", "done"), ("1", "it failed; the table is as it was"), ("2", "wrong usage"))

_AT_URLS = f"{__name__}.at_urls"
"""In the context of a command: whether a table of it is at a URL."""


class TablePlace(click.ParamType):  # type: ignore[type-arg]
    """A path or a URL of a table; ``--storage-option`` says more about the latter."""

    name = "place"

    def __init__(self, *, exists: bool = False, iceberg: bool = False) -> None:
        """``exists``: of a path, whether something has to be there; ``iceberg``: whether it may be a table of Iceberg,
        which is given back as a location with its name."""
        self._exists = exists
        self._iceberg = iceberg

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TableLocation:
        """Return the location; fails as ``located``, for an Iceberg table where none may be, and for a missing path."""
        if str(value).startswith(SCHEME):
            if not self._iceberg:
                self.fail(f"{value}: is a table of Iceberg; here it has to be one of Delta", param, ctx)
            if ctx is not None:
                ctx.meta[_AT_URLS] = True
            return TableLocation(str(value))
        try:
            place = located(value)
        except errors.ConfigError as error:
            self.fail(str(error), param, ctx)
        if place.is_local:
            if self._exists and not place.directory.exists():
                self.fail(f"{place}: there is nothing of that name", param, ctx)
        elif ctx is not None:
            ctx.meta[_AT_URLS] = True
        return place


class LocalPath(click.Path):
    """A path here, or a ``file:`` URL of one; what is in an object store is refused, and not taken for a name."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fails as ``local_path``."""
        try:
            return super().convert(local_path(value), param, ctx)
        except errors.ConfigError as error:
            self.fail(str(error), param, ctx)


def source_options(function: Any) -> Any:
    """``--brokers``, ``--zookeeper`` and ``--option``: which brokers, and all else that the source can be told."""
    function = options.option(
        "-o",
        "--option",
        "given",
        group="Connection",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the source, as docs/spark.md lists them; may be repeated.",
    )(function)
    function = options.zookeeper_option("Find the brokers there instead.")(function)
    return options.brokers_option("Where the brokers are. Also FASTLOG_BROKERS.")(function)


def spark_options(function: Any) -> Any:
    """Add ``--master`` and ``--conf``."""
    function = options.option(
        "--conf",
        "settings",
        group="Other",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of Spark; may be repeated.",
    )(function)
    return options.option(
        "--master",
        group="Other",
        metavar="URL",
        help="Where Spark runs tasks, unless spark-submit says it.  [default: local[*,4]]",
    )(function)


def topics_option(function: Any) -> Any:
    """``--topic``, which may be repeated."""
    return options.option(
        "--topic",
        "topics",
        group="Selection",
        required=True,
        multiple=True,
        metavar="TOPIC",
        shell_complete=options.complete_topics,
        help="A topic; may be repeated.",
    )(function)


def trigger_options(function: Any) -> Any:
    """Add ``--every`` and ``--max-bytes``."""
    function = options.option(
        "--max-bytes",
        group="Limits",
        type=options.Size(1, 2**50),
        default="1GiB",
        show_default=True,
        metavar="SIZE",
        help="How much a batch reads, of all partitions together.",
    )(function)
    return options.option(
        "--every",
        group="Selection",
        type=options.Duration(),
        metavar="TIME",
        help="Go on for ever, with a batch so often. Without it: up to what there is now, and end.",
    )(function)


def table_option(*, required: bool, made: bool = True, iceberg: bool = False) -> Callable[[Any], Any]:
    """``--table``, and ``--storage-option`` for that table and others that a command reads."""
    where = "The Delta table: a directory that all workers see, or a URL (s3://BUCKET/TABLE, and gs, abfss, hdfs);"
    where = (
        f"{where} made if it is not there." if made else "The Delta table: a directory, or a URL (s3://BUCKET/TABLE)."
    )

    def add(function: Any) -> Any:
        function = options.option(
            "--storage-option",
            "storage",
            group="Connection",
            multiple=True,
            metavar="KEY=VALUE",
            help="For tables at URLs: an option of the object store, as docs/spark-jobs.md has them; may be repeated."
            " Credentials are better in the environment, where other users of the machine do not see them.",
        )(function)
        return options.option(
            "--table",
            "place",
            group="Selection",
            required=required,
            type=TablePlace(iceberg=iceberg),
            metavar="PLACE",
            help=f"{where} Or an Iceberg table: {SCHEME}CATALOG/NAMESPACE.TABLE." if iceberg else where,
        )(function)

    return add


def checkpoint_option(function: Any) -> Any:
    """``--checkpoint``, for jobs whose queries have a state."""
    return options.option(
        "--checkpoint",
        group="Selection",
        type=LocalPath(),
        metavar="DIRECTORY",
        help="Where Spark keeps the state of a query whose table is at a URL; all workers see it.",
    )(function)


def time_option(function: Any) -> Any:
    """``--time``, for jobs that need one."""
    return options.option(
        "--time",
        "time_of",
        group="Format",
        metavar="SQL",
        default="timestamp",
        show_default=True,
        help="The time of a message, from its columns.",
    )(function)


def late_option(function: Any) -> Any:
    """Add ``--late``."""
    return options.option(
        "--late",
        group="Limits",
        type=options.Duration(),
        default="10min",
        show_default=True,
        metavar="TIME",
        help="How much later than others, by its own time, a message may come.",
    )(function)


def late_table_option(function: Any) -> Any:
    """``--late-table``, for jobs that leave out what is late."""
    return options.option(
        "--late-table",
        "late_place",
        group="Selection",
        type=TablePlace(),
        metavar="PLACE",
        help="Another table, for messages that are left out because they are later than --late; made if it is not"
        " there. Each batch is read twice then.",
    )(function)


def attempts_option(function: Any) -> Any:
    """Add ``--attempts``."""
    return options.option(
        "--attempts",
        group="Limits",
        type=click.IntRange(1, 1000),
        default=5,
        show_default=True,
        help="How often in a row a batch may fail.",
    )(function)


def _with_options(place: TableLocation, storage: tuple[str, ...]) -> TableLocation:
    """A place with what ``--storage-option`` says, if it is at a URL; raises as ``JobOptions.located``."""
    if not all("=" in item for item in storage):
        raise errors.ConfigError("--storage-option: write --storage-option KEY=VALUE")  # it may be a secret
    if storage and not click.get_current_context().meta.get(_AT_URLS):
        raise errors.ConfigError("--storage-option: is for tables at URLs, and none is given")
    if place.is_local:
        return place
    if place.text.startswith(SCHEME):
        return TableLocation(place.text, options.named_values("--storage-option", storage))
    return located(place.text, options.named_values("--storage-option", storage))


@dataclass(frozen=True)
class JobOptions:
    """What the options say that all jobs have; ``time_of`` and ``late`` are of jobs that look at messages' times."""

    brokers: str
    zookeeper: str | None
    given: tuple[str, ...]
    topics: tuple[str, ...]
    every: float | None
    max_bytes: int
    master: str | None
    settings: tuple[str, ...]
    no_progress: bool
    place: TableLocation | None
    storage: tuple[str, ...]
    attempts: int
    time_of: str = ""
    late: float = 0.0
    checkpoint: Path | None = None

    def named(self) -> tuple[dict[str, str], dict[str, str]]:
        """The options of the source and the settings of Spark that are given by name; raises as ``named``."""
        return named(self.given, self.settings, self.zookeeper)

    @property
    def table(self) -> TableLocation | None:
        """Where the table is that is filled, if one is given; raises as ``located``."""
        return None if self.place is None else self.located(self.place)

    def located(self, place: TableLocation) -> TableLocation:
        """A table that this command reads or fills, with the options for it, if it is at a URL.

        Raises:
            ConfigError: an option is malformed, or there is none of their tables.
        """
        return _with_options(place, self.storage)

    def lake(self) -> Lake:
        """The table that is filled; only where one is given."""
        assert self.table is not None
        return Lake(self.table)

    @property
    def streamed(self) -> dict[str, str]:
        """How much of a source the batches of a stream read, and from where."""
        return {"startingOffsets": "earliest", "maxBytesPerTrigger": str(self.max_bytes)}


def job(
    name: str, *, table_required: bool, examples: tuple[str, ...], timed: bool = True, iceberg: bool = False
) -> Callable[[Callable[..., int]], click.Command]:
    """The command of a job: its function is called with the ``JobOptions``, then with the options of its own."""
    common = [item.name for item in fields(JobOptions) if timed or item.name not in ("time_of", "late", "checkpoint")]

    def add(function: Callable[..., int]) -> click.Command:
        @wraps(function)
        def called(**values: Any) -> int:
            return function(JobOptions(**{item: values.pop(item) for item in common}), **values)

        made: Any = attempts_option(called)
        if timed:
            made = time_option(late_option(checkpoint_option(made)))
        made = spark_options(quiet_option(table_option(required=table_required, iceberg=iceberg)(made)))
        made = source_options(topics_option(trigger_options(made)))
        return click.command(cls=options.Command, name=name, exit_codes=EXIT_CODES, examples=examples)(made)

    return add


def quiet_option(function: Any) -> Any:
    """Add ``--no-progress``."""
    return options.option("--no-progress", group="Format", is_flag=True, help="Say nothing on stderr while it runs.")(
        function
    )


def upkeep(
    name: str, examples: tuple[str, ...], *, iceberg: bool = True
) -> Callable[[Callable[..., int]], click.Command]:
    """A command for a table that is there, without Spark: its function is called with the table, whether to say what it
    does, and the options of its own. It is wrong usage where there is no table. ``iceberg``: whether it may be one of
    Iceberg."""

    def add(function: Callable[..., int]) -> click.Command:
        @wraps(function)
        def called(*, place: TableLocation, storage: tuple[str, ...], no_progress: bool, **values: Any) -> int:
            lake: AnyLake = opened(_with_options(place, storage))
            if not lake.exists:
                raise errors.ConfigError(f"--table: there is no table in {lake}")
            return function(lake, not no_progress, **values)

        made = quiet_option(table_option(required=True, made=False, iceberg=iceberg)(called))
        return click.command(cls=options.Command, name=name, exit_codes=UPKEEP_EXIT_CODES, examples=examples)(made)

    return add


def dry_run_option(function: Any) -> Any:
    """Add ``--dry-run``."""
    return options.option("--dry-run", group="Other", is_flag=True, help="Only say what would be done.")(function)
