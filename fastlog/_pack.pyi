from collections.abc import Callable
from typing import Any

from fastlog.producer.hooks import Delivery, PartitionChoice, ProducerData

WOKEN: int
READABLE: int
WRITABLE: int

def generation() -> int:
    """A number that differs between a process and the child it forks."""

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
    sequence: int
    @property
    def frame_ends(self) -> list[int]:
        """The position behind each frame."""

    @property
    def has_tickets(self) -> bool:
        """Whether somebody follows single messages of it."""

    def compressed(
        self, compress: Callable[[int, Any], bytes], max_payload: int
    ) -> tuple[Chunk, list[tuple[int, int, list[tuple[int, int, int, object]]]]]:
        """Return the chunk with each frame's set as one wrapper, and what is too large for one.

        For each frame left out: (bytes of the compressed set, messages, tickets as (frame, position, messages,
        ticket)).
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Quota:
    """What may wait in the queue of one producer, over all its brokers."""

    messages: int
    bytes: int
    accepted: int
    max_messages: int
    max_bytes: int
    def __init__(self, max_messages: int, max_bytes: int) -> None: ...
    def has_room(self, count: int = 1) -> bool:
        """Whether so many messages fit; an empty queue takes any number."""

class Outbox:
    """The buffers of one broker, and the bell of the thread that sends what is in them.

    ``wake_fd`` is an eventfd of the caller's; ``linger_ns`` how long a frame stays open for more messages.
    """

    def __init__(self, quota: Quota, wake_fd: int, linger_ns: int) -> None: ...
    def retire(self) -> None:
        """Take nothing more in, and stop using the descriptor: it is about to be closed."""

    def close_if_empty(self) -> bool:
        """Take nothing more in, unless something is in it now; whether it is closed."""

    def close(self) -> None:
        """Take nothing more in: a buffer raises ``ClosedError``."""

    def is_empty(self) -> bool:
        """Whether no buffer holds anything."""

    def wake(self) -> None:
        """Let the sending thread look around, whatever it waits for."""

    def seal_all(self) -> None:
        """Finish every open frame: the queue is full, so waiting for them to fill up would be in vain."""

    def sleep(self, fd: int, for_writing: bool, full: bool, until_ns: int) -> int:
        """Wait until there is something to do: WOKEN, READABLE and WRITABLE are added up; 0 when it is time to take.

        ``fd`` -1 for no connection; ``until_ns`` -1 for no end. While ``full``, new messages do not count.
        """

    def take(self, everything: bool = False, max_bytes: int = ...) -> list[Chunk]:
        """Return the finished frames as chunks, those whose time is over finished first; all with ``everything``.

        About ``max_bytes`` of them: no further buffer is looked at once that many are taken.
        """

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
    def __init__(
        self,
        outbox: Outbox,
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
        self, payloads: list[bytes], start: int = 0, ticket: object = None, seal: bool = False, unbounded: bool = False
    ) -> int:
        """Add messages from index ``start`` on until the queue is full; return the index of the first one not added.

        ``unbounded`` passes over the bound; ``seal`` finishes the frame behind the last one; ``ticket`` comes back
        with what became of the messages. The caller has checked that no payload is too large.
        """

class Route:
    """The buffers that messages of one topic may go to.

    ``anywhere`` are those of messages without a key, one of which is used until a frame of it is finished; ``keyed``
    those that a key's CRC-32 chooses from, or None when that is not for compiled code to decide.
    """

    def __init__(self, anywhere: list[Buffer], keyed: list[Buffer] | None, seed: int) -> None: ...
    def choose_from(self, anywhere: list[Buffer]) -> None:
        """Replace the buffers for messages without a key."""

    def set_keyed(self, keyed: list[Buffer] | None) -> None:
        """Let a key's CRC-32 choose among these buffers; None leaves it to Python."""

    def buffer_for_any(self) -> Buffer:
        """The buffer that the next message without a key goes to."""

    def turn(self) -> None:
        """Choose another buffer for messages without a key."""

class SendPath:
    """The compiled beginning of ``Producer.send``: takes what is simple and hands the rest to ``_send_slowly``."""

    @property
    def _routes(self) -> dict[str, Route]: ...
    def _is_forked(self) -> bool: ...
    def send(
        self,
        topic: str | ProducerData | list[ProducerData],
        value: Any = None,
        *,
        key: Any = None,
        partition: PartitionChoice = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> tuple[Delivery, ...]:
        """Send a value, or a list of them, to a topic; or a list of ``ProducerData``.

        ``key`` chooses the partition by the partitioner; ``partition`` chooses it by hand: a number, -1 for any, or
        (broker id, number) when there are several brokers. ``on_delivery`` is called with each ``Delivery``.

        A ``sync`` producer returns the deliveries and raises the first error among them. An ``async`` one returns an
        empty tuple once the messages are queued.

        Raises:
            MessageTooLargeError, InvalidTopicError, WrongPartitionError: nothing was sent.
            QueueFullError: async: no room, and the settings say not to wait (any longer).
            TransportError: the broker cannot be reached; async: only at the first send to a topic.
            ClosedError, ForkedError: the producer is closed, or belongs to the parent process.
        """
