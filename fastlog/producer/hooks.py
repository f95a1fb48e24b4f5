"""What a program can hang into a producer: encoder, event handler, callback handler; and the data they handle.

The order of the hooks, for a producer of type ``async``:

1. ``event_handler.init(props)``, then ``callback_handler.init(props)``, when the producer is made.
2. ``before_enqueue(item)`` in the caller's thread; may return another item.
3. ``after_enqueue(item, added)`` in the caller's thread, also when the queue refused the item.
4. ``after_dequeuing_existing_data(item or None)`` in the batching thread: what it returns joins the batch; None
   says that the queue time is over.
5. ``before_sending_data(batch)``, called by the default event handler; another one calls it itself.
6. ``encoder.encode(event)`` for each event, then the sets are handed to the connections.
7. On close, once the queue is drained: ``last_batch_before_close()``, whose items pass 5 and 6.
8. ``event_handler.close()``, then ``callback_handler.close()``.

Source: Kafka 0.7.2, ``kafka.producer.async``; there, 8 came before the queue was drained, which lost the last batch.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from fastlog.errors import ArgumentError, BrokerError, ConfigError, FastlogError
from fastlog.message import Message
from fastlog.producer.partitioners import JavaHashPartitioner

if TYPE_CHECKING:
    from fastlog.producer._parts import Headers

_NOT_GIVEN = object()
PartitionChoice = int | tuple[int, int] | None
"""The partition that a message is sent to: None or -1 for any, a number on the only broker, or (broker id, number)."""


@dataclass(frozen=True, slots=True, init=False, match_args=False)
class ProducerData:
    """What goes to one partition of a topic: a value or a list, with the key or the partition that chooses it.

    ``ProducerData(topic, value)``, ``ProducerData(topic, key, value)``, or by keywords; ``headers`` and ``timestamp``
    are for topics of record batches, as in ``Producer.send``. ``keys``, one for each value of a list, may choose
    several partitions.

    Source of the order: Kafka 0.7.2, ``kafka.javaapi.producer.ProducerData``.
    """

    topic: str
    value: Any
    key: Any
    partition: PartitionChoice
    headers: Headers | None
    timestamp: int | None
    keys: Sequence[Any] | None

    @overload
    def __init__(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: PartitionChoice = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        keys: Sequence[Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        topic: str,
        key: Any,
        value: Any,
        /,
        *,
        partition: PartitionChoice = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> None: ...
    def __init__(
        self,
        topic: str,
        *given: Any,
        value: Any = _NOT_GIVEN,
        key: Any = None,
        partition: PartitionChoice = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        keys: Sequence[Any] | None = None,
    ) -> None:
        if len(given) == 2 and key is None and value is _NOT_GIVEN:
            key, value = given
        elif len(given) == 1 and value is _NOT_GIVEN:
            (value,) = given
        elif given or value is _NOT_GIVEN:
            raise ArgumentError("ProducerData takes (topic, value) or (topic, key, value), and a partition by its name")
        put = object.__setattr__
        put(self, "topic", topic)
        put(self, "value", value)
        put(self, "key", key)
        put(self, "partition", partition)
        put(self, "headers", headers)
        put(self, "timestamp", timestamp)
        put(self, "keys", keys)

    @property
    def values(self) -> list[Any]:
        """The value as a list: itself if it is a list or tuple, else it alone."""
        return list(self.value) if isinstance(self.value, list | tuple) else [self.value]

    @property
    def keys_of_values(self) -> list[Any] | None:
        """The keys as a list; None where none are given. Raises ``ArgumentError`` where not each value has its own."""
        if self.keys is None:
            return None
        if self.key is not None:
            raise ArgumentError("a key is that of all values, and keys are those of each: give one of the two")
        if not isinstance(self.keys, list | tuple):
            raise ArgumentError(f"keys are a list, with one for each value, not {type(self.keys).__name__}")
        if not isinstance(self.value, list | tuple):
            raise ArgumentError(f"keys are those of a list of values, not of {type(self.value).__name__}: give key")
        if len(self.keys) != len(self.value):
            raise ArgumentError(f"there are {len(self.keys)} keys for {len(self.value)} values")
        return list(self.keys)


@dataclass(frozen=True, slots=True)
class QueueItem:
    """One event on its way through the queue; ``partition`` is -1 when the broker chooses it."""

    data: Any
    topic: str
    partition: int = -1
    broker: int = -1
    """The id of the broker that gets it; -1 for any."""


class Delivery(NamedTuple):
    """What became of messages that were sent.

    ``offset`` is that of the first of them, ``next_offset`` the one behind their request's last message; both are -1
    without acknowledgement and after an error. In a compressed set of 0.7 all messages have the offset of the set.

    ``first`` is the place of the first of them among the messages of their call of ``send`` that went to the same
    partition, from 0: a call may be told of in several deliveries, and in any order. It is -1 where a delivery is that
    of a request, of whatever calls, as for the callback of a producer.
    """

    topic: str
    broker: int
    partition: int
    offset: int
    next_offset: int
    messages: int
    error: FastlogError | None = None
    first: int = 0

    @property
    def error_code(self) -> int:
        """The broker's error code; 0 for success, and for an error that is not the broker's."""
        return self.error.code if isinstance(self.error, BrokerError) else 0


class Encoder(Protocol):
    """Turns an event into a message's payload; a ``Message`` is allowed when it is not compressed."""

    def encode(self, event: Any) -> bytes | Message:
        """Return the payload for one event, or raise; what it raises is logged, and the batch counts as failed."""


