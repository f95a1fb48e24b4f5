from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastlog.producer._buffer import Buffer
from fastlog.producer._parts import Headers
from fastlog.producer._stamp import Stamp
from fastlog.producer.hooks import Delivery, PartitionChoice, ProducerData

T = TypeVar("T")

def generation() -> int:
    """A number that differs between a process and the child it forks."""

class Route:
    """The buffers that messages of one topic may go to.

    ``anywhere`` are those of messages without a key, one of which is used until a frame of it is finished; ``keyed``
    those that a key's CRC-32 chooses from, or None when that is not for compiled code to decide.
    """

    def __init__(self, anywhere: list[Buffer], keyed: list[Buffer] | None, seed: int) -> None: ...
    def choose_from(self, anywhere: list[Buffer]) -> None:
        """Replace the buffers for messages without a key."""

    def set_keyed(self, keyed: list[Buffer] | None, mask: int = 0x7FFFFFFF) -> None:
        """Have a key's CRC-32, masked by ``mask``, choose among these buffers; None leaves keys to Python."""

    def set_by_hand(self, partition: PartitionChoice, buffer: Buffer) -> None:
        """Have compiled code use a buffer for messages that are sent to this partition explicitly."""

    def forget_by_hand(self) -> None:
        """Leave partitions that are asked for to Python, until it has looked at each again."""

    def buffer_for_any(self) -> Buffer:
        """The buffer that the next message without a key goes to."""

    def turn(self) -> None:
        """Choose another buffer for messages without a key."""

class Routes:
    """The routes that compiled code may use, by topic."""

    def stamp_with(self, stamps: Callable[[str], Stamp | None]) -> None:
        """Give the messages of topics the envelopes of what ``stamps`` returns for the topic, unless that is None."""

    def set(self, topic: str, route: Route) -> None:
        """Have the compiled path use a route for a topic from now on, unless the topic is held."""

    def hold(self, topic: str, items: deque[T], item: T) -> None:
        """Leave a topic to Python until as many calls of ``let_go``: messages before the next are in no buffer yet. The
        item joins those that wait in the same step, between the parts of which no signal is handled."""

    def let_go(self, topic: str, failed: bool) -> bool:
        """Whether that was the last of them; ``failed``: the message comes into no buffer."""

    @property
    def waiting(self) -> int:
        """Messages of held topics that were not let go."""

    @property
    def failed(self) -> int:
        """How many messages failed before they were in a buffer."""

    def is_held(self, topic: str | None = None) -> bool:
        """Whether the topic is held; None: whether any topic is."""

    def clear(self) -> None:
        """Forget all routes, so that Python handles the messages of every topic."""

class SendPath:
    """The compiled beginning of ``Producer.send``: takes what is simple and hands the rest to ``_send_slowly``."""

    @property
    def _routes(self) -> Routes: ...
    def _is_forked(self) -> bool: ...
    def send(
        self,
        topic: str | ProducerData | list[ProducerData],
        value: Any = None,
        *,
        key: Any = None,
        partition: PartitionChoice = None,
        on_delivery: Callable[[Delivery], object] | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        keys: Sequence[Any] | None = None,
    ) -> tuple[Delivery, ...]:
        """Send a value, or a list of them, to a topic; or a list of ``ProducerData``.

        ``key`` chooses the partition by the partitioner; ``partition`` chooses it by hand: a number, -1 for any, or
        (broker id, number) when there are several brokers. ``on_delivery`` is called with each ``Delivery``.

        A topic of record batches keeps the key; ``headers``, a mapping or pairs of a name and a value, as bytes or
        text, where a value may be None; and ``timestamp``, ms since 1970, by default those of now. A key with the value
        None is a null there. All values of a list get the same; ``keys``, a list in place of ``key``, has one for each
        of them, or None, and each value goes where it would go by itself, in order within a partition.

        A ``sync`` producer returns the deliveries and raises the first error among them. An ``async`` one returns an
        empty tuple once the messages are queued.

        Raises:
            MessageTooLargeError, InvalidTopicError, WrongPartitionError, ArgumentError: nothing was sent.
            UnsupportedFeatureError: headers, or a timestamp, for a topic of Kafka 0.7; nothing was sent.
            QueueFullError: async: no room, and the settings say not to wait (any longer).
            TransportError: the broker cannot be reached; async: only at the first send to a topic.
            ClosedError, ForkedError: the producer is closed, or belongs to the parent process.
        """
