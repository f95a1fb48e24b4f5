"""Reads how much a frame of lz4 or zstd may hold from the headers of its blocks, and opens none of them."""

from typing_extensions import Buffer

def lz4_most_bytes(data: Buffer) -> int:
    """Return the most bytes that can come out of the one frame that the data is.

    Raises:
        InvalidMessageError: it is no whole frame, bytes follow it, or it is one that Kafka does not read: with blocks
            that depend on each other, or with a dictionary.
    """

def zstd_most_bytes(data: Buffer) -> tuple[int, int]:
    """Return the number of frames, one at least, and the most bytes that can come out of all of them.

    Exact where the frames tell how much they hold. A frame with a dictionary, and one that readers skip, is damage.

    Raises:
        InvalidMessageError: the data is anything but whole frames.
    """

def unwritten(size: int) -> bytearray:
    """Return a buffer whose bytes are whatever the memory held: it is to be written before it is read."""
