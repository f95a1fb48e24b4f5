from collections.abc import Sequence

from fastlog.producer._lane import Lane
from fastlog.producer._parts import Parts

class Quota:
    """What may wait in the queue of one producer, over all its brokers."""

    messages: int
    bytes: int
    accepted: int
    max_messages: int
    max_bytes: int
    def __init__(self, max_messages: int, max_bytes: int) -> None: ...
    def has_room(self, count: int = 1) -> bool:
        """Whether ``count`` messages fit; an empty queue takes any number."""

class Shelf:
    """What the buffers of one broker share with the thread that empties them."""

class Buffer:
    """The open and finished frames of one topic and partition of one broker.

    ``header`` is the frame's header with zeros for what is not known yet; ``batch_bytes`` bounds the set in a frame
    unless a single message is larger.
    """

    topic: str
    partition: int
    codec: int
    broker: int
    max_payload: int
    lane: Lane | None
    def __init__(
        self,
        shelf: Shelf,
        broker: int,
        topic: str,
        partition: int,
        codec: int,
        header: bytes,
        acknowledged: bool,
        batch_messages: int,
        batch_bytes: int,
        max_payload: int,
    ) -> None: ...
    def check(self, size: int) -> None:
        """Raise ``MessageTooLargeError`` for a payload of more than ``max_payload`` bytes."""

    def append(self, payload: bytes) -> None:
        """Add one message, whatever the queue holds. Raises ``MessageTooLargeError``."""

    def extend(
        self,
        payloads: Sequence[bytes | None],
        start: int = 0,
        ticket: object = None,
        seal: bool = False,
        unbounded: bool = False,
        parts: Parts | None = None,
        keys: Sequence[bytes | None] | None = None,
    ) -> int:
        """Add messages from index ``start`` on until the queue is full; return the index of the first one not added.

        ``unbounded`` passes over the bound; ``seal`` finishes the frame behind the last one; ``ticket`` comes back
        with what became of the messages; ``parts`` is what records have besides their values, ``keys`` their
        keys where each has its own. The caller has checked
        that no payload is too large, and that none is None where messages have no nulls.
        """
