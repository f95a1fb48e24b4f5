"""Messages of Kafka 0.7 as record batches of today: for the broker, which serves the one to readers of the other.

``_upconvert.pyx`` says which record has which offset. Functions are safe in any thread, as long as nobody writes into
the buffer during the call.
"""

from typing import Final

from typing_extensions import Buffer

from fastlog.message import DeepLimits

CONVERTED: Final = 0
CONVERT_FULL: Final = 1
CONVERT_CUT: Final = 2
CONVERT_WRAPPER: Final = 3
CONVERT_DAMAGED: Final = 4

class OpenedSet:
    """The messages of one compressed set as records, in steps of bounded work; for one thread.

    ``payload`` is the compressed data of the wrapper that lies at [``offset``, ``next_offset``) of its partition.
    """

    def __init__(self, payload: Buffer, codec: int, offset: int, next_offset: int, limits: DeepLimits) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def count(self) -> int:
        """How many messages it has, once they are counted."""

    def convert(self, wanted: int, most_bytes: int = -1) -> tuple[bytes, int, bool]:
        """``(batch, offset to go on from, is it all)`` of the messages from the offset ``wanted`` on; for tests.

        Raises:
            InvalidMessageError: it is damaged.
            DecompressionLimitError: it goes over a limit.
            UnfitSetError: it holds more messages than it has bytes.
        """

def convert(
    buffer: Buffer, offset: int, wanted: int, limits: DeepLimits, most_bytes: int = -1
) -> tuple[bytes, int, int]:
    """``(batch, offset to go on from, status)`` of stored messages, the first of which begins at ``offset``.

    The batch has the messages from the one on that holds the offset ``wanted``, at most ``most_bytes`` of them unless
    the first one alone is larger; it is empty where there is none. The status says why it ends there: ``CONVERTED``,
    ``CONVERT_FULL``, ``CONVERT_CUT`` or ``CONVERT_DAMAGED``. Raises what ``OpenedSet.convert`` does. For tests.
    """

class SetBatches:
    """A produced message set as whole batches for a topic of today, in steps of bounded work; for one thread.

    ``entries`` are whole, checked messages. All records have the time ``time_ms``. A batch takes at most ``most_bytes``
    before it is compressed, which it is as the first compressed set among the entries; a set that needs more makes
    several.
    """

    def __init__(self, entries: Buffer, time_ms: int, most_bytes: int, limits: DeepLimits) -> None: ...
    @property
    def made(self) -> bytes:
        """The batches, their offsets all beginning at 0."""

    @property
    def count(self) -> int:
        """How many records they have."""

    def step(self, most_bytes: int) -> bool:
        """Do a part of the work, about ``most_bytes`` of messages; whether it is done.

        Raises:
            InvalidMessageError, DecompressionLimitError: a compressed set is damaged, or goes over a limit.
            MessageTooLargeError: one message alone is larger than a batch may be.
        """
