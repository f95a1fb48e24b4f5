"""What the tests of producers with a real broker share: what is in its log, and programs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

from fastlog.message import deep
from tests.harness.broker import ROOT, Broker

PARTITIONS = 4
"""Of every topic, with the broker that ``conftest`` starts."""


def messages_of(broker: Broker, topic: str, partition: int) -> list[bytes]:
    """The payloads stored in a partition, those inside wrappers one by one."""
    if not broker.has_directory(topic, partition):
        return []
    return [each.message.payload for each in deep(broker.stored_bytes(topic, partition))]


def all_messages(broker: Broker, topic: str) -> list[bytes]:
    """The payloads stored in all partitions of a topic."""
    return [payload for partition in range(PARTITIONS) for payload in messages_of(broker, topic, partition)]


def script(text: str, *arguments: object, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    """Run a program with fastlog in its path."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(text), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
