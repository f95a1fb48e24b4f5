"""DeleteRecords (21), versions 0 to 2: lets partitions begin at a later offset; what is before it is read no more.

-1 stands for the high watermark. Readers begin at the new offset at once; the answer comes when it is written down, so
that nothing of what was deleted comes back. Whole segments are removed afterwards.

Source: Apache Kafka 4.2 (ReplicaManager.deleteRecordsOnLocalLog, Partition.deleteRecordsOnLeader).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fastlog.kafka_codes import Code
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import COORDINATOR
from fastlog.log.slots import SlotView
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler, deadline
from fastlog.workers.coordinator.loop import Until, Wait

HIGH_WATERMARK = -1
NO_OFFSET = -1
END_SECONDS = 0.5
"""What was appended when the request came is waited for so long until it is visible, as for ListOffsets."""


class Deleting:
    """What becomes of one partition; its slot is looked at in one life only."""

    def __init__(self, arena: Arena, found: SlotView | Code, partition: int, offset: int) -> None:
        """``found``: the partition, or why nothing can be deleted from it."""
        self._arena = arena
        self._offset = offset
        self.partition = partition
        self.wanted = NO_OFFSET
        self.code = found if isinstance(found, Code) else Code.NONE
        self._view = None if isinstance(found, Code) else found
        self._end = self._view.log_offset if self._view is not None else 0
        if not self.code and not HIGH_WATERMARK <= offset <= self._end:
            self.code = Code.OFFSET_OUT_OF_RANGE

    def sees_end(self) -> bool:
        """Whether all is visible that it may ask for; asks to be woken when it becomes so."""
        return self._is_over() or self._now().visible_offset >= (
            self._end if self._offset == HIGH_WATERMARK else self._offset
        )

    def want(self) -> None:
        """Let the log begin where that was asked for."""
        if self._is_over():
            return
        view = self._now()
        if self._offset > view.visible_offset:
            self.code = Code.OFFSET_OUT_OF_RANGE
            return
        # where retention was further, nothing that was before it may come back either
        asked = view.visible_offset if self._offset == HIGH_WATERMARK else self._offset
        self.wanted = max(asked, view.log_start)
        self._arena.want_start(view.index, self.wanted)

    def is_kept(self) -> bool:
        """Whether that is written down; asks to be woken when it becomes so."""
        return self._is_over() or self._now().kept_start >= self.wanted

    def demand_flush(self) -> None:
        """Have visible soon what is appended."""
        if not self.sees_end():
            self._arena.demand_flush(self._now().index)

    def _is_over(self) -> bool:
        if self.code or self._view is None:
            return True
        self._arena.wait_for_end(self._view.index, COORDINATOR)
        view = self._arena.live_view(self._view.index)
        if view is None or view.life != self._view.life or view.state:
            self.code = Code.KAFKA_STORAGE_ERROR  # clients ask again, and learn if it has gone
            return True
        self._view = view
        return False

    def _now(self) -> SlotView:
        assert self._view is not None
        return self._view


def handle(request: Request, context: Context) -> Handler:
    """Begin all, then wait for them together, for as long as the client said."""
    until = deadline(request.fields.timeout)
    work = [(topic.name, list(_begun(topic, context))) for topic in request.fields.topics]
    yield from _wait_and_want([each for _, partitions in work for each in partitions], until)
    topics = [{"name": name, "partitions": [_row(each) for each in partitions]} for name, partitions in work]
    return {"throttle_time": 0, "topics": topics}


def _wait_and_want(work: list[Deleting], until: float) -> Iterator[Wait]:
    for each in work:
        each.demand_flush()
    end = min(until, time.monotonic() + END_SECONDS)
    for each in work:
        yield Until(each.sees_end, end)
    for each in work:
        each.want()
    for each in work:
        yield Until(each.is_kept, until)
        if not each.is_kept():
            each.code = Code.REQUEST_TIMED_OUT


def _row(deleting: Deleting) -> dict[str, Any]:
    low = NO_OFFSET if deleting.code else deleting.wanted
    return {"partition_index": deleting.partition, "low_watermark": low, "error_code": int(deleting.code)}


def _begun(topic: Any, context: Context) -> Iterator[Deleting]:
    topics = context.broker.topics
    views = {view.partition: view for view in topics.partitions(topic.name)}
    refused = Code.NONE
    if not context.may(Operation.DELETE, topic.name):
        refused = Code.TOPIC_AUTHORIZATION_FAILED
    elif topic.name.startswith("__"):
        refused = Code.INVALID_TOPIC_EXCEPTION
    elif topics.is_of_kafka07(topic.name):
        refused = Code.UNSUPPORTED_FOR_MESSAGE_FORMAT
    elif views and not topics.deletes_records(topic.name):
        refused = Code.POLICY_VIOLATION
    for each in topic.partitions:
        found: SlotView | Code = refused or views.get(each.partition_index, Code.UNKNOWN_TOPIC_OR_PARTITION)
        if not isinstance(found, Code) and (found.state or not found.life & 1):
            found = Code.KAFKA_STORAGE_ERROR
        yield Deleting(context.broker.arena, found, each.partition_index, each.offset)
