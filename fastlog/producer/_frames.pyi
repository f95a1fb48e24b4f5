from collections.abc import Callable
from typing import Any

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
    sequence: int
    @property
    def frame_ends(self) -> list[int]:
        """The position behind each frame."""

    @property
    def message_sets(self) -> list[memoryview]:
        """The message set in each frame."""

    @property
    def has_tickets(self) -> bool:
        """Whether somebody follows single messages of it."""

    def compressed(
        self, compress: Callable[[int, Any], bytes], max_payload: int
    ) -> tuple[Chunk, list[tuple[int, Chunk, list[tuple[int, int, int, object]]]]]:
        """Return the chunk with each frame's set as one wrapper, and what is too large for one.

        For each frame left out: (bytes of the compressed set, the frame as it was, tickets as (frame, position,
        messages, ticket)).
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...
