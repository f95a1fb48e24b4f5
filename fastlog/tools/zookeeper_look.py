"""``fastlog zookeeper ls`` and ``get``: what is in ZooKeeper, for who wants to see the nodes themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fastlog.escaping import in_json, printable
from fastlog.tools import groups_access, options
from fastlog.tools.printing import json_text
from fastlog.tools.report import EXIT_USAGE, CommandError
from fastlog.zkpaths import broker_path, holdings_path

if TYPE_CHECKING:
    from fastlog.coordination.session import Node, Session

_json_option = options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object a line.")


@click.command(
    cls=options.Command,
    name="ls",
    examples=(
        "fastlog zookeeper ls /brokers/ids --zookeeper localhost:2181",
        "fastlog zookeeper ls --recursive /consumers/views",
    ),
)
@groups_access.zookeeper_option
@options.option("--recursive", "-r", group="Selection", is_flag=True, help="All nodes below, too.")
@_json_option
@click.argument("path", default="/")
def ls_command(zookeeper: str, connect_timeout: float, recursive: bool, as_json: bool, path: str) -> None:
    """Print the paths of the nodes below PATH, sorted."""
    with groups_access.session_at(zookeeper, connect_timeout) as session:
        _check(session, path)
        for found in _below(session, path.rstrip("/"), recursive):
            click.echo(in_json({"path": found}) if as_json else printable(found))


@click.command(
    cls=options.Command,
    name="get",
    examples=(
        "fastlog zookeeper get /brokers/ids/0 --zookeeper localhost:2181",
        "fastlog zookeeper get /consumers/views/offsets/logs/0-0",
    ),
)
@groups_access.zookeeper_option
@_json_option
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def get_command(zookeeper: str, connect_timeout: float, as_json: bool, paths: tuple[str, ...]) -> None:
    """Print what the node at each PATH holds, a line each; on a terminal with what could command it escaped.

    With --json each line has path, data, base64 (true when the data is not UTF-8 and therefore encoded), version,
    ephemeral, created_ms and modified_ms.
    """
    with groups_access.session_at(zookeeper, connect_timeout) as session:
        for path in paths:
            node = _check(session, path)
            if as_json:
                click.echo(_json_line(path, node))
                continue
            text = node.data.decode(errors="replace")
            click.echo(printable(text, "\n\t") if sys.stdout.isatty() else text)


@click.command(
    cls=options.Command,
    name="forget-broker",
    examples=("fastlog zookeeper forget-broker 3 --zookeeper localhost:2181",),
)
@groups_access.zookeeper_option
@click.argument("broker", type=click.IntRange(0), metavar="ID")
def forget_broker_command(zookeeper: str, connect_timeout: float, broker: int) -> None:
    """Forget what a broker had that is gone for good.

    A broker leaves word of its topics, so that who reads a topic to its end is told that it is missing.
    """
    with groups_access.session_at(zookeeper, connect_timeout) as session:
        if session.get(broker_path(broker)) is not None:
            raise CommandError(
                f"broker {broker} is registered",
                "a live broker writes down again what it has",
                "stop it first, if it is to go for good",
            )
        _check(session, holdings_path(broker))
        session.delete(holdings_path(broker))


def _below(session: Session, path: str, recursive: bool) -> Iterator[str]:
    for name in sorted(session.children(path or "/") or []):
        yield f"{path}/{name}"
        if recursive:
            yield from _below(session, f"{path}/{name}", recursive)


def _json_line(path: str, node: Node) -> str:
    text, encoded = json_text(node.data)
    return in_json(
        {
            "path": path,
            "data": text,
            "base64": encoded,
            "version": node.version,
            "ephemeral": node.owner != 0,
            "created_ms": node.created_ms,
            "modified_ms": node.modified_ms,
        }
    )


def _check(session: Session, path: str) -> Node:
    """The node at a path. Raises ``CommandError`` where there is none."""
    if not path.startswith("/"):
        raise click.BadParameter(f"{path!r} does not begin with a slash", param_hint="PATH")
    node = session.get(path.rstrip("/") or "/")
    if node is None:
        raise CommandError(
            f"there is no node {path}",
            "nobody has made it, or it went with the session of who did",
            f"fastlog zookeeper ls {path.rstrip('/').rpartition('/')[0] or '/'} shows what is beside it",
            EXIT_USAGE,
        )
    return node
