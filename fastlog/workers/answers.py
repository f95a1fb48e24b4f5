"""The answers that Python makes for a processor: OFFSETS and fastlog's own rare requests.

Wire on one side, log on the other; nothing here keeps state.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from fastlog import segment_files
from fastlog.config import BrokerConfig
from fastlog.errors import BrokerError, InvalidTopicError, LogError, ProtocolError
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY, Arena, SlotView
from fastlog.log.manager import FORMAT_NAMES, CreationBusyError, LogManager
from fastlog.log.offsets import EARLIEST, LATEST, offsets_before
from fastlog.wire import requests, responses
from fastlog.wire.fields import NotTextError

UNKNOWN, OUT_OF_RANGE, WRONG_PARTITION = -1, 1, 3
INVALID_TOPIC, OFFLINE, STORAGE, MALFORMED = 100, 101, 103, 107
MAX_TOPIC_NAMES = 10_000
MAX_CUT_POINTS = 65536
MAX_NEW_PARTITIONS = 4096
MAX_WALK_BYTES = 64 << 20
PEEK_BYTES = 1 << 20


class Answers:
    """Makes whole answer frames for one processor; for one thread."""

    def __init__(self, config: BrokerConfig, arena: Arena, manager: LogManager, advertised: tuple[str, int]) -> None:
        """``advertised``: host and port that clients are told to connect to."""
        self._config = config
        self._arena = arena
        self._manager = manager
        self._advertised = advertised

    def answer(self, body: bytes) -> bytes | bool | None:
        """The frame for one of fastlog's rare requests; ``body`` begins at its id and reaches past the correlation id.

        None: it is none of them. False: try again when woken. Reads and makes files.
        """
        correlation_id = int.from_bytes(body[4:8], "big", signed=True)
        if int.from_bytes(body[:2], "big") == requests.METADATA:
            count = int.from_bytes(body[8:12], "big", signed=True)
            if count > MAX_TOPIC_NAMES:
                return responses.encode_own_error(correlation_id, MALFORMED)
        try:
            request = requests.decode_request(body)
        except NotTextError:
            return responses.encode_own_error(correlation_id, INVALID_TOPIC)
        except ProtocolError:
            return responses.encode_own_error(correlation_id, MALFORMED)
        try:
            match request:
                case requests.MetadataRequest():
                    return responses.encode_metadata(self._metadata(request))
                case requests.CutPointsRequest():
                    return responses.encode_cut_points(self._cut_points(request))
                case requests.LocalReadRequest():
                    return responses.encode_local_read(self._local_read(request))
                case requests.CreateTopicRequest():
                    return responses.encode_create_topic(self._create(request))
        except CreationBusyError:
            return False
        except BrokerError as error:
            return responses.encode_own_error(correlation_id, error.code)
        except (OSError, LogError):
            return responses.encode_own_error(correlation_id, STORAGE)
        return None

    def offsets(self, body: bytes) -> bytes | None:
        """The frame for OFFSETS; ``body`` begins after its id. None: cut short, or fewer than no offsets asked for."""
        try:
            request = requests.decode_request(requests.OFFSETS.to_bytes(2, "big") + body)
        except ProtocolError:
            return self._offsets_by_bytes(body)
        assert isinstance(request, requests.OffsetsRequest)
        try:
            count = self._manager.partition_count(request.topic)
        except InvalidTopicError:
            return responses.encode_offsets(UNKNOWN)
        if request.max_count < 0:
            return None
        view = self._manager.slot(request.topic, request.partition)
        if view is None:
            if not 0 <= request.partition < count:
                return responses.encode_offsets(WRONG_PARTITION)
            found = [0] if request.time in (LATEST, EARLIEST) else []
            return responses.encode_offsets(0, found[: request.max_count])
        if view.state & STATE_OFFLINE:
            return responses.encode_offsets(UNKNOWN)
        segments = self._arena.segments(view.index)
        watermark = self._arena.view(view.index).high_watermark
        now_ms = time.time_ns() // 1_000_000
        return responses.encode_offsets(0, offsets_before(segments, watermark, request.time, request.max_count, now_ms))

    def _offsets_by_bytes(self, body: bytes) -> bytes | None:
        """A topic that is not UTF-8 is an illegal name with an answer; a frame that is cut short has none."""
        size = int.from_bytes(body[:2], "big", signed=True)
        return responses.encode_offsets(UNKNOWN) if size >= 0 and len(body) >= 2 + size + 16 else None

    def _metadata(self, request: requests.MetadataRequest) -> responses.MetadataAnswer:
        topics = self._manager.topics()
        names = list(topics) if request.topics is None else list(request.topics)
        return responses.MetadataAnswer(
            request.correlation_id,
            0,
            broker_id=self._config.broker_id,
            advertised_host=self._advertised[0],
            port=self._advertised[1],
            max_message_bytes=self._config.max_message_bytes,
            max_request_bytes=self._config.max_request_bytes,
            max_wait_ms=self._config.fetch_max_wait_ms,
            lowest_own_id=requests.LOWEST_OWN,
            highest_own_id=requests.HIGHEST_OWN,
            topics=tuple(self._topic(name, topics.get(name, [])) for name in names),
        )

    def _topic(self, name: str, views: list[SlotView]) -> responses.TopicMetadata:
        try:
            count = self._manager.partition_count(name)
        except InvalidTopicError:
            return responses.TopicMetadata(name, INVALID_TOPIC, 0)
        partitions = tuple(
            responses.PartitionMetadata(
                view.partition, _wire_state(view.state), view.log_start, view.high_watermark, view.log_end
            )
            for view in views
        )
        return responses.TopicMetadata(name, 0, count, partitions)

    def _existing(self, topic: str, partition: int) -> SlotView | int:
        """The slot, or the error code why there is none to read."""
        try:
            count = self._manager.partition_count(topic)
        except InvalidTopicError:
            return INVALID_TOPIC
        view = self._manager.slot(topic, partition)
        if view is None:
            return WRONG_PARTITION if not 0 <= partition < count else 0
        return OFFLINE if view.state & STATE_OFFLINE else view

    def _cut_points(self, request: requests.CutPointsRequest) -> responses.CutPointsAnswer:
        view = self._existing(request.topic, request.partition)
        if isinstance(view, int):
            return responses.CutPointsAnswer(request.correlation_id, view)
        if request.step_bytes <= 0 or request.max_points < 0 or request.end < request.start:
            return responses.CutPointsAnswer(request.correlation_id, MALFORMED)
        if request.start < view.log_start or request.end > view.high_watermark:
            return responses.CutPointsAnswer(request.correlation_id, OUT_OF_RANGE)
        limit = min(request.max_points, MAX_CUT_POINTS)
        points = self._boundaries(view, request.start, request.end, request.step_bytes, limit)
        return responses.CutPointsAnswer(request.correlation_id, 0, tuple(points))

    def _boundaries(self, view: SlotView, start: int, end: int, step: int, limit: int) -> list[int]:
        """Message boundaries in [start, end], at least ``step`` apart but for the last one.

        The last one may be nearer: it is ``end`` where that is a boundary, or how far one request walks; whoever wants
        more asks again from there.
        """
        bases = [item.base for item in self._arena.segments(view.index)]
        points: list[int] = []
        walked = 0
        target = start
        at = max((base for base in bases if base <= start), default=start)
        if at < start and self._is_message(view, bases, start):
            at = start
        while len(points) < limit and target <= end and walked < MAX_WALK_BYTES:
            at = max([at, *(base for base in bases if base <= target)])
            reached = self._first_boundary(view, bases, at, target, end, MAX_WALK_BYTES - walked)
            walked += reached - at
            at = reached
            if reached < target:
                break  # the walk ended early: at its limit, or before something that is no message
            if reached > end:
                return points
            points.append(reached)
            target = reached + step
        if points and len(points) < limit:
            if end == view.high_watermark or end in bases:
                last = end
            else:
                last = min(self._first_boundary(view, bases, at, end, end, MAX_WALK_BYTES - walked), end + 1)
            last = last if last <= end else at
            if last > points[-1]:
                points.append(last)
        return points

    def _is_message(self, view: SlotView, bases: list[int], offset: int) -> bool:
        """Whether a whole message starts at ``offset``: then nothing before it has to be walked."""
        base = max(item for item in bases if item <= offset)
        path = self._directory(view) / segment_files.segment_name(base)
        stop = min([view.high_watermark, *(item for item in bases if item > base)])
        first = next(
            iter(segment_files.walk(path, base, offset - base, min(stop - base, offset - base + PEEK_BYTES))), None
        )
        return first is not None

    def _first_boundary(self, view: SlotView, bases: list[int], at: int, target: int, end: int, room: int) -> int:
        """The first boundary from ``target`` on, walking from the boundary ``at``; less when the walk ends before."""
        while at < target:
            base = max(item for item in bases if item <= at)
            stop = min([view.high_watermark, *(item for item in bases if item > base)])
            if stop <= at:
                return at
            path = self._directory(view) / segment_files.segment_name(base)
            reached = segment_files.first_boundary(path, at - base, min(target, stop) - base, stop - base, room) + base
            if reached == at:
                return at
            room -= reached - at
            at = reached
            if at < min(target, stop):
                return at
        return at

    def _directory(self, view: SlotView) -> Path:
        name = segment_files.partition_directory_name(view.topic, view.partition)
        return Path(self._arena.log_dirs[view.directory]) / name

    def _local_read(self, request: requests.LocalReadRequest) -> responses.LocalReadAnswer:
        view = self._existing(request.topic, request.partition)
        if isinstance(view, int):
            return responses.LocalReadAnswer(request.correlation_id, view)
        bases = [item.base for item in self._arena.segments(view.index) if item.base <= view.high_watermark]
        return responses.LocalReadAnswer(
            request.correlation_id,
            0,
            directory=os.fspath(self._directory(view).resolve()),
            format=FORMAT_NAMES.get(view.format, "unknown"),
            log_start=view.log_start,
            high_watermark=view.high_watermark,
            base_offsets=tuple(bases),
        )

    def _create(self, request: requests.CreateTopicRequest) -> responses.CreateTopicAnswer:
        count = request.partitions or self._manager.partition_count(request.topic)
        if not 0 < count <= MAX_NEW_PARTITIONS:
            return responses.CreateTopicAnswer(request.correlation_id, MALFORMED)
        self._manager.partition_count(request.topic)
        for partition in range(count):
            if self._manager.slot(request.topic, partition) is None:
                self._manager.create_partition(request.topic, partition, count=count)
        return responses.CreateTopicAnswer(
            request.correlation_id, 0, partitions=self._manager.partition_count(request.topic)
        )


def _wire_state(state: int) -> int:
    if state & STATE_OFFLINE:
        return responses.STATE_OFFLINE
    return responses.STATE_READ_ONLY if state & STATE_READ_ONLY else responses.STATE_OK
