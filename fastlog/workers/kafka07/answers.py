"""The answers that Python makes for a processor: OFFSETS and fastlog's own rare requests.

Wire on one side, log on the other; nothing is kept between them but places that never change.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from fastlog import logs, segment_files
from fastlog.config import BrokerConfig
from fastlog.errors import (
    BrokerError,
    InvalidTopicError,
    LogError,
    MalformedRequestError,
    NotAuthorizedError,
    ProtocolError,
)
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY, Arena
from fastlog.log.deletion import is_marked, leave_marker
from fastlog.log.files import FileOps
from fastlog.log.formats import format_name, is_for_kafka07, log_format
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.log.offsets import EARLIEST, LATEST, offsets_before
from fastlog.log.slots import SlotView
from fastlog.topics import OWN_PREFIX
from fastlog.wire import requests, responses
from fastlog.wire.fields import NotTextError
from fastlog.workers._authorizer import Authorizer
from fastlog.workers.authorization import Client
from fastlog.workers.kafka07.boundaries import KnownBoundaries, Stream, Walk
from fastlog.workers.kafka07.kinds import OPERATIONS

log = logging.getLogger(__name__)

UNKNOWN, OUT_OF_RANGE, WRONG_PARTITION = -1, 1, 3
INVALID_TOPIC, OFFLINE, STORAGE, NOT_AUTHORIZED, MALFORMED = 100, 101, 103, 106, 107
MAX_TOPIC_NAMES = 10_000
MAX_METADATA_PARTITIONS = 131_072
"""In one answer: a topic is described as often as its name is given."""
MAX_CUT_POINTS = 65536
MAX_NEW_PARTITIONS = 4096
"""The most partitions that a topic is created with."""
STEP_PARTITIONS = 16
"""Made in one step: each costs some files and their syncs."""


class Answers:
    """Makes whole answer frames for one processor; for one thread."""

    def __init__(
        self,
        config: BrokerConfig,
        arena: Arena,
        manager: LogManager,
        advertised: Sequence[tuple[str, int]],
        authorizer: Authorizer | None = None,
    ) -> None:
        """``advertised``: host and port that clients are to connect to, by the listener that they come through."""
        self._config = config
        self._arena = arena
        self._manager = manager
        self._advertised = advertised
        self._authorizer = authorizer or Authorizer()
        self._directories = [Path(path) for path in arena.log_dirs]
        self._known_boundaries = KnownBoundaries()
        self._deletions: dict[tuple[int, str], frozenset[tuple[int, int]]] = {}
        """By connection and topic, which slots in which life are to go before it is answered."""

    def answer(self, body: bytes, client: Client) -> bytes | bool | None:
        """The frame for one of fastlog's rare requests; ``body`` begins at its id and reaches past the correlation id.

        None: it is none of them. False: try again when woken. True: a step of it is done, ask for the next one.
        Reads and makes files.
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
                    return responses.encode_metadata(self._metadata(request, client), request.version)
                case requests.CutPointsRequest():
                    self._authorize(client, requests.CUT_POINTS, request.topic)
                    return responses.encode_cut_points(self._cut_points(request))
                case requests.LocalReadRequest():
                    self._authorize(client, requests.LOCAL_READ, request.topic)
                    return responses.encode_local_read(self._local_read(request))
                case requests.CreateTopicRequest():
                    self._authorize(client, requests.CREATE_TOPIC, request.topic)
                    created = self._create(request)
                    return True if created is None else responses.encode_create_topic(created)
                case requests.DeleteTopicRequest():
                    self._authorize(client, requests.DELETE_TOPIC, request.topic)
                    return responses.encode_delete_topic(self._delete(request, client))
        except CreationBusyError:
            return False
        except BrokerError as error:
            return responses.encode_own_error(correlation_id, error.code)
        except (OSError, LogError) as error:
            name = type(request).__name__
            line = "a request failed kind=%s topic=%r reason=%s"
            log.error(line, name, getattr(request, "topic", ""), error, extra=logs.about("request", name, type(error)))
            return responses.encode_own_error(correlation_id, STORAGE)
        return None

    def offsets(self, body: bytes) -> bytes | None:
        """The frame for OFFSETS, which the caller has authorized; ``body`` begins after its id.

        None: cut short, or fewer than no offsets asked for.
        """
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
        if view is not None and not is_for_kafka07(view.format):
            return responses.encode_offsets(WRONG_PARTITION)
        if view is None:
            if not 0 <= request.partition < count:
                return responses.encode_offsets(WRONG_PARTITION)
            found = [0] if request.time in (LATEST, EARLIEST) else []
            return responses.encode_offsets(0, found[: request.max_count])
        if view.state & STATE_OFFLINE:
            return responses.encode_offsets(UNKNOWN)
        segments = self._arena.segments(view.index)
        watermark = (self._arena.shown_view(view.index) or view).visible_offset
        now_ms = time.time_ns() // 1_000_000
        return responses.encode_offsets(0, offsets_before(segments, watermark, request.time, request.max_count, now_ms))

    def _offsets_by_bytes(self, body: bytes) -> bytes | None:
        """A topic that is not UTF-8 is an illegal name with an answer; a frame that is cut short has none."""
        size = int.from_bytes(body[:2], "big", signed=True)
        return responses.encode_offsets(UNKNOWN) if size >= 0 and len(body) >= 2 + size + 16 else None

    def _authorize(self, client: Client, kind: int, topic: str) -> None:
        if not self._authorizer.is_allowed(client, OPERATIONS[kind], topic):
            raise NotAuthorizedError

    def _metadata(self, request: requests.MetadataRequest, client: Client) -> responses.MetadataAnswer:
        names = self._manager.topics_of_kafka07() if request.topics is None else request.topics
        room = MAX_METADATA_PARTITIONS
        topics = []
        for name in names:
            if self._authorizer.is_allowed(client, OPERATIONS[requests.METADATA], name):
                topics.append(self._topic(name))
            elif request.topics is not None:
                topics.append(responses.TopicMetadata(name, NOT_AUTHORIZED, 0))
            else:
                continue
            room -= len(topics[-1].partitions)
            if room < 0:
                raise MalformedRequestError("the names stand for more partitions than one answer describes")
        host, port = self._advertised[client.listener]
        return responses.MetadataAnswer(
            request.correlation_id,
            0,
            broker_id=self._config.broker_id,
            advertised_host=host,
            port=port,
            max_message_bytes=self._config.max_message_bytes,
            max_request_bytes=self._config.max_request_bytes,
            max_wait_ms=self._config.fetch_max_wait_ms,
            lowest_own_id=requests.LOWEST_OWN,
            highest_own_id=requests.HIGHEST_OWN,
            topics=tuple(topics),
        )

    def _topic(self, name: str) -> responses.TopicMetadata:
        views = self._manager.partitions(name)  # before they are counted: one that is made in between is not shown
        try:
            count = self._manager.partition_count(name)
        except InvalidTopicError:
            return responses.TopicMetadata(name, INVALID_TOPIC, 0)
        if not all(is_for_kafka07(view.format) for view in views[:1]):
            return responses.TopicMetadata(name, WRONG_PARTITION, 0)
        partitions = tuple(
            responses.PartitionMetadata(
                view.partition,
                _wire_state(view.state),
                view.log_start,
                view.visible_offset,
                view.log_offset,
                # until the side file's name is durable, a power loss can put another log in the place of this one
                # with nothing lost that anybody has seen
                view.created_ms if view.dir_synced_tail > view.table_head else 0,
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
        if not is_for_kafka07(view.format):
            return WRONG_PARTITION
        return OFFLINE if view.state & STATE_OFFLINE else view

    def _cut_points(self, request: requests.CutPointsRequest) -> responses.CutPointsAnswer:
        view = self._existing(request.topic, request.partition)
        if isinstance(view, int):
            return responses.CutPointsAnswer(request.correlation_id, view)
        if request.step_bytes <= 0 or request.max_points < 0 or request.end < request.start:
            return responses.CutPointsAnswer(request.correlation_id, MALFORMED)
        if request.start < view.log_start or request.end > view.visible_offset:
            return responses.CutPointsAnswer(request.correlation_id, OUT_OF_RANGE)
        limit = min(request.max_points, MAX_CUT_POINTS)
        stream = Stream(
            self._arena.segments(view.index), self._directory(view), log_format(str(format_name(view.format)))
        )
        if request.start < stream.first_offset:  # retention was quicker
            return responses.CutPointsAnswer(request.correlation_id, OUT_OF_RANGE)
        walk = Walk((view.index, view.life), view.visible_end, stream.files, stream.format, self._known_boundaries)
        start, end = stream.position(request.start), stream.position(request.end)
        points = walk.boundaries(start, end, request.step_bytes, limit)
        return responses.CutPointsAnswer(request.correlation_id, 0, tuple(map(stream.offset, points)))

    def _directory(self, view: SlotView) -> Path:
        name = segment_files.partition_directory_name(view.topic, view.partition)
        return Path(self._arena.log_dirs[view.directory]) / name

    def _local_read(self, request: requests.LocalReadRequest) -> responses.LocalReadAnswer:
        view = self._existing(request.topic, request.partition)
        if isinstance(view, int):
            return responses.LocalReadAnswer(request.correlation_id, view)
        bases = [item.base for item in self._arena.segments(view.index) if item.base <= view.visible_offset]
        return responses.LocalReadAnswer(
            request.correlation_id,
            0,
            directory=os.fspath(self._directory(view).resolve()),
            format=format_name(view.format) or "unknown",
            log_start=view.log_start,
            high_watermark=view.visible_offset,
            base_offsets=tuple(bases),
        )

    def _create(self, request: requests.CreateTopicRequest) -> responses.CreateTopicAnswer | None:
        """Make some of the partitions that are missing; None: there are more to make."""
        configured = self._manager.partition_count(request.topic)
        count = request.partitions or configured
        if not 0 < count <= MAX_NEW_PARTITIONS:
            return responses.CreateTopicAnswer(request.correlation_id, MALFORMED)
        views = self._manager.partitions(request.topic)
        if not all(is_for_kafka07(view.format) for view in views[:1]):
            return responses.CreateTopicAnswer(request.correlation_id, WRONG_PARTITION)
        held = {view.partition for view in views}
        missing = [partition for partition in range(count) if partition not in held]
        if missing and not self._config.creates_on_request:
            raise NotAuthorizedError("create.topic.requests forbids it")
        if len(missing) > requests.MAX_MADE_PARTITIONS:
            return responses.CreateTopicAnswer(request.correlation_id, MALFORMED)
        if len(missing) > self._arena.room:
            # before any of them is made: what is left of the room is for others
            raise LogError(
                f"{len(missing)} partitions are more than there is room for: raise max.partitions and start again"
            )
        for partition in missing[:STEP_PARTITIONS]:
            self._manager.create_partition(request.topic, partition, count=count)
        if len(missing) > STEP_PARTITIONS:
            return None
        return responses.CreateTopicAnswer(
            request.correlation_id, 0, partitions=self._manager.partition_count(request.topic)
        )

    def _delete(self, request: requests.DeleteTopicRequest, client: Client) -> responses.DeleteTopicAnswer:
        """Mark a topic as to be deleted, and answer when the keeper has done so and the name is free.

        Raises:
            CreationBusyError: it has not yet.
        """
        if not self._config.delete_topic_enable:
            raise NotAuthorizedError("delete.topic.enable forbids it")
        topic, asked = request.topic, (client.connection, request.topic)
        begun = self._deletions.get(asked)
        if begun is None:
            self._manager.partition_count(topic)  # whether its name is one
            held = self._manager.partitions(topic)
            if not held:
                return responses.DeleteTopicAnswer(request.correlation_id, WRONG_PARTITION)
            if topic.startswith(OWN_PREFIX) and not is_for_kafka07(held[0].format):
                raise InvalidTopicError("it is the broker's own")
            directories = [Path(self._arena.log_dirs[number]) for number in sorted({view.directory for view in held})]
            try:
                leave_marker(topic, directories, FileOps())
            finally:
                self._arena.want_deletion()  # also where it failed: what stands of it would be found some time later
            self._deletions[asked] = begun = frozenset((view.index, view.life) for view in held)
        # in this order: a slot says that it leaves before its life ends
        alive = {(view.index, view.life) for view in self._manager.partitions(topic)}
        leaving = {row.index for row in self._arena.leaving()}
        # somebody else's marker may have been removed before this one stood, which would then be for what comes after
        if any(life in alive or life[0] in leaving for life in begun) or is_marked(topic, self._directories):
            raise CreationBusyError(f"topic {topic!r} is being deleted")
        del self._deletions[asked]
        return responses.DeleteTopicAnswer(request.correlation_id, 0, partitions=len(begun))


def _wire_state(state: int) -> int:
    if state & STATE_OFFLINE:
        return responses.STATE_OFFLINE
    return responses.STATE_READ_ONLY if state & STATE_READ_ONLY else responses.STATE_OK
