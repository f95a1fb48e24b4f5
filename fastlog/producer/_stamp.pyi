from typing import Any, Protocol

class Sending(Protocol):
    """What is used of ``auditing.Sending``."""

    held: int | None
    sent: int
    payloads: list[bytes]

class Stamp:
    """Gives envelopes to the messages of one topic of one producer, and numbers when it is audited.

    ``shift_ms`` is added to the clock.
    """

    topic: str
    producer_id: int
    numbered: bool
    shift_ms: int
    def __init__(self, topic: str, server_id: int, producer_id: int, window_ms: int, numbered: bool) -> None: ...
    def size_with(self, size: int, key: Any) -> int:
        """The bytes of a payload of ``size`` bytes with its envelope."""

    def wrap_all(self, values: list[bytes], key: Any, keys: list[Any] | None = None) -> list[bytes]:
        """The payloads with an envelope each, numbered one after another; a key that is bytes or text is kept.

        ``keys``: of each, in place of ``key``.
        """

    def hold(self) -> int:
        """The next number: from it on, nothing shows in ``take_runs`` before it is released."""

    def release(self, number: int) -> None:
        """What was held is on its way, or was declared void."""

    def begin(self, sending: Sending, values: list[bytes], key: Any, keys: list[Any] | None = None) -> None:
        """Give ``sending`` its payloads, as ``wrap_all`` makes them, and hold their numbers for it.

        In one step, as ``end`` is: an interrupt comes before all of it or behind.
        """

    def end(self, sending: Sending) -> None:
        """Declare void what ``sending`` has not sent, and release its numbers; once, however often it is called."""

    def void(self, first: int, count: int) -> None:
        """So many numbers from ``first`` on may have gone to nobody."""

    def take_voids(self) -> list[tuple[int, int]]:
        """What was declared void since the last call: (first, the one behind the last)."""

    def take_runs(self) -> list[tuple[int, int, int]]:
        """Which numbers were given since the last call: (start of the window in ms, first, the one behind the last)."""
