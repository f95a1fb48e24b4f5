"""What makes a pipeline from topic to topic effectively once: an id that copies of a message share, and who drops them.

Writing is at least once: a task that is tried again writes its rows again. Where every row carries an id that does not
depend on the try, such as the place of the message that it was made of, a reader can tell the copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastlog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMN = "deduplicationId"
_SEEN = "_fastlog_seen"
_ID = "_fastlog_id"


def place_id() -> Column:
    """The place of a message that was read, as text: its topic, broker, partition, offset and index.

    ``frame.withColumn("deduplicationId", place_id())`` on what ``format("fastlog")`` has read; where several rows are
    made of one message, put something behind it that tells them apart. At most 255 bytes can be carried.
    """
    from pyspark.sql import functions as f

    return f.concat_ws("/", "topic", "broker", "partition", "offset", "idx")


def without_duplicates(frame: DataFrame, *, within: str = "1 hour") -> DataFrame:
    """The rows of a topic without the copies that a task or a batch has written again.

    ``frame`` is what ``format("fastlog")`` has read with ``envelope=true`` and the column ``deduplicationId``; rows
    without an id are never taken for copies. ``within``, for a stream, is how long an id is remembered after the batch
    that had it, in Spark's words: longer than a writer may take to try again, and than the reader rests between two
    batches. A copy that comes later passes; no row is ever dropped for being late.

    Raises:
        ConfigError: the frame has not the columns that are needed.
    """
    from pyspark.sql import functions as f

    missing = [name for name in (COLUMN, "topic", "broker", "partition", "offset", "idx") if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"without_duplicates: the frame has no column {missing[0]}; read it with columns={COLUMN},topic,broker,"
            "partition,offset,idx,… or includeEnvelope=true"
        )
    # A prefix keeps what was given from being equal to a place.
    own = f.concat(f.lit(b"p"), place_id().cast("binary"))
    marked = frame.withColumn(_ID, f.coalesce(f.concat(f.lit(b"g"), f.col(COLUMN)), own))
    if not frame.isStreaming:
        return marked.dropDuplicates(["topic", _ID]).drop(_ID)
    # The time of the batch and not of the message: by that, messages that come late would be dropped as well.
    seen = marked.withColumn(_SEEN, f.current_timestamp()).withWatermark(_SEEN, within)
    return seen.dropDuplicatesWithinWatermark(["topic", _ID]).drop(_ID, _SEEN)
