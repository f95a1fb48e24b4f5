class Inbox:
    """Cuts what a socket gives into frame bodies. For one thread.

    Small frames come through a scratch buffer, many in one read; the body of a larger one is received where it stays.
    An announced size is a claim: beyond ``trusted_bytes``, which is what the caller itself asked for, memory grows
    with the bytes that came, and a size above ``max_bytes`` is refused.
    """

    max_bytes: int
    trusted_bytes: int

    def __init__(self, max_bytes: int, least_bytes: int = 2) -> None: ...
    @property
    def held_bytes(self) -> int:
        """Bytes received and not yet handed out."""

    def frame_or_none(self) -> memoryview | None:
        """The body of the next frame, or None until it is whole. The bytes are the caller's.

        Raises:
            ProtocolError: the announced size is out of bounds. The stream cannot be followed any further.
        """

    def receive(self, fd: int, wait_ms: int = 0) -> bool:
        """Receive what comes from a socket, for up to ``wait_ms`` or until a frame is whole; False when nothing came.

        Returns early when a signal comes. To be called when ``frame_or_none`` has none.

        Raises:
            EOFError: the other side has closed.
            OSError: the connection broke.
        """

    def take(self, fd: int, wait_ms: int = 0) -> memoryview | None:
        """``frame_or_none``, where it has none after one ``receive``. Raises as both."""

    def is_quiet(self, fd: int) -> bool:
        """Whether nothing has come that was not handed out yet: no bytes, and no end of the connection."""

    def rest(self) -> None:
        """Keep no memory for many large frames."""
