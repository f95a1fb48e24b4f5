"""Measures, checks, reads and builds spans of messages in the format of Kafka 0.7.

Every function walks top-level entries only and is safe in any thread and process, as long as nobody writes into the
buffer during the call. ``docs/format.md`` describes the bytes.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from typing_extensions import Buffer

LENGTH_BYTES: Final = 4
LEAST_ENTRY_BYTES: Final = 9
ENTRY_HEADER_BYTES: Final = 10
SCAN_OK: Final = 0
SCAN_TAIL: Final = 1
SCAN_SIZE: Final = 2
SCAN_MAGIC: Final = 3
SCAN_CODEC: Final = 4
SCAN_CRC: Final = 5
SCAN_TOO_LARGE: Final = 6

class ScanResult(NamedTuple):
    """What one walk over a message set found."""

    valid_bytes: int
    """End of the last whole and valid entry: where the walk stopped."""
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    """Entries before ``valid_bytes``."""
    wrappers: int
    """Of these, the compressed ones."""
    suspicious: int
    """Of these, uncompressed ones whose payload begins like gzip or xerial snappy (a codec bit may be lost)."""
    status: int
    """Why the walk stopped: one of the ``SCAN_`` numbers."""

def scan(buffer: Buffer, max_payload: int = -1) -> ScanResult:
    """Return how far the entries are whole and valid, and why the walk stopped there.

    Each entry is checked for its length, magic, attributes, payload size and CRC, in this order. ``SCAN_OK``: the bytes
    end with an entry. ``SCAN_TAIL``: they end inside one; when ``valid_bytes`` is 0 that entry is the first, which 0.7
    calls an error. A negative ``max_payload`` is no limit. A wrapper's own CRC is checked, not what is inside.
    The GIL is released for long spans.
    """

def entries(buffer: Buffer, base_offset: int = 0) -> list[tuple[int, int, int, int, bytes]]:
    """Return ``(offset, next_offset, magic, attributes, payload)`` of each entry that is whole and valid.

    Stops before the first one that is not; ``scan`` tells why. ``base_offset`` is the offset of the first byte.

    Raises:
        ValueError: ``base_offset`` is negative or so high that offsets would leave 64 bits.
    """

def payloads(buffer: Buffer) -> list[bytes]:
    """Return the payload of each entry that is whole and valid, wrappers as they are; stops where ``entries`` does."""

def find_wrapper(buffer: Buffer, position: int = 0) -> tuple[int, int, Literal[1, 2, 3]] | None:
    """Return the first wrapper at or after the entry that starts at ``position``, or None.

    The result is ``(next_position, payload_start, codec)``: ``buffer[payload_start:next_position]`` is the compressed
    set. For bytes that ``scan`` found valid: CRC and magic are not looked at again.
    """

def pack(payload_list: Sequence[bytes], codec_attribute: int = 0, magic: int = 1) -> bytes:
    """Return a message set with one entry for each payload, checksums computed.

    ``codec_attribute`` is stored as it is: the payloads must already be compressed sets when it is not 0.

    Raises:
        TypeError: a payload is not ``bytes``.
        ValueError: an unknown codec or magic, a codec with magic 0, or a payload too long for its length field.
    """

def skip_to(buffer: Buffer, target: int) -> int:
    """Return the position of the first entry that begins at or behind ``target``.

    Walks lengths alone from position 0, without checksums; ends before an entry that is not whole or too short, and
    returns where that one begins. For finding boundaries in bytes that were checked when they came.
    """

def cut(buffer: Buffer, max_bytes: int, max_payload: int) -> list[tuple[int, int, bool]]:
    """Return ``(end, entries, too_large)`` of the pieces to send a message set in, one after the other.

    A piece is at most ``max_bytes`` long, or is a single entry. One whose payload is above ``max_payload`` is a piece
    of its own, and ``too_large``. Walks lengths alone, for bytes that were checked; ends before what is not whole.
    """
