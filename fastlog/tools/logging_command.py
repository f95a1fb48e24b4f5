"""``fastlog logging``: tells a broker that runs what to write to its log, by a signal to its supervisor."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from fastlog.config import BrokerConfig
from fastlog.segment_files import LOCK_NAME
from fastlog.tools import options
from fastlog.tools.report import EXIT_FAILED, EXIT_USAGE, CommandError, note

LEVELS = ("debug", "info", "warning", "error")


@click.command(
    cls=options.Command,
    name="logging",
    examples=(
        "fastlog logging --log-dir /data/fastlog --requests on",
        "fastlog logging --log-dir /data/fastlog --level warning --requests off",
    ),
    exit_codes=(
        ("0", "the broker was told"),
        ("1", "it could not be told"),
        ("2", "wrong usage, or no broker runs there"),
        ("130, 143", "stopped by SIGINT, by SIGTERM"),
    ),
)
@options.option(
    "--log-dir",
    "directory",
    group="Selection",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=BrokerConfig().log_dirs[0],
    show_default=True,
    help="A log directory of the broker.",
)
@options.option("--level", group="Selection", type=click.Choice(LEVELS), help="The least level of what is written.")
@options.option(
    "--requests", group="Selection", type=click.Choice(["on", "off"]), help="A line for each request, or none."
)
def logging_command(directory: Path, level: str | None, requests: str | None) -> None:
    """Change what a broker that runs writes to its log, until it stops.

    For the user that the broker runs as, or root. The broker's log says what holds from then on, and /health of its
    monitor has it under "logging". Lines of requests are written whatever the level. No client notices.
    """
    if level is None and requests is None:
        raise click.UsageError("say what to change: --level, --requests or both")
    from fastlog.logs import SIGNALS  # after --help
    from fastlog.tools.daemon import holder, is_held

    lock = directory.resolve() / LOCK_NAME
    wanted: list[tuple[str | None, bool | None]] = [(level, None)] if level is not None else []
    wanted += [(None, requests == "on")] if requests is not None else []
    numbers = [number for switch in wanted for number, meant in SIGNALS.items() if meant == switch]
    pid = holder(lock) if is_held(lock) else 0
    if not pid:
        raise CommandError(
            f"no broker of this user runs on {directory}",
            "nobody whom this user sees holds the lock on it",
            "see that it is the directory meant, and run this as the user that the broker runs as",
            EXIT_USAGE,
        )
    if not all(_catches(pid, number) for number in numbers):
        raise CommandError(
            f"process {pid} cannot be told",
            "it is a broker of an earlier fastlog, or one that is just starting",
            "try again in a moment, or restart it with --set trace.requests=true",
            EXIT_FAILED,
        )
    for number in numbers:
        os.kill(pid, number)
    note(f"told process {pid}; its log says what holds now")


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.M)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
