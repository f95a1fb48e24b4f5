"""Counts the messages of a set with its wrappers opened, in steps of bounded work."""

from collections.abc import Callable

from typing_extensions import Buffer

from fastlog.codecs import DecompressionBudget
from fastlog.errors import InvalidMessageError

class DeepCount:
    """The count of one set; for one thread at a time.

    ``fastlog.message.deep_count`` makes it. It refers to the bytes of the set until its last step.
    """

    count: int
    """Messages found so far, those inside wrappers counted and the wrappers not."""

    def __init__(
        self,
        entries: Buffer,
        plain: int,
        valid_bytes: int,
        budget: DecompressionBudget,
        damaged: Callable[[int, int], InvalidMessageError],
    ) -> None:
        """``entries[:valid_bytes]`` has been scanned and has ``plain`` messages that are no wrappers.

        ``budget`` has also ``enter(depth)`` and ``take_messages(count)``; ``damaged(status, position)`` makes the error
        for a scan that stopped with this status at this byte of a decompressed set.
        """

    def step(self, most_bytes: int, most_wrappers: int) -> bool:
        """Count on until all is counted, or more than so many bytes were decompressed or wrappers opened.

        Returns:
            True when ``count`` is that of the whole set, False when there is more to do.

        Raises:
            InvalidMessageError: a message inside a wrapper is damaged, or a compressed payload is.
            DecompressionLimitError: the wrappers together go over the budget.
            MissingCodecError: the library for a codec is not installed.
        """
