"""Numbers for idempotent producers: taken in blocks, each of which is written to the metadata log before it is used."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from fastlog.log._arena import Arena
from fastlog.log.metadata import producer_ids
from fastlog.workers.coordinator.loop import Until, Wait
from fastlog.workers.coordinator.metadata_log import MetadataLog

BLOCK = 1000
"""The numbers that are taken at once; those of a block that are not given out are lost with the process."""
BLOCK_SECONDS = 60.0
"""The longest wait for a block that another request has begun to take, before it is looked at again."""


class ProducerIds:
    """For the loop's thread, once the metadata log has been read."""

    def __init__(self, arena: Arena, metadata_log: MetadataLog) -> None:
        self._arena = arena
        self._log = metadata_log
        self._left = iter(range(0))
        self._is_taking = False

    def new(self) -> Generator[Wait, Any, int]:
        """A number that no producer has had.

        Raises:
            OSError, LogError: the next block cannot be written down.
        """
        while (found := next(self._left, None)) is None:
            if self._is_taking:
                yield Until(lambda: not self._is_taking, time.monotonic() + BLOCK_SECONDS)
                continue
            self._is_taking = True
            try:
                first = max(self._log.state.next_producer_id, self._arena.largest_producer + 1)
                yield from self._log.write([producer_ids(first + BLOCK)])
                self._left = iter(range(first, first + BLOCK))
            finally:
                self._is_taking = False
        return found
