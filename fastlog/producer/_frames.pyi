from collections.abc import Callable
from typing import Any

from fastlog.producer._lane import Lane

class Chunk:
    """Finished frames in memory of their own, which nobody writes to any more; a buffer of its bytes."""

    size: int
    frame_count: int
    messages: int
    topic: str
    partition: int
    codec: int
    taken_ns: int
    attempts: int
    refusals: int
    is_overtaken: bool
    sequence: int
    lane: Lane | None
    @property
    def frame_ends(self) -> list[int]:
        """The position behind the last byte of each frame, counted from the chunk's start."""

    @property
    def message_sets(self) -> list[memoryview]:
        """The message set in each frame, or the record batch."""

    @property
    def has_tickets(self) -> bool:
        """Whether some of its messages have a ticket: a callback or receipt of their own."""

    def compressed(
        self, compress: Callable[[int, Any], bytes], max_payload: int
    ) -> tuple[Chunk, list[tuple[int, Chunk, list[tuple[int, int, int, object]]]]]:
        """Return the chunk with each frame's set as one wrapper, and what is too large for one.

        For each frame left out: (bytes of the compressed set, the frame as it was, tickets as (frame, place of the
        first message in its call, messages, ticket)).
        """

    def compressed_batches(self, compress: Callable[[int, Any], bytes]) -> Chunk:
        """Return the chunk with the records of each batch compressed, where that makes them smaller.

        The tickets go with it.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...
