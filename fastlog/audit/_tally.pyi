from collections.abc import Iterable
from typing import Any

from typing_extensions import Buffer

_Array = Any  # whatever gives a buffer of the right type; numpy's arrays do not tell mypy that they do
LATENCY_BOUNDS_MS: tuple[int, ...]
"""The upper bounds, in ms and ascending, of the classes in which the ages of messages are counted."""
Page = tuple[int, int, int, int, bytes]
"""Producer, server, number of the page, how many bits are set, and the 4096 bytes, words being little-endian."""

class Tally:
    """Which messages of one topic were seen, by producer and number, and how many in windows of ``window_ms``.

    For one thread at a time. A message with an envelope and without a number counts in its window alone; ``messages``
    are all, ``unwrapped`` those without a valid envelope.
    """

    messages: int
    unwrapped: int
    def __init__(self, window_ms: int) -> None: ...
    def count_entries(self, entries: Buffer, count: int, again: bool = False, now_ms: int = -1) -> None:
        """Count checked entries, none of them a wrapper (``message.spans`` gives them so). The GIL is released.

        ``again``: they may have been counted before, so one that was seen is no duplicate. ``now_ms``: the time, for
        ``latencies``; -1: not for these.

        Raises:
            BufferError: there are fewer.
        """

    def latencies(self) -> tuple[tuple[int, ...], float]:
        """How many messages were how old when they were first counted, by the time in their envelopes.

        Those up to each of ``LATENCY_BOUNDS_MS`` and above the one before, those beyond the last; and the sum of the
        ages of all of them, in ms.
        """

    def count_columns(
        self, buffer: _Array, starts: _Array, lengths: _Array, again: bool = False, now_ms: int = -1
    ) -> None:
        """Count the payloads at ``starts`` (int64) and ``lengths`` (int32) of a buffer, as those of ``NumpyBatch``.

        Raises:
            ValueError: one lies outside.
        """

    def begin_part(self) -> None:
        """The next messages come from another part of the topic, in the order in which they were stored."""

    def firsts(self) -> dict[int, int]:
        """The first number of each producer in the part that was begun last."""

    def producers(self) -> list[tuple[int, int]]:
        """Every producer whose messages have numbers, with its server."""

    def cells(self) -> list[tuple[int | None, int, int, int, int]]:
        """(Producer or None, server, start of the window, messages, of these the duplicates)."""

    def seen(self, producer_id: int, first: int, last: int) -> int:
        """How many of the numbers first … last were seen."""

    def missing(self, producer_id: int, first: int, last: int, most: int = 100) -> list[tuple[int, int]]:
        """Which of the numbers first … last were not seen, as ranges, the first ``most`` of them."""

    def changed_pages(self) -> list[Page]:
        """The pages in which numbers were seen since ``note_published`` was last called with them."""

    def note_published(self, pages: Iterable[Page]) -> None:
        """Note that pages, as ``changed_pages`` gave them, were published."""

    def merge_page(self, producer_id: int, server_id: int, number: int, bits: bytes) -> None:
        """Add what another counter has seen. Raises ``ValueError`` when it is no page."""
