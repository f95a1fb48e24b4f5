"""``fastlog groups`` and ``fastlog verify-rebalance``: who is in which group, reads what, and owns what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fastlog.counts import counted
from fastlog.tools import groups_access, options
from fastlog.tools.group_rows import place_fields, shown
from fastlog.tools.report import EXIT_CODES, EXIT_DONE, EXIT_FAILED, note
from fastlog.tools.topics import show

if TYPE_CHECKING:
    from fastlog.consumer.group_view import GroupView

_GROUP_NAMES = ("group", "members", "topics", "owned", "unowned", "committed")
_MEMBER_NAMES = ("group", "member", "subscription", "topic", "threads", "owns")
_FAULT_NAMES = ("group", "topic", "partition", "owner", "fault")


@click.command(
    cls=options.Command,
    name="groups",
    examples=(
        "fastlog groups --brokers localhost:9092",
        "fastlog groups --zookeeper localhost:2181 --group views --json",
    ),
)
@groups_access.place_options
@options.option(
    "--group",
    "names",
    group="Selection",
    multiple=True,
    metavar="GROUP",
    help="Show the members of this group, what they read and own; may be repeated.",
)
@groups_access.table_options
def groups_command(place: groups_access.Where, names: tuple[str, ...], as_json: bool, no_headers: bool) -> None:
    """List the groups: live members, topics they read, partitions owned and not, offsets committed.

    Those in ZooKeeper when one is named, else those that a broker keeps. With --group, a line for each member and
    topic, and one for what was committed by members that are gone. Groups of Kafka 0.7's consumers are shown, too.
    """
    with place.open() as groups:
        views = [groups_access.known_group(groups, name) for name in names or groups.names()]
    if names:
        show(_MEMBER_NAMES, [row for view in views for row in _members(view, as_json)], as_json, no_headers)
        return
    rows = [
        {
            "group": view.name,
            "members": len(view.members),
            "topics": sorted(view.topics) if as_json else ",".join(sorted(view.topics)) or "-",
            "owned": len(view.owners),
            "unowned": sum(fault.owner is None for fault in view.faults()),
            "committed": len(view.committed),
        }
        for view in views
    ]
    show(_GROUP_NAMES, rows, as_json, no_headers)


def _members(view: GroupView, as_json: bool) -> Iterator[dict[str, Any]]:
    for consumer, subscription in view.members.items():
        topics: list[str | None] = [topic for topic, readers in sorted(view.topics.items()) if consumer in readers]
        for topic in topics or [None]:
            threads = {} if topic is None else _owned_by_thread(view, consumer, topic)
            owned = [name for names in threads.values() for name in names]
            yield {
                "group": view.name,
                "member": consumer,
                "subscription": subscription.encode().decode(),
                "topic": topic if topic is not None or as_json else "-",
                "threads": threads if as_json else len(threads),
                "owns": owned if as_json else ",".join(owned) or "-",
            }
    if not view.members:
        note(f"group {view.name!r} has no live member; {counted(len(view.committed), 'offset', 'is')} committed")


def _owned_by_thread(view: GroupView, consumer: str, topic: str) -> dict[str, list[str]]:
    from fastlog.zkpaths import thread_ids

    found: dict[str, list[str]] = {thread: [] for thread in thread_ids(consumer, view.topics[topic][consumer])}
    for partition, owner in sorted(view.owners.items()):
        if partition.topic == topic and owner in found:
            found[owner].append(str(partition.partition))
    return found


@click.command(
    cls=options.Command,
    name="verify-rebalance",
    examples=(
        "fastlog verify-rebalance --zookeeper localhost:2181 --group views",
        "fastlog verify-rebalance --group views --json",
    ),
    exit_codes=(
        ("0", "each partition of each topic that is read has a live owner"),
        ("1", "one has none, or the group has no member"),
        *EXIT_CODES[2:4],
        EXIT_CODES[-1],
    ),
)
@groups_access.place_options
@groups_access.group_option
@groups_access.table_options
def verify_rebalance_command(place: groups_access.Where, group: str, as_json: bool, no_headers: bool) -> int:
    """Check that each partition of each topic the group reads has an owner, which is a thread of a living member.

    A rebalance that is under way shows as a fault: check again a few seconds later. What is wrong is on stdout, and
    "Rebalance operation successful !" or "failed !" on stderr, as Kafka 0.7 says it.
    """
    with place.open() as groups:
        view = groups_access.known_group(groups, group)
    faults = view.faults()
    rows = [
        {
            "group": group,
            **place_fields(fault.partition, as_json),
            "owner": shown(fault.owner, as_json),
            "fault": fault.why,
        }
        for fault in faults
    ]
    if rows:
        show(_FAULT_NAMES, rows, as_json, no_headers)
    if not view.members:
        note(f"group {group!r} has no live member, so nobody reads anything: start its consumers")
    failed = bool(faults) or not view.members
    note(f"Rebalance operation {'failed' if failed else 'successful'} !")
    return EXIT_FAILED if failed else EXIT_DONE
