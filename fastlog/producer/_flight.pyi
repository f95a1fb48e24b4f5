from collections.abc import Collection

from fastlog.errors import FastlogError
from fastlog.producer._frames import Chunk
from fastlog.producer._tickets import Ticket
from fastlog.producer.hooks import Delivery

Event = tuple[object | None, Chunk, int, int | FastlogError | None, int, int, int, int, int]
"""Ticket or None, chunk, messages, error (a code or an exception), partition, base offset, next offset, position."""

Outcome = tuple[str, int, int | FastlogError | None, Chunk | None]
"""Topic, partition, error (None for success), and a refused frame as a chunk of its own."""

class Flight:
    """Chunks on their way over one connection, in order. For the thread that owns the connection."""

    acknowledged: bool
    report: bool
    added_chunks: int
    messages: int
    bytes: int
    delivered: int
    failed: int
    written_frames: int
    finished_frames: int
    handed_over: int
    keep_failed: bool
    retried: Collection[int]
    broker: object
    delivery_type: type[Delivery] | None
    watched: set[tuple[str, int]]
    def __init__(self, acknowledged: bool) -> None: ...
    def add(self, chunk: Chunk) -> None:
        """Take a chunk in, behind all others."""

    def has_unsent(self) -> bool:
        """Whether some frame is not written, or only in part."""

    def has_answers(self) -> bool:
        """Whether ``write`` put answers by (or the beginning of one)."""

    def is_torn(self) -> bool:
        """Whether a frame is written in part."""

    def head(self) -> Chunk | None:
        """The oldest chunk that is not finished, or None."""

    def finished_up_to(self) -> int:
        """The highest sequence number such that no chunk with it or a lower one is left."""

    def unfinished_frames(self) -> int:
        """Frames written and not finished: requests without an answer yet."""

    def take_events(self) -> list[Event | Ticket]:
        """What happened since the last call: to frames with tickets, to failed ones, and with ``report`` to all."""

    def take_outcomes(self) -> list[Outcome]:
        """Answers since the last call: refusals with a code of ``retried``, and all that came for ``watched`` ones."""

    def take_failures(self) -> list[Chunk]:
        """The frames that failed since the last call, each a chunk, when ``keep_failed`` is set."""

    def write(self, fd: int, max_frames: int) -> int:
        """Hand frames to the kernel until none is left, ``max_frames`` are out, the inbox is full, or 100 ms are over.

        Answers that come meanwhile are put by for ``receive``. Returns the bytes written. Raises OSError when the
        connection is broken.
        """

    def receive(self, fd: int) -> int:
        """Read what has come and finish the frames it answers; the bytes read, 0 at the end, -1 when nothing was there.

        Raises OSError when the connection is broken, and ProtocolError when what came is no answer to what was sent.
        """

    def rewind(self) -> int:
        """Go back, after a break, to the first frame that is not finished; the messages that may be stored already."""

    def drop_head(self, error: FastlogError) -> None:
        """Fail what is left of the oldest chunk. Only after ``rewind``, or when nothing of it is written."""

    def give_up(self, chunk: Chunk, error: FastlogError) -> None:
        """Fail a chunk that is not among those on their way."""

    def number(self, chunk: Chunk) -> None:
        """Give a chunk that is kept elsewhere its place behind all others."""

    def has_any(self, topic: str, partition: int) -> bool:
        """Whether anything for a partition is on its way."""

    def pull_back(self, topic: str, partition: int) -> list[Chunk]:
        """Take out, as chunks, all frames for a partition of which nothing is written."""

    def remove_movable(self) -> list[Chunk]:
        """Take out the untouched chunks whose partition the broker chooses: any other broker may have them as well."""
