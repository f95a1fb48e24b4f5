"""The ceiling of today's protocol: a C producer, a C broker and a C reader, on this machine at this moment.

``batchbroker`` (``batchbroker.c``, which says what it does and what it leaves out) stands in for fastlog, ``batchgen``
for its clients; ``batchgen`` drives fastlog as well. Batches are made once and sent again and again, so that nearly all
the work is the broker's; every answer is checked, and of what is read every length, offset, count and checksum.

All are processes of their own on the loopback interface. They are always ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perf.ceiling import programs

GENERATOR = Path(__file__).with_name("batchgen.c")
BROKER = Path(__file__).with_name("batchbroker.c")
TOPIC = "ceiling"


def build() -> None:
    """Compiles both programs. Raises ``programs.CannotBuild``."""
    programs.build(GENERATOR)
    programs.build(BROKER)


def run(mode: str, options: Mapping[str, object], timeout: float = 600.0) -> dict[str, Any]:
    """One run of ``batchgen <mode>``; see ``programs.figures``."""
    place = {"topic": TOPIC, "timeout": max(1, int(timeout))}
    return programs.figures(programs.build(GENERATOR), mode, {**place, **options}, timeout)


class Ceiling(programs.Running):
    """A batchbroker with empty partitions in ``directory``, running inside the ``with`` block; for one thread.

    The logs stay behind for whoever gave the directory.
    """

    def __init__(self, directory: Path, partitions: int = 1, congestion: str = "reno") -> None:
        self._directory = directory
        self._options: dict[str, object] = {"partitions": partitions, "congestion": congestion}
        command = [str(programs.build(BROKER)), "--directory", str(directory), "--topic", TOPIC]
        super().__init__([*command, "--partitions", str(partitions), "--congestion", congestion])

    def log(self, partition: int = 0) -> Path:
        """The path of a partition's only segment."""
        return self._directory / f"{TOPIC}-{partition}" / f"{0:020}.log"

    def run(self, mode: str, /, **options: object) -> dict[str, Any]:
        """One run of ``batchgen`` against it. Raises ``RuntimeError`` with what either of the two says."""
        try:
            return run(mode, {"port": self.port, **self._options, **options})
        except RuntimeError as error:
            raise RuntimeError(f"{error}; {self.stop()}") from None
