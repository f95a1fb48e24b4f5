"""A coordinator on the test's own thread, its client, a flusher, and the keeper's part of deleting."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from fastlog.config import BrokerConfig
from fastlog.kafka_codes import Code
from fastlog.log._append import Appender
from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR, KEEPER, STAGE_FLUSHER
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.log.metadata import read_metadata
from fastlog.workers._authorizer import Authorizer
from fastlog.workers._flusher import make_flusher_loop
from fastlog.workers.authorization import Rule
from fastlog.workers.child import Listener
from fastlog.workers.coordinator.context import Broker
from fastlog.workers.coordinator.dispatch import Dispatcher
from fastlog.workers.coordinator.frames import Frame
from fastlog.workers.coordinator.groups.groups import Groups
from fastlog.workers.coordinator.loop import Loop
from fastlog.workers.coordinator.topic_settings import applied
from fastlog.workers.coordinator.topics import Topics
from fastlog.workers.deletions import Deletions
from fastlog.workers.log_starts import LogStarts
from tests.harness.broker import wait_until
from tests.harness.timing import PATIENCE

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"


class Coordinated:
    """Starts on entering the ``with`` block, on what lies in the directory; ``settings`` are of ``BrokerConfig``."""

    def __init__(
        self,
        directory: Path,
        *,
        rule: Rule | None = None,
        partitions: int = 64,
        heartbeat_ms: int = 50,
        **settings: Any,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.config = BrokerConfig(log_dirs=(str(directory),), broker_id=7, **settings)
        self.directory = directory
        self.arena = Arena([str(directory)], FIRST_PROCESSOR + 1, partitions, 16)
        known = read_metadata([directory], FileOps())
        own = {each.name: applied(self.config, each.name, each.settings) for each in known.topics.values()}
        self.manager = LogManager(self.config, self.arena, FileOps(), own)
        self.report = self.manager.load([{}], known.topics.values())
        self._rule = rule
        self._flusher = make_flusher_loop(self.arena, 64, 0, 0, 0, -1, heartbeat_ms)
        self._flushing = threading.Thread(target=self._flusher.run, args=(2, 2, os.getppid()), daemon=True)
        appender = Appender(self.arena, SegmentFiles(self.arena, 8), KEEPER)
        self.starts = LogStarts(self.arena, LogManager(self.config, self.arena, FileOps()), FileOps())
        self.deletions = Deletions(self.arena, appender, FileOps(), self.starts)
        self.keeps_house = True
        self.begin()

    def begin(self) -> None:
        """A coordinator takes the place of the former one, which was killed: nothing of it is told anything."""
        self.loop = Loop()
        self.topics = Topics(self.config, self.arena, self.loop)
        listener = Listener("main", "any", "127.0.0.1", 9092, "told", 9093, -1)
        self.groups = Groups(self.config, self.loop, self.topics)
        rule = Authorizer(self._rule)
        broker = Broker(self.config, self.arena, (listener,), CLUSTER_ID, self.topics, self.groups, rule)
        self.dispatcher = Dispatcher(broker, self.loop)
        self.loop.start(self.topics.begin())
        self.loop.start(self.groups.begin())

    def __enter__(self) -> Self:
        self._flushing.start()
        self.turn_until("it is ready", lambda: self.topics.is_ready and self.groups.is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()
        self.arena.set_stopping(STAGE_FLUSHER)
        self._flushing.join(PATIENCE)
        assert not self._flushing.is_alive()

    def turn(self) -> None:
        """One turn of the loop, as if woken, and one of the keeper."""
        self.loop.turn(0.002)
        self.loop.look()
        if self.keeps_house:
            self.starts.turn()
            self.deletions.turn()

    def turn_until(self, what: str, holds: Callable[[], bool]) -> None:
        wait_until(what, lambda: bool(self.turn()) or holds())

    def recorded(self) -> dict[str, tuple[str, int]]:
        """Phase and number of partitions of each topic, as the metadata log says."""
        state = read_metadata([self.directory], FileOps())
        return {name: (topic.phase, topic.partitions) for name, topic in state.topics.items()}

    # -- its client ----------------------------------------------------------------------------------------------------

    def begin_to_ask(self, key: int, version: int, /, **fields: Any) -> list[Any]:
        """Send a request; the list gets the decoded answer once there is one, None where the connection closes."""
        answers: list[Any] = []
        data = encoded(key, version, fields)
        frame = Frame(1, 1, 0, 0, 0, "10.1.2.3", 4711, data)
        self.dispatcher.handle(frame, lambda answer: answers.append(decoded(key, version, answer)))
        return answers

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """Send a request and return its decoded answer."""
        answers = self.begin_to_ask(key, version, **fields)
        self.turn_until("an answer", lambda: bool(answers))
        return answers[0]

    def create(self, name: str, count: int = 1, version: int = 7, **given: Any) -> Any:
        """What CREATE_TOPICS answers about one topic."""
        configs = given.pop("configs", {})
        topic = {
            "name": name,
            "num_partitions": count,
            "replication_factor": -1,
            "assignments": (),
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        extra = {"validate_only": given.pop("validate_only", False), "timeout": given.pop("timeout", 30_000)}
        (found,) = self.ask(19, version, topics=[topic | given], **extra).topics
        return found

    def delete(self, name: str, timeout: int = 30_000) -> int:
        """The error code of DELETE_TOPICS for one topic."""
        (found,) = self.ask(20, 6, topics=[{"name": name, "topic_id": bytes(16)}], timeout=timeout).responses
        return int(found.error_code)

    def producer_ids(self, count: int) -> list[int]:
        """What so many INIT_PRODUCER_ID give."""
        fields = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
        found = [self.ask(22, 4, **fields) for _ in range(count)]
        assert {(each.error_code, each.producer_epoch) for each in found} == {(Code.NONE, 0)}
        return [each.producer_id for each in found]


def encoded(key: int, version: int, fields: dict[str, Any]) -> bytes:
    """The frame of a request, from its api key on."""
    from kio.index import load_request_schema
    from kio.serial import entity_writer

    from fastlog.workers.coordinator import codec

    schema: Any = load_request_schema(key, version)
    made = io.BytesIO()
    header: Any = schema.__header_schema__
    names = {"request_api_key": key, "request_api_version": version, "correlation_id": 77, "client_id": "test"}
    known = {name: value for name, value in names.items() if name in header.__dataclass_fields__}
    entity_writer(header)(made, header(**known))
    entity_writer(schema)(made, codec.build(schema, fields))
    return made.getvalue()


def decoded(key: int, version: int, answer: bytes | None) -> Any:
    """The answer's object; its size and correlation id are as they should be."""
    from kio.index import load_response_schema
    from kio.serial import entity_reader

    if answer is None:
        return None
    schema: Any = load_response_schema(key, version)
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    header, used = entity_reader(schema.__header_schema__)(answer, 4)
    assert header.correlation_id == 77
    found, read = entity_reader(schema)(answer, 4 + used)
    assert 4 + used + read == len(answer)
    return found
