"""``python -m perf.peers``: tries the peers by hand, one after another, and prints what they reach."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from perf.ceiling.programs import CannotBuild
from perf.peers import Figures, Peer, PeerFailed, all_peers

ROOT = Path(__file__).resolve().parents[2]


def line(peer: Peer, what: str, figures: Figures) -> str:
    """One result as a line of text."""
    with_client = f"{figures['broker']}, {figures['client']}"
    return f"{peer.name:18}{what:9}{figures['rate'] / 1e3:12.1f} k/s{figures['seconds']:9.2f} s   {with_client}"


def measure(peer: Peer, messages: int | None, size: int, batch: int, rounds: int) -> None:
    """Starts the peer, prints its figures, and leaves nothing of it behind."""
    count = messages or peer.default_messages
    scratch = ROOT / ".tmp"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="peer-", dir=scratch, ignore_cleanup_errors=True) as directory:
        try:
            peer.start(Path(directory))
            for _ in range(rounds):
                click.echo(line(peer, "produce", peer.produce(count, size, batch)))
                click.echo(line(peer, "consume", peer.consume(count)))
        finally:
            peer.stop()


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([peer.name for peer in all_peers()]))
@click.option("--messages", type=click.IntRange(1), help="Messages of each run; else as many as suit the peer.")
@click.option("--size", default=200, show_default=True, type=click.IntRange(1, 60_000), help="Bytes of a message.")
@click.option("--batch", default=50, show_default=True, type=click.IntRange(1, 4096), help="Of peers that have them.")
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(1, 100))
def main(names: tuple[str, ...], messages: int | None, size: int, batch: int, rounds: int) -> None:
    """Measure the peers NAMES, or all that are installed. Ends with status 1 when one failed."""
    failed = False
    for peer in all_peers():
        if names and peer.name not in names:
            continue
        reason = peer.available()
        if reason is not None:
            click.echo(f"{peer.name:18}absent: {reason}")
            continue
        try:
            measure(peer, messages, size, batch, rounds)
        except (PeerFailed, CannotBuild) as error:
            failed = True
            click.echo(f"{peer.name:18}failed: {error}", err=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
