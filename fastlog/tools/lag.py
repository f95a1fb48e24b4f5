"""``fastlog lag``: how far a group is behind, partition by partition.

Source: Kafka 0.7.2 (tools/ConsumerOffsetChecker).
"""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from fastlog.escaping import printable
from fastlog.tools import groups_access, options
from fastlog.tools.group_rows import place_fields, shown
from fastlog.tools.report import EXIT_DONE, EXIT_UNREACHABLE, note
from fastlog.tools.topics import show

if TYPE_CHECKING:
    from fastlog.consumer.group_view import GroupView
    from fastlog.consumer.lag import PartitionLag

_CLEAR = "\x1b[H\x1b[2J"
_NAMES = ("group", "topic", "partition", "owner", "offset", "log_size", "lag", "~messages", "note")
_WATCH_SECONDS = 5.0
_GIB = 1024**3


@click.command(
    cls=options.Command,
    name="lag",
    examples=(
        "fastlog lag --zookeeper localhost:2181 --group views",
        "fastlog lag --brokers localhost:9092 --group views --topic logs --watch 2s",
    ),
)
@groups_access.place_options
@groups_access.group_option
@groups_access.topics_option
@groups_access.table_options
@options.option(
    "--format",
    "form",
    group="Format",
    type=click.Choice(("table", "0.7")),
    default="table",
    show_default=True,
    help="0.7: the lines of ConsumerOffsetChecker.",
)
@options.option(
    "--estimate/--no-estimate",
    group="Format",
    default=True,
    help="Estimate the lag in messages from some of them, or fetch none.",
)
@options.option(
    "--watch",
    group="Limits",
    type=options.Duration(),
    is_flag=False,
    flag_value=f"{_WATCH_SECONDS:g}s",
    metavar="TIME",
    help=f"Show it again and again; every {_WATCH_SECONDS:g} seconds when no time is given.",
)
def lag_command(
    place: groups_access.Where,
    group: str,
    topics: tuple[str, ...],
    as_json: bool,
    no_headers: bool,
    form: str,
    estimate: bool,
    watch: float | None,
) -> int:
    """Show each partition's owner, committed offset, end of the log ("log size") and lag.

    Offsets of Kafka 0.7 are bytes, and so is the lag. The lag in messages is an estimate, from the sizes of some
    messages at both ends of what is behind. Of topics of records both are in records. Works with groups of 0.7
    consumers and with 0.7 brokers too. Exit code 3 when a broker did not answer; its partitions have a note.
    """
    if as_json and form != "table":
        raise click.UsageError("--json contradicts --format 0.7")
    with place.open() as groups:
        while True:
            view = groups_access.known_group(groups, group)
            wanted = groups_access.named(topics)
            groups_access.check_topics(view, wanted)
            rows = _measured(view, wanted, place.timeout, estimate)
            if watch is not None:
                _begin_round(as_json)
            if not rows:
                note(f"group {view.name!r} owns nothing now, and has committed nothing")
            if form == "0.7":
                _show_plain(view, rows)
            else:
                show(_NAMES, [_row(view.name, item, as_json) for item in rows], as_json, no_headers)
            sys.stdout.flush()
            if watch is None:
                return EXIT_UNREACHABLE if any(item.is_failure for item in rows) else EXIT_DONE
            time.sleep(watch)


def _measured(view: GroupView, topics: list[str] | None, timeout: float, estimate: bool) -> list[PartitionLag]:
    from fastlog.consumer.broker_logs import BrokerLogs
    from fastlog.consumer.lag import measure

    with BrokerLogs(view.addresses, timeout) as logs:
        return measure(view, logs, topics, estimate=estimate)


def _row(group: str, item: PartitionLag, as_json: bool) -> dict[str, Any]:
    place = place_fields(item.partition, as_json)
    if as_json:
        return {
            "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
            "group": group,
            **place,
            "owner": item.owner,
            "offset": item.offset,
            "log_start": item.log_start,
            "log_size": item.log_size,
            "lag": item.lag,
            "lag_messages_estimate": item.messages,
            "note": item.problem,
        }
    values = {
        "owner": item.owner,
        "offset": item.offset,
        "log_size": item.log_size,
        "lag": item.lag,
        "~messages": None if item.messages is None else f"~{item.messages}",
        "note": item.problem or None,
    }
    return {"group": group, **place, **{name: shown(value, False) for name, value in values.items()}}


def _begin_round(as_json: bool) -> None:
    """A terminal is wiped; elsewhere each round begins with the time."""
    if as_json:
        return
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        sys.stdout.write(_CLEAR)
    print(datetime.now().astimezone().isoformat(timespec="seconds"))


def _show_plain(view: GroupView, rows: list[PartitionLag]) -> None:
    """What 0.7's tool prints, to the letter: nothing of a partition that was never committed."""
    for item in rows:
        if item.offset is None:
            continue
        place = printable(f"{view.name},{item.partition.topic},{item.partition.partition}")
        print(f"{place} (Group,Topic,BrokerId-PartitionId)")
        print(f"{'Owner = ':>20}{printable(item.owner or 'null')}")
        _show_plain_number("Consumer offset = ", item.offset)
        if item.log_size is not None:
            _show_plain_number("Log size = ", item.log_size)
            _show_plain_number("Consumer lag = ", item.log_size - item.offset)
            print()
    print("BROKER INFO")
    for broker, address in sorted(view.addresses.items()):
        print(f"{broker} -> {printable(str(address))}")


def _show_plain_number(label: str, value: int) -> None:
    print(f"{label:>20}{value}")
    print(f"{'= ':>20}{value:,} ({value / _GIB:,.2f}G)")
