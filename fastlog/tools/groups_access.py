"""What the commands about groups share: their options, the session with ZooKeeper, and groups by their names."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fastlog.counts import counted
from fastlog.tools import options
from fastlog.tools.report import note, unknown

if TYPE_CHECKING:
    from fastlog.consumer.group_view import GroupView
    from fastlog.coordination.session import Session
    from fastlog.tools.group_places import GroupStore

_SESSION_SECONDS = 10.0


_DEFAULT = "127.0.0.1:2181"
_COMMAND_LINE = click.core.ParameterSource.COMMANDLINE
_ALIASES = ("--zkconnect", "--zk.connect")  # what tools of 0.7 call it


class Where(NamedTuple):
    """Where groups are kept: one of the first two, and how long it may take to answer."""

    zookeeper: str | None
    brokers: str | None
    timeout: float

    @contextmanager
    def open(self) -> Iterator[GroupStore]:
        """The groups there. Raises ``ConfigError``, ``CoordinationError``."""
        from fastlog.tools.group_places import BrokerGroupStore, ZooKeeperGroupStore

        if self.zookeeper is not None:
            with session_at(self.zookeeper, self.timeout) as session:
                yield ZooKeeperGroupStore(session)
            return
        from fastlog.consumer.broker_groups.view import BrokerGroups

        assert self.brokers is not None
        with BrokerGroups(self.brokers, self.timeout) as groups:
            yield BrokerGroupStore(groups)


def where(zookeeper: str | None, brokers: str, timeout: float) -> Where:
    """What the command line names, else the environment: a ZooKeeper that is named, or else a broker.

    Raises:
        UsageError: both are on the command line.
    """
    ctx = click.get_current_context()
    given = [ctx.get_parameter_source(name) is _COMMAND_LINE for name in ("zookeeper", "brokers")]
    if all(given):
        raise click.UsageError("--brokers contradicts --zookeeper: a group is kept in ZooKeeper, or by a broker")
    if zookeeper is None:  # consume's option does not look there, as without a group it means nothing
        zookeeper = os.environ.get("FASTLOG_ZOOKEEPER") or None
    if zookeeper is not None and not given[1]:
        return Where(zookeeper, None, timeout)
    return Where(None, brokers, timeout)


def place_options(function: Any) -> Any:
    """``--zookeeper``, ``--brokers`` and ``--connect-timeout``, which become ``place``, a ``Where``."""

    @functools.wraps(function)
    def called(*args: Any, zookeeper: str | None, brokers: str, connect_timeout: float, **options: Any) -> Any:
        return function(*args, place=where(zookeeper, brokers, connect_timeout), **options)

    called = options.connect_timeout_option(called)
    text = "The ZooKeeper that keeps the groups. Also FASTLOG_ZOOKEEPER."
    called = options.zookeeper_option(text, *_ALIASES, envvar="FASTLOG_ZOOKEEPER")(called)
    return options.brokers_option(
        "The broker whose groups are meant when no ZooKeeper is named; several addresses of one are tried in turn."
        " Also FASTLOG_BROKERS."
    )(called)


def zookeeper_option(function: Any) -> Any:
    """``--zookeeper`` and ``--connect-timeout``, for commands that find everything there."""
    function = options.connect_timeout_option(function)
    text = "Where ZooKeeper is. Also FASTLOG_ZOOKEEPER."
    return options.zookeeper_option(text, *_ALIASES, envvar="FASTLOG_ZOOKEEPER", default=_DEFAULT, show_default=True)(
        function
    )


def brokers_options(function: Any) -> Any:
    """``--brokers``, all of which are meant, or ``--zookeeper`` instead."""
    function = options.zookeeper_option("Find the brokers there instead.", *_ALIASES)(function)
    function = options.connect_timeout_option(function)
    return options.brokers_option("The brokers, every one of which is meant. Also FASTLOG_BROKERS.")(function)


def group_option(function: Any) -> Any:
    """``--group``, of which there has to be one."""
    return options.option("--group", group="Selection", required=True, metavar="GROUP", help="The group.")(function)


def topics_option(function: Any) -> Any:
    """``--topic``, as often as wanted or with commas as in 0.7."""
    return options.option(
        "--topic",
        "topics",
        group="Selection",
        multiple=True,
        metavar="TOPIC",
        help="Only this topic; may be repeated, or several with commas. Default: all.",
    )(function)


def table_options(function: Any) -> Any:
    """Add ``--json`` and ``--no-headers``, which commands that print a table share."""
    function = options.option("--no-headers", group="Format", is_flag=True, help="No first line with names.")(function)
    return options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object a line.")(function)


def named(topics: Sequence[str]) -> list[str] | None:
    """What ``--topic`` says, commas taken apart; None: all."""
    return [name for item in topics for name in item.split(",") if name] or None


@contextmanager
def session_at(zookeeper: str, timeout: float) -> Iterator[Session]:
    """A session with the ZooKeeper that ``--zookeeper`` names. Raises ``ConfigError``, ``CoordinationError``."""
    from fastlog.coordination.zookeeper import ZooKeeperSession

    with ZooKeeperSession(zookeeper, session_timeout=_SESSION_SECONDS, connection_timeout=timeout) as session:
        yield session


def known_group(place: GroupStore, name: str) -> GroupView:
    """The group; malformed nodes of it are reported on stderr.

    Raises:
        CommandError: there is no such group.
    """
    view = place.view(name)
    if view is None:
        names = place.names()
        raise unknown(
            f"there is no group {name!r}",
            f"{place.knows} knows {counted(len(names), 'group')}, and none of that name",
            name,
            names,
            f"fastlog groups lists them; {place.where}",
        )
    for line in view.garbage:
        note(f"left out: {line}")
    return view


def check_topics(view: GroupView, topics: Sequence[str] | None) -> None:
    """Raises ``CommandError`` for a topic that the group has nothing to do with."""
    for topic in topics or ():
        if topic not in view.partitions:
            raise unknown(
                f"the group {view.name!r} has nothing of topic {topic!r}",
                "none of its members reads it, owns a partition of it, or committed an offset in it",
                topic,
                view.partitions,
                f"fastlog groups --group {view.name} shows what it reads",
            )
