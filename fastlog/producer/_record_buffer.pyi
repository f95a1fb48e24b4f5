from fastlog.producer._buffer import Buffer, Shelf
from fastlog.producer._lane import Lane

class RecordBuffer(Buffer):
    """The buffer of a partition of record batches. ``header``: of a Produce request, up to the bytes of the batch.

    A batch with ``batch_messages`` records is finished, unless those before it still wait to be written: it grows then.
    """

    lane: Lane
    def __init__(
        self,
        shelf: Shelf,
        broker: int,
        topic: str,
        partition: int,
        codec: int,
        header: bytes,
        acknowledged: bool,
        batch_messages: int,
        batch_bytes: int,
        max_payload: int,
        lane: Lane,
    ) -> None: ...
