from fastlog.producer._buffer import Quota, Shelf
from fastlog.producer._frames import Chunk

WOKEN: int
READABLE: int
WRITABLE: int

class Outbox(Shelf):
    """The buffers of one broker, and the eventfd that wakes the thread that sends what is in them.

    ``linger_ns``: how long a frame stays open for more messages. The eventfd is closed with the object.
    """

    behind: bool
    """Frames wait to be written for answers to those before them: batches that are open go on growing."""

    def __init__(self, quota: Quota, linger_ns: int) -> None: ...
    def retire(self) -> None:
        """Take nothing more in, and close the eventfd: no thread sleeps here any more."""

    def close_if_empty(self) -> bool:
        """Take nothing more in, unless something is in it now; whether it is closed."""

    def close(self) -> None:
        """Take nothing more in: a buffer raises ``ClosedError``."""

    def is_empty(self) -> bool:
        """Whether no buffer of the outbox holds a message."""

    def wake(self) -> None:
        """Wake the sending thread, whatever it waits for."""

    def seal_all(self) -> None:
        """Finish every open frame without waiting for it to fill up."""

    def sleep(self, fd: int, for_writing: bool, full: bool, until_ns: int) -> int:
        """Wait until there is something to do: WOKEN, READABLE and WRITABLE are added up; 0 when it is time to take.

        ``fd`` -1 for no connection; ``until_ns`` -1 for no end. While ``full``, new messages do not count.
        """

    def take(self, everything: bool = False, max_bytes: int = ...) -> list[Chunk]:
        """Return the finished frames as chunks, those whose time is over finished first; all with ``everything``.

        About ``max_bytes`` of them: no further buffer is looked at once that many are taken.
        """
