"""The ceiling: what a C producer, a C broker and a C reader reach on this machine at this moment.

``minibroker`` (``minibroker.c``, which says what it does and what it leaves out) stands in for fastlog, ``loadgen`` for
its clients, with the same requests, message format, checks and flush policy. The producer copies each message into its
frame and computes its checksum; the reader walks every answer, sends the next request, and computes every checksum.

Both are processes of their own on the loopback interface. They are always ended, and what they wrote is removed.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastlog.config import BrokerConfig
from perf.ceiling import loadgen, programs

SOURCE = Path(__file__).with_name("minibroker.c")
TOPIC = "ceiling"

Figures = dict[str, Any]


def build() -> None:
    """Compiles both programs. Raises ``programs.CannotBuild``."""
    loadgen.build()
    programs.build(SOURCE)


def flush_arguments(policy: Mapping[str, object]) -> list[str]:
    """minibroker's options for a flush policy given by fastlog's settings; their defaults where it names none.

    Raises ``ConfigError`` for a name or value that fastlog would not take.
    """
    config = BrokerConfig.from_properties({name: str(value) for name, value in policy.items()})
    options = {
        "--flush-messages": config.flush_interval_messages,
        "--flush-bytes": config.flush_bytes,
        "--flush-ms": config.flush_interval_ms,
        "--flush-min-ms": config.flush_min_interval_ms,
        "--preallocate": config.preallocate_bytes if config.preallocate else 0,
        "--writeback": config.early_writeback_bytes,
    }
    return [word for name, value in options.items() for word in (name, str(value))]


class Ceiling(programs.Running):
    """A minibroker with an empty log in ``directory``, running inside the ``with`` block; for one thread.

    ``policy`` holds fastlog's settings by their property names. ``port``, ``crc`` (the way checksums are computed) and
    ``log`` (the partition's only file) are there once it runs. The log stays behind for whoever gave the directory.
    ``congestion`` is what both directions use, as fastlog's do between sockets of one machine; "" leaves the system's.
    """

    def __init__(self, directory: Path, policy: Mapping[str, object] | None = None, congestion: str = "reno") -> None:
        self.log = directory / f"{TOPIC}-0" / f"{0:020}.kafka"
        command = [str(programs.build(SOURCE)), "--directory", str(directory), "--topic", TOPIC]
        super().__init__([*command, *flush_arguments(policy or {}), "--congestion", congestion])
        self._options = {"congestion": congestion}

    def _run(self, mode: str, options: Mapping[str, object], timeout: float) -> Figures:
        place = {"port": self.port, "topic": TOPIC, "timeout": max(1, int(timeout)), **self._options}
        try:
            result = loadgen.run(mode, {**place, **options}, timeout)
        except RuntimeError as error:
            # The broker ends a connection that it refuses, or itself when the disk fails: its word is the reason.
            raise RuntimeError(f"{error}; {self.stop()}") from None
        return {**result, "crc": self.crc}

    def produce(self, messages: int, batch: int = 50, size: int = 200, timeout: float = 600.0) -> Figures:
        """Appends; ``rate`` (messages a second) ends when the broker says that everything was checked and written.

        ``visible_rate`` ends when a reader can see everything, which is after its flush.
        """
        options = {"messages": messages, "batch": batch, "size": size, "encode": "each"}
        return self._run("produce", options, timeout)

    def consume(self, fetch_size: int = 1 << 20, timeout: float = 600.0) -> Figures:
        """Reads the whole log; ``rate`` (messages a second) ends with the last checksum."""
        return self._run("fetch", {"max_bytes": fetch_size, "check": "crc"}, timeout)


@contextlib.contextmanager
def _scratch(directory: Path | None) -> Any:
    with tempfile.TemporaryDirectory(prefix="ceiling-", dir=directory) as path:
        yield Path(path)


def produce(
    messages: int,
    batch: int = 50,
    size: int = 200,
    policy: Mapping[str, object] | None = None,
    directory: Path | None = None,
) -> Figures:
    """One run of the producer's ceiling: at least ``rate`` (messages a second) and ``seconds``.

    The log is written below ``directory`` (else the system's temporary one, which may be memory) and removed.

    Raises:
        programs.CannotBuild: there is no C compiler.
        RuntimeError: a program failed; the message is its own line.
    """
    with _scratch(directory) as place, Ceiling(place, policy) as ceiling:
        return _complete(ceiling.produce(messages, batch, size), messages)


def consume(
    messages: int,
    fetch_size: int = 1 << 20,
    size: int = 200,
    policy: Mapping[str, object] | None = None,
    directory: Path | None = None,
) -> Figures:
    """One run of the consumer's ceiling, from the page cache: the log is written just before, which is not timed.

    Raises as ``produce``.
    """
    with _scratch(directory) as place, Ceiling(place, policy) as ceiling:
        ceiling.produce(messages, 50, size)
        return _complete(ceiling.consume(fetch_size), messages)


def _complete(figures: Figures, messages: int) -> Figures:
    if figures["messages"] != messages:
        raise RuntimeError(f"{figures['messages']} messages instead of {messages}")
    return figures
