"""Requests of connections that the coordinator answers."""

from fastlog.log._arena import Arena
from fastlog.workers.net._remote import Remote

PIECE_BYTES: int
"""A piece of a frame is no longer, its head included."""
MOST_REQUEST_BYTES: int

class Forward(Remote):
    """One processor's way to the coordinator; for its loop's thread."""

    def __init__(self, arena: Arena, process: int, fd: int) -> None:
        """``fd`` is this processor's end of a socket pair that keeps the bounds of packets and does not block."""
