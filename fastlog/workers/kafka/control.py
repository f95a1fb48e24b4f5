"""The Python side of today's protocol in a processor: what never changes of its answers, and topics to make."""

from __future__ import annotations

import logging
import re
import struct
import uuid
from collections.abc import Sequence

from fastlog import logs
from fastlog.config import BrokerConfig
from fastlog.errors import InvalidTopicError, LogError, WrongPartitionError
from fastlog.log._arena import Arena
from fastlog.log.files import FileOps
from fastlog.log.formats import format_name
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.workers.authorization import Client, Operation
from fastlog.workers.kafka import kinds, reading
from fastlog.workers.kafka.times import Times
from fastlog.workers.services import Services

log = logging.getLogger(__name__)

RECORD_BATCHES = "record-batches"
"""The log format of topics that today's clients make."""
NONE, UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_DENIED, UNSUPPORTED_VERSION, STORAGE = 0, 3, 17, 29, 35, 56
LEGAL_NAME = re.compile(rb"[A-Za-z0-9._-]{1,249}")
STEP_PARTITIONS = 16
"""Made in one step: each costs some files and their syncs."""


class Control:
    """What answers of one processor need of Python; ``create_topics`` is for the helper's thread that makes files."""

    def __init__(
        self,
        config: BrokerConfig,
        arena: Arena,
        services: Services,
        advertised: Sequence[tuple[str, int]],
        cluster_id: str,
    ) -> None:
        """``advertised``: host and port that clients are told to connect to, by the listener that they come through."""
        self.broker_id = config.broker_id
        self.cluster_id = cluster_id.encode()
        self.advertised = [(host.encode(), port) for host, port in advertised]
        self.may_create = config.auto_create_topics
        self.max_wait_ms = config.fetch_max_wait_ms
        self.max_batch = config.max_batch_bytes
        self.api_versions = [api_versions(version) for version in range(kinds.APIS[kinds.API_VERSIONS].last + 1)]
        self.api_versions_refused = api_versions(0, UNSUPPORTED_VERSION)
        self.look_up_times = Times(config, arena, services).answer
        self._config = config
        self._services = services
        self._manager = LogManager(config, arena, FileOps())
        self._begun: dict[bytes, bytes] = {}
        """Topics that have some of their partitions, and are to have the others: their ids by name."""

    def create_topics(self, request: bytes, _queue: int, client: Client) -> bytes | bool | None:
        """Make the topics that a METADATA request names and that are not there, some partitions in each step.

        ``request`` begins at the api key and has been read before, so that it is whole and well-formed. An error code
        of 2 bytes for each topic in its order. False: ask again when woken. True: there are more to make, ask for the
        next step. None: it cannot be answered.
        """
        try:
            names = reading.named_topics(request)
            return self._services.unless_busy(lambda: self._create_all(names, client), False)
        except Exception as error:
            self._services.unexpected(error)
            return None

    def _create_all(self, names: list[bytes | None], client: Client) -> bytes | bool:
        """What ``create_topics`` gives, for names of which None is one that the request does not have made."""
        try:
            return self._create_some(names, client)
        except CreationBusyError:
            return False

    def _create_some(self, names: list[bytes | None], client: Client) -> bytes | bool:
        """The same. Raises ``CreationBusyError``."""
        codes = []
        room = STEP_PARTITIONS
        for name in names:
            if room <= 0:
                return True
            code, made = (UNKNOWN_TOPIC, 0) if name is None else self._create(name, client, room)
            if name in self._begun:
                return True
            room -= made
            codes.append(code)
        return struct.pack(f">{len(codes)}h", *codes)

    def _create(self, name: bytes, client: Client, room: int) -> tuple[int, int]:
        """Make up to ``room`` partitions of one topic; its error code, and how many were made."""
        if not is_legal(name):
            return INVALID_TOPIC, 0
        topic = name.decode()
        held = self._manager.partitions(topic)
        if held and name not in self._begun:
            return (NONE if format_name(held[0].format) == RECORD_BATCHES else UNKNOWN_TOPIC), 0
        if not self._services.authorizer.is_allowed(client, Operation.CREATE, topic):
            return TOPIC_DENIED, 0
        try:
            return NONE, self._make(topic, self._begun.setdefault(name, uuid.uuid4().bytes), len(held), room)
        except CreationBusyError:
            raise
        except (InvalidTopicError, WrongPartitionError):
            del self._begun[name]
            return INVALID_TOPIC, 0
        except (OSError, LogError) as error:
            del self._begun[name]
            extra = logs.about("not created", type(error))
            log.error("topic not created topic=%r reason=%s", topic, error, extra=extra)
            return STORAGE, 0

    def _make(self, topic: str, topic_id: bytes, held: int, room: int) -> int:
        """Make some of the partitions from number ``held`` on; how many. All have the id of the first."""
        count = self._config.partition_count(topic)
        made = 0
        for partition in range(held, min(count, held + room)):
            first = self._manager.slot(topic, 0)
            self._manager.create_partition(
                topic,
                partition,
                count=count,
                format_name=RECORD_BATCHES,
                topic_id=topic_id if first is None else first.topic_id,
            )
            made += 1
        if held + made >= count:
            del self._begun[topic.encode()]
        return made


def is_legal(name: bytes) -> bool:
    """Whether today's clients may make a topic of this name: by Kafka's rule, and ``__`` is for the broker's own."""
    return LEGAL_NAME.fullmatch(name) is not None and name not in (b".", b"..") and not name.startswith(b"__")


def api_versions(version: int, error: int = NONE) -> bytes:
    """The body of an answer to API_VERSIONS of this version: without supported features, see ``kinds``."""
    offered = kinds.offered()
    head = struct.pack(">h", error)
    if version < kinds.APIS[kinds.API_VERSIONS].flexible:
        rows = b"".join(struct.pack(">hhh", key, *versions) for key, versions in offered.items())
        return head + struct.pack(">i", len(offered)) + rows + (bytes(4) if version else b"")
    rows = b"".join(struct.pack(">hhhB", key, *versions, 0) for key, versions in offered.items())
    return head + varint(len(offered) + 1) + rows + bytes(5)


def varint(value: int) -> bytes:
    """An unsigned varint."""
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
