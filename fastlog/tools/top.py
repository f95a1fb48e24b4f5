"""``fastlog top``: topics, rates, groups and processes of a broker, again and again, from its page of metrics."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from fastlog.errors import TransportError
from fastlog.escaping import in_json, printable
from fastlog.installation import how_to_install
from fastlog.tools import options
from fastlog.tools.report import EXIT_FAILED, CommandError, note

if TYPE_CHECKING:
    from rich.console import Group

    from fastlog.tools.monitor_client import Monitor
    from fastlog.tools.top_view import MetricsSample, TopView

_LEAST_SECONDS = 0.1
_PLAIN_ROWS = 20
_LINES_BESIDE = 12
"""What a screen has besides rows of topics, groups and processes."""


class Table(NamedTuple):
    """A table for people: numbers are texts already."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    more: int
    """How many rows did not fit and are left out."""


@click.command(
    cls=options.Command,
    name="top",
    examples=("fastlog top --monitor broker1:9080", "fastlog top --count 1 --json | jq .messages_rate"),
)
@options.option(
    "--monitor",
    group="Connection",
    metavar="HOST:PORT",
    envvar="FASTLOG_MONITOR",
    default="127.0.0.1:9080",
    show_default=True,
    help="The broker's monitor.address. Also FASTLOG_MONITOR.",
)
@options.option(
    "--monitor-token-file",
    group="Connection",
    metavar="FILE",
    type=click.Path(),
    help="The file with its secret, where it has one.",
)
@options.option(
    "--timeout",
    group="Connection",
    type=options.Duration(),
    default="5s",
    show_default=True,
    metavar="TIME",
    help="How long to wait for a page.",
)
@options.option(
    "--interval",
    group="Limits",
    type=options.Duration(),
    default="2s",
    show_default=True,
    metavar="TIME",
    help="How long rates are taken over; 100 ms at least.",
)
@options.option(
    "--count", group="Limits", type=click.IntRange(1), metavar="N", help="Show it so often. Default: until Ctrl-C."
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object each time, with all rows.")
def top_command(
    monitor: str, monitor_token_file: str | None, timeout: float, interval: float, count: int | None, as_json: bool
) -> None:
    """Show what a broker does: messages and bytes by topic, lag by group, how busy its processes are.

    The broker needs --monitor and its extra metrics. On a terminal the screen is drawn again in place, which needs
    the extra top; elsewhere each time is a block of lines.
    """
    from fastlog.listening import parse_listen  # after --help
    from fastlog.tools.monitor_client import Monitor

    interval = max(interval, _LEAST_SECONDS)
    asked = Monitor(parse_listen("--monitor", monitor), monitor_token_file, timeout)
    before = sample(asked)
    with _shown(as_json) as show:
        while count is None or count > 0:
            time.sleep(max(0.0, before.at + interval - time.monotonic()))
            try:
                now = sample(asked)
            except TransportError as error:
                note(f"{str(error).splitlines()[0]}; trying again")
                time.sleep(interval)
                continue
            from fastlog.tools.top_view import between

            show(between(before, now))
            before = now
            count = None if count is None else count - 1


def sample(monitor: Monitor) -> MetricsSample:
    """A page of now.

    Raises:
        TransportError: nobody answers.
        CommandError: who answers has no numbers for us.
    """
    from fastlog.tools.top_view import parse

    at = time.monotonic()
    page = monitor.ask("/metrics")
    if page.status == 200:
        return parse(page.text, at)
    if page.status == 503:  # a keeper that is just being replaced
        raise TransportError(f"the monitor at {monitor.address} is not ready")
    remedies = {401: "name its token with --monitor-token-file", 403: "ask for an address of loopback or localhost"}
    raise CommandError(
        f"the monitor at {monitor.address} gives no numbers",
        f"{page.status}: {' '.join(page.text.split())[:200]}",
        remedies.get(page.status, f"on the broker's machine: {how_to_install('metrics')}")
        if page.status in (401, 403, 501)
        else "see that it is the monitor.address of a fastlog broker",
        EXIT_FAILED,
    )


@contextmanager
def _shown(as_json: bool) -> Iterator[Callable[[TopView], None]]:
    """How each view is shown: an object, a screen, or a block of lines."""
    if as_json:
        yield lambda view: print(in_json(view.fields()), flush=True)
        return
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda view: print(text_of(view), flush=True)
        return
    if importlib.util.find_spec("rich") is None:
        note(f"without rich each time is a block of lines: {how_to_install('top')}")
        yield lambda view: print(text_of(view), flush=True)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        yield lambda view: live.update(_screen(view, shutil.get_terminal_size().lines), refresh=True)


def text_of(view: TopView) -> str:
    """The view as plain lines, where the output is no terminal or ``rich`` is not installed."""
    parts = [_head(view)]
    for table in tables(view, _PLAIN_ROWS, len(view.processes)):
        cells = [list(table.names), *table.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(table.names))]
        for row in cells:
            first, *others = (
                cell.ljust(width) if not at else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            parts.append("  ".join([first, *others]).rstrip())
        if table.more:
            parts.append(f"and {table.more} more {table.title}")
        parts.append("")
    return "\n".join(parts)


def tables(view: TopView, rows: int, process_rows: int) -> list[Table]:
    """Topics, groups and processes: at most ``rows`` of each of the first two, and ``process_rows`` of the last."""
    topics = [
        (
            printable(item.topic),
            str(item.partitions),
            f"{item.messages_rate:,.0f}",
            size(item.bytes_rate),
            size(item.size),
            size(item.unflushed),
        )
        for item in view.topics
    ]
    groups = [
        (
            printable(item.group),
            printable(item.topic) or "-",
            str(item.members),
            f"{item.lag:,}",
            f"{item.lag_rate:+,.0f}",
        )
        for item in view.groups
    ]
    processes = [
        (
            item.process,
            "-" if item.busy is None else f"{item.busy * 100:.0f} %",
            str(item.connections),
            size(item.memory),
            str(item.restarts),
        )
        for item in view.processes
    ]
    most = {"processes": process_rows}
    made = [Table("topics", ("TOPIC", "PARTITIONS", "MSG/S", "BYTES/S", "SIZE", "UNFLUSHED"), topics, 0)]
    if view.groups_known:
        made.append(Table("groups", ("GROUP", "TOPIC", "MEMBERS", "LAG", "LAG/S"), groups, 0))
    made.append(Table("processes", ("PROCESS", "BUSY", "CONNECTIONS", "MEMORY", "RESTARTS"), processes, 0))
    return [
        table._replace(
            rows=table.rows[: most.get(table.title, rows)],
            more=max(0, len(table.rows) - most.get(table.title, rows)),
        )
        for table in made
        if table.rows
    ]


def size(count: float) -> str:
    """A number of bytes with its binary unit: ``512 B``, ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _head(view: TopView) -> str:
    groups = "" if view.groups_known else "; groups are not known now"
    produces, fetches = (view.requests_rate.get(kind, 0.0) for kind in ("produce", "fetch"))
    return (
        f"{view.messages_rate:,.0f} messages/s, in {size(view.bytes_in_rate)}/s, out {size(view.bytes_out_rate)}/s, "
        f"{produces:,.0f} produces/s, {fetches:,.0f} fetches/s, {view.failed_rate:,.0f} failed/s, "
        f"{view.connections} connections, "
        f"{size(view.unflushed)} unflushed{groups}"
    )


def _screen(view: TopView, lines: int) -> Group:
    """The view for a terminal of ``lines`` lines."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    processes = max(1, min(len(view.processes), (lines - _LINES_BESIDE) // 2))
    rows = max(1, (lines - _LINES_BESIDE - processes) // 2)
    parts: list[RichTable | Text] = [Text(_head(view), style="bold")]
    for table in tables(view, rows, processes):
        drawn = RichTable(box=None, pad_edge=False, header_style="reverse", expand=True)
        for at, name in enumerate(table.names):
            drawn.add_column(name, justify="right" if at else "left", no_wrap=True)
        for row in table.rows:
            drawn.add_row(*(Text(cell) for cell in row))
        parts += [Text(""), drawn]
        if table.more:
            parts.append(Text(f"and {table.more} more {table.title}", style="dim"))
    return Group(*parts)
