"""``fastlog zookeeper ls`` and ``get``: what is in ZooKeeper, for who wants to see the nodes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fastlog.tools import groups_access, options
from fastlog.tools.report import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from fastlog.coordination.session import Session


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
@click.argument("path", default="/")
def ls_command(zookeeper: str, connect_timeout: float, recursive: bool, path: str) -> None:
    """Print the paths of the nodes below PATH, sorted."""
    with groups_access.session_at(zookeeper, connect_timeout) as session:
        _check(session, path)
        for found in _below(session, path.rstrip("/"), recursive):
            click.echo(found)


@click.command(
    cls=options.Command,
    name="get",
    examples=(
        "fastlog zookeeper get /brokers/ids/0 --zookeeper localhost:2181",
        "fastlog zookeeper get /consumers/views/offsets/logs/0-0",
    ),
)
@groups_access.zookeeper_option
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def get_command(zookeeper: str, connect_timeout: float, paths: tuple[str, ...]) -> None:
    """Print what the node at each PATH holds, a line each."""
    with groups_access.session_at(zookeeper, connect_timeout) as session:
        for path in paths:
            node = _check(session, path)
            click.echo(node.decode(errors="replace"))


def _below(session: Session, path: str, recursive: bool) -> Iterator[str]:
    for name in sorted(session.children(path or "/") or []):
        yield f"{path}/{name}"
        if recursive:
            yield from _below(session, f"{path}/{name}", recursive)


def _check(session: Session, path: str) -> bytes:
    """What a node holds. Raises ``CommandError`` where there is none."""
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
    return node.data
