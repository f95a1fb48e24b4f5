"""Checks the records of one batch, compressed or not, in steps of bounded work."""

from typing import Final

from typing_extensions import Buffer

from fastlog.message import DeepLimits

REASONS: Final[dict[int, str]]
"""What is wrong with a batch's records, by the ``RECORDS_`` number."""

class DeepBatch:
    """The check of one batch's records; for one thread at a time. It refers to the bytes until its last step.

    Header fields are taken as they are, except those by which records are counted and found: checksum, magic and flags
    are for ``fastlog.record_batches`` and the log's format to check.
    """

    whole_bytes: int
    """The most bytes that a step may have to decompress at once, however few it is asked for: lz4, zstd and a snappy
    block come whole. 0 where it goes on slice by slice."""
    refused_record: int | None
    """The number within the batch of the record that was refused; None otherwise, and where no record is at fault."""
    held_bytes: int
    """Bytes that are kept between two steps: of a record that is not whole yet."""

    def __init__(self, data: Buffer, limits: DeepLimits, bytes_per_piece: int = 0) -> None:
        """``data`` is one batch with its header, and nothing else.

        ``bytes_per_piece`` above 0 bounds the work by what was sent: besides the first ``codecs.FREE_PIECES``, so many
        bytes admit one gzip member, snappy block or zstd frame.

        Raises:
            InvalidMessageError: the length in the header is not that of the data, the number of records is not
                positive, there is no such codec, or lz4 or zstd frames are none.
            DecompressionLimitError: the header claims more records than the limits allow, or they allow no compression.
        """

    @property
    def count(self) -> int:
        """Records found so far, each whole and valid."""

    @property
    def max_timestamp(self) -> int | None:
        """The largest timestamp of these, in milliseconds; None before the first."""

    @property
    def max_timestamp_delta(self) -> int | None:
        """Offset of the first record that has it, minus the base offset; None before the first."""

    def step(self, most_bytes: int) -> bool:
        """Decompress and check on until all is done, or more than ``most_bytes`` bytes have been.

        Returns:
            True when the batch holds exactly the records its header tells of, False when there is more to do.

        Raises:
            InvalidMessageError: a record or the compressed data is damaged, or there are more or fewer records.
            DecompressionLimitError: more comes out than the limits allow.
            MissingCodecError: the library for a codec is not installed.
        """
