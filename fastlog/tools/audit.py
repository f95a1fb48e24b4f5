"""``fastlog audit``: whether what producers have sent is there, and once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fastlog.counts import counted
from fastlog.escaping import in_json
from fastlog.tools import options
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, CommandError, note
from fastlog.tools.topics import show

if TYPE_CHECKING:
    from fastlog.audit.cluster import AuditedCluster
    from fastlog.audit.compare import Row

_BROKERS = "brokers"
_NAMES = (
    "topic",
    "stage",
    "window",
    "sent",
    "received",
    "missing",
    "duplicates",
    "unreported",
    "pending",
    "expired",
    "state",
)


@click.command(
    cls=options.Command,
    name="audit",
    examples=(
        "fastlog audit --brokers localhost:9092",
        "fastlog audit --brokers live:9092 --stage copy=offline:9092 --json",
    ),
)
@options.option(
    "--zookeeper",
    group="Connection",
    metavar="H:P[,H:P][/PATH]",
    help="Where the brokers are found that producers send to, instead of --brokers.",
)
@options.connect_timeout_option
@options.brokers_option("The brokers that producers send to, every one of them. Also FASTLOG_BROKERS.")
@options.option(
    "--audit-topic", group="Selection", default="audit", show_default=True, metavar="TOPIC", help="Where reports are."
)
@options.option(
    "--topic",
    "topics",
    group="Selection",
    multiple=True,
    metavar="TOPIC",
    help="Only this topic; may be repeated. Default: every topic that the audit topic speaks of.",
)
@options.option(
    "--stage",
    "stages",
    group="Selection",
    multiple=True,
    metavar="NAME=H:P[,H:P]|NAME=zk:H:P[/PATH]",
    help="Another cluster to count in, such as the target of a mirror: its brokers, or behind zk: its ZooKeeper; may be"
    " repeated. Stages that publish their counts to the audit topic are always there.",
)
@options.option(
    "--grace",
    group="Limits",
    type=options.Duration(),
    default="10min",
    show_default=True,
    metavar="TIME",
    help="How long messages may take to the stages behind the brokers, before they are missing there.",
)
@options.option("--problems", group="Format", is_flag=True, help="Only windows whose state is not ok.")
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object a line.")
@options.option("--no-headers", group="Format", is_flag=True, help="No first line with names.")
@options.option(
    "--strict", group="Other", is_flag=True, help="Exit code 1 also for duplicates and for what nobody reported."
)
@click.pass_context
def audit_command(
    ctx: click.Context,
    brokers: str,
    zookeeper: str | None,
    connect_timeout: float,
    audit_topic: str,
    topics: Sequence[str],
    stages: Sequence[str],
    grace: float,
    problems: bool,
    as_json: bool,
    no_headers: bool,
    strict: bool,
) -> int:
    """Compare what producers reported with what is stored and what was seen, by topic, stage and window.

    A window is ok, or: missing, messages were delivered and are not there; duplicate, some are there twice; unreported,
    some are there that no report speaks of (yet); pending, some may still be on their way to a stage behind the
    brokers. Exit code 1 when something is missing. Times are UTC, by the producers' clocks.
    """
    from fastlog.audit.cluster import AuditedCluster

    if zookeeper is not None and ctx.get_parameter_source("brokers") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--zookeeper contradicts --brokers")
    main = AuditedCluster(brokers=brokers if zookeeper is None else None, zookeeper=zookeeper, timeout=connect_timeout)
    others = dict(_named(item, connect_timeout) for item in stages)
    if len(others) < len(stages):
        raise click.UsageError("two stages have the same name")
    rows = _audited(main, others, audit_topic, topics, round(grace * 1000))
    shown = [row for row in rows if not problems or row.state != "ok"]
    if as_json:
        for row in shown:
            print(in_json(_object(row)))
    else:
        show(_NAMES, [_line(row) for row in shown], False, no_headers)
    _note_gaps(rows)
    bad = [row for row in rows if row.missing or (strict and (row.duplicates or row.unreported))]
    note(
        f"{counted(len(rows), 'window')}: {counted(sum(row.missing for row in rows), 'message')} missing,"
        f" {sum(row.duplicates for row in rows)} duplicates, {sum(row.unreported for row in rows)} unreported"
    )
    return EXIT_FAILED if bad else EXIT_DONE


def _audited(
    main: AuditedCluster, others: dict[str, AuditedCluster], audit_topic: str, topics: Sequence[str], grace_ms: int
) -> list[Row]:
    from fastlog.audit.compare import aged, common_window, compare, reports_lost, stages_seen

    # Reports come first: whatever they speak of was stored before, so it is there when the topics are read.
    parts, unexpected = [], 0
    for cluster in (main, *others.values()):
        found, count = cluster.events(audit_topic)
        parts += found
        unexpected += count
    if unexpected:
        note(f"{counted(unexpected, 'message', 'was')} passed over in {audit_topic}: no monitoring event")
    if not parts:
        raise CommandError(
            f"topic {audit_topic!r} does not exist",
            "no producer has reported there",
            "give producers audit.topic, or name the topic with --audit-topic",
            EXIT_USAGE,
        )
    events = [event for part in parts for event in part]
    lost = reports_lost(events)
    if lost:
        note(f"{lost} reports are not in {audit_topic} (any more): what they spoke of counts as unreported")
    reported = {event.topic for event in events}
    for topic in sorted(set(topics) - reported):
        note(f"no producer has reported on {topic}: it is audited only where producers have audit.topic")
    wanted = sorted(set(topics) or reported - {audit_topic})
    events = [event for event in events if event.topic in wanted]
    window_ms = common_window(events)
    reports = aged(parts)
    stages = [
        cluster.count(name, topic, window_ms, lags=name != _BROKERS)
        for topic in wanted
        for name, cluster in ((_BROKERS, main), *others.items())
    ]
    for stage in stages:
        if stage.tally.unwrapped:
            unwrapped = stage.tally.unwrapped
            has = "has" if unwrapped == 1 else "have"
            note(f"{counted(unwrapped, 'message')} of {stage.topic} at {stage.name} {has} no envelope")
    stages += stages_seen(events, window_ms)
    return [row for stage in stages for row in compare(reports, stage, window_ms, grace_ms)]


def _named(text: str, timeout: float) -> tuple[str, AuditedCluster]:
    from fastlog.audit.cluster import AuditedCluster

    name, equals, where = text.partition("=")
    if not name or not equals or not where or name == _BROKERS:
        raise click.BadParameter(f"{text!r} is not NAME=HOST:PORT, or the name is {_BROKERS!r}", param_hint="--stage")
    if where.startswith("zk:"):
        return name, AuditedCluster(zookeeper=where.removeprefix("zk:"), timeout=timeout)
    return name, AuditedCluster(brokers=where, timeout=timeout)


def _line(row: Row) -> dict[str, Any]:
    seconds, ms = divmod(row.window_start, 1000)
    try:
        window = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + (f".{ms:03d}" if ms else "") + "Z"
    except (OverflowError, ValueError, OSError):
        window = f"{row.window_start} ms"
    return {**_object(row), "window": window}


def _object(row: Row) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "stage": row.stage,
        "window_start": row.window_start,
        "window_ms": row.window_ms,
        "sent": row.sent,
        "received": row.received,
        "missing": row.missing,
        "duplicates": row.duplicates,
        "unreported": row.unreported,
        "pending": row.pending,
        "expired": row.expired,
        "state": row.state,
        "gaps": [
            {"producer_id": producer, "server": server, "first": first, "last": last}
            for producer, server, first, last in row.gaps
        ],
    }


def _note_gaps(rows: Iterable[Row]) -> None:
    """Say which messages are missing, on stderr."""
    for row in rows:
        for producer, server, first, last in row.gaps if sys.stderr else ():
            numbers = f"number {first}" if first == last else f"numbers {first} to {last}"
            note(f"missing at {row.stage}: {row.topic}, {numbers} of producer {producer} on {server}")
