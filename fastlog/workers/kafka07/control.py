"""The Python side of Kafka 0.7 in a processor: the answers that are not made in place."""

from __future__ import annotations

from collections.abc import Sequence

from fastlog.config import BrokerConfig
from fastlog.log._arena import Arena
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.workers.authorization import Client
from fastlog.workers.kafka07.answers import Answers
from fastlog.workers.services import Services


class Control:
    """Makes the answers of one processor that need Python.

    Its loop's thread calls ``offsets``, the helper's threads ``answer_off_loop``, a queue each; what a log manager
    remembers is for one thread, so each has one.
    """

    def __init__(
        self, config: BrokerConfig, arena: Arena, services: Services, advertised: Sequence[tuple[str, int]]
    ) -> None:
        """``advertised`` as for ``Answers``."""
        self._config = config
        self.max_batch = config.max_batch_bytes
        self._arena = arena
        self._services = services
        self._advertised = advertised
        self._answers = self._make_answers()
        self._answers_by_queue: dict[int, Answers] = {}

    def _make_answers(self) -> Answers:
        manager = LogManager(self._config, self._arena, FileOps())
        return Answers(self._config, self._arena, manager, self._advertised, self._services.authorizer)

    def offsets(self, body: bytes) -> bytes | None:
        """The answer frame of an OFFSETS request; None when it is cut short."""
        return self._answers.offsets(body)

    def answer_off_loop(self, request: bytes, queue: int, client: Client) -> bytes | bool | None:
        """The answer frame of one of fastlog's rare requests, see ``Answers.answer``; ``queue`` tells its thread."""
        try:
            answers = self._answers_by_queue.get(queue)
            if answers is None:
                answers = self._make_answers()
                self._answers_by_queue[queue] = answers
            return self._services.unless_busy(lambda: answers.answer(request, client), False)
        except Exception as error:
            self._services.unexpected(error)
            return None