class DefaultEncoder:
    """Takes bytes as they are. Text is refused: its encoding is the program's to choose."""

    def encode(self, event: Any) -> bytes:
        """Return the event, which has to be bytes, as it is. Raises ``ArgumentError`` for anything else."""
        return payload_of(event)


class StringEncoder:
    """Takes text, and encodes it as UTF-8."""

    def encode(self, event: Any) -> bytes:
        """Return a str as UTF-8. Raises ``ArgumentError`` for anything else."""
        if not isinstance(event, str):
            raise ArgumentError(f"StringEncoder takes str, not {type(event).__name__}")
        return event.encode()


class Sender(Protocol):
    """The part of the producer that an event handler sends with."""

    def multi_send(self, sets: Iterable[tuple[str, int, int, Sequence[bytes]]]) -> None:
        """Send payloads by (topic, partition, broker id), in this order; -1 for any partition or broker."""


class EventHandler(ABC):
    """Base of event handlers; the default one encodes a batch and sends it by topic and partition."""

    def init(self, props: Mapping[str, str]) -> None:  # noqa: B027 - handlers may do without
        """Called once with ``event.handler.props``."""

    @abstractmethod
    def handle(self, events: Sequence[QueueItem], sender: Sender, encoder: Encoder) -> None:
        """Send a batch. An exception is logged, the batch counts as failed, and the producer goes on."""

    def close(self) -> None:  # noqa: B027 - handlers may do without
        """Free what the handler holds. Called once, after the last batch."""


class CallbackHandler:
    """Base of callback handlers: every hook, doing nothing."""

    def init(self, props: Mapping[str, str]) -> None:
        """Called once with ``callback.handler.props``."""

    def before_enqueue(self, item: QueueItem) -> QueueItem:
        """Return the item to put into the queue in place of ``item``."""
        return item

    def after_enqueue(self, item: QueueItem, added: bool) -> None:
        """Called when the item is in the queue, or was refused."""

    def after_dequeuing_existing_data(self, item: QueueItem | None) -> Sequence[QueueItem]:
        """Return the items that join the batch in place of ``item``; None: the queue time is over, and it is sent."""
        return [] if item is None else [item]

    def before_sending_data(self, batch: Sequence[QueueItem]) -> Sequence[QueueItem]:
        """Return the batch to send in place of ``batch``."""
        return batch

    def last_batch_before_close(self) -> Sequence[QueueItem]:
        """Return items to send after everything else, when the producer is closed."""
        return []

    def close(self) -> None:
        """Called once, after everything was sent."""


class DefaultEventHandler(EventHandler):
    """Groups a batch by broker, topic and partition, encodes it, and sends all groups.

    Source: Kafka 0.7.2, ``kafka.producer.async.DefaultEventHandler``.
    """

    def __init__(self, callback_handler: CallbackHandler | None = None) -> None:
        self.callback_handler = callback_handler

    def handle(self, events: Sequence[QueueItem], sender: Sender, encoder: Encoder) -> None:
        """Encode a batch and send it, one set for each broker, topic and partition."""
        if self.callback_handler is not None:
            events = self.callback_handler.before_sending_data(events)
        groups: dict[tuple[str, int, int], list[bytes]] = {}
        for item in events:
            key = (item.topic, item.partition, item.broker)
            groups.setdefault(key, []).append(payload_of(encoder.encode(item.data)))
        if groups:
            sender.multi_send((*key, payloads) for key, payloads in groups.items())


def payload_of(value: object) -> bytes:
    """The bytes of a payload, from bytes or a plain ``Message``."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Message):
        if value.attributes:
            raise ArgumentError("a message that is compressed already cannot be sent with others in a set")
        return value.payload
    hint = "; encode it, or set encoder=fastlog.producer.StringEncoder()" if isinstance(value, str) else ""
    raise ArgumentError(f"a payload is bytes, not {type(value).__name__}{hint}")


JAVA_NAMES = {
    "kafka.serializer.DefaultEncoder": DefaultEncoder,
    "kafka.serializer.StringEncoder": StringEncoder,
    "kafka.producer.async.DefaultEventHandler": DefaultEventHandler,
    "kafka.producer.DefaultPartitioner": JavaHashPartitioner,
}
"""Classes of 0.7 that a properties file may name, and what they are here."""


def load_class(setting: str, path: str) -> Any:
    """Return what a dotted path names: ``package.module.Class`` or ``package.module:Class``.

    Raises:
        ConfigError: it names nothing that can be called.
    """
    if path in JAVA_NAMES:
        return JAVA_NAMES[path]
    module, _, name = path.replace(":", ".").rpartition(".")
    if not module or not all(part.isidentifier() for part in [*module.split("."), name]):
        raise ConfigError(f"{setting}: {path!r} is no dotted path like package.module.Class")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{setting}: cannot load {path!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{setting}: {path!r} is not a class")
    return found


def make(setting: str, path: str, wanted: str) -> Any:
    """Return an instance of the class that a setting names; it has to have the method ``wanted``."""
    kind = load_class(setting, path)
    try:
        made = kind()
    except Exception as error:
        raise ConfigError(f"{setting}: {path!r} cannot be made without arguments: {error!r}") from error
    if not callable(getattr(made, wanted, None)):
        raise ConfigError(f"{setting}: {path!r} has no method {wanted}()")
    return made


def parse_props(setting: str, text: str) -> dict[str, str]:
    """``k=v,k=v`` as a dict.

    Raises:
        ConfigError: an item without ``=``, or a name twice.
    """
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{setting}: {item!r} is malformed: write name=value,name=value")
        if name.strip() in found:
            raise ConfigError(f"{setting}: {name.strip()!r} is given twice")
        found[name.strip()] = value.strip()
    return found
