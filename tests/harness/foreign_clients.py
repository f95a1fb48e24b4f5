"""Clients that pip does not have, as programs of ours: ``FASTLOG_CLIENTS`` names the directory where they were built.

``python -m tests.compat.clients`` (``scripts/compat``) makes it, and sets the variable for what it runs.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

VARIABLE = "FASTLOG_CLIENTS"
SOURCES = Path(__file__).parents[1] / "compat"
MEMBERS = {
    "sarama": ("sarama", "range"),
    "franz-go": ("franz-go", "range"),
    "franz-go-cooperative": ("franz-go", "cooperative-sticky"),
    "kafkajs": ("kafkajs", "roundrobin"),
    "platformatic": ("platformatic", "roundrobin"),
}
"""By kind of member: the program, and the strategy it is given."""
JAVASCRIPT = ("kafkajs", "platformatic")


def command(name: str) -> list[str]:
    """The words that run a client's program.

    Raises:
        KeyError: ``FASTLOG_CLIENTS`` is not set.
    """
    directory = Path(os.environ[VARIABLE])
    if name not in JAVASCRIPT:
        return [str(directory / name)]
    # A client that wants a newer Node than distributions have brings one.
    own = sorted((directory / name).glob("node_modules/node-*/bin/node"))
    return [str(own[0]) if own else shutil.which("node") or "node", str(directory / name / "client.js")]


def member_command(kind: str) -> list[str]:
    """The words that run a member, before ADDRESS GROUP TOPIC DIARY."""
    return [*command(MEMBERS[kind][0]), "member"]


def are_there(*names: str) -> bool:
    """Whether all of these client programs were built."""
    return VARIABLE in os.environ and all(Path(command(name)[-1]).exists() for name in names)
