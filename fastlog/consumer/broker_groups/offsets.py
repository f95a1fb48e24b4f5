"""Where a broker's group keeps how far it has come: with its coordinator, as offsets of Kafka's consumers.

An offset of a topic of 0.7 is a position in bytes, as 0.7's consumers have it in ZooKeeper. The text beside it says
which log it is of, ``log=<ms since 1970>``, and which messages the group never saw, ``lost=<from>-<to>``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from fastlog.client import group_requests as requests
from fastlog.client.coordinator import PASSING, Coordinator, CoordinatorError, meaning_of
from fastlog.client.group_requests import Committed, Identity
from fastlog.client.kafka_fields import Place
from fastlog.consumer.partitions import TopicPartition
from fastlog.coordination.session import SessionLostError
from fastlog.counts import listed
from fastlog.errors import CoordinationError
from fastlog.kafka_codes import Code

GONE = frozenset((Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID))
"""The codes with which the coordinator says that the caller is no member of this generation, and owns nothing."""
_LOG = re.compile(r"\blog=(\d{1,18})\b", re.ASCII)
_LOST = re.compile(r"\blost=(\d{1,19}-\d{1,19})\b", re.ASCII)
_SHOWN = 3


def place_of(partition: TopicPartition) -> Place:
    """A partition as the coordinator names it: by topic and number, as it knows one broker alone."""
    return partition.topic, partition.partition.partition


class BrokerOffsets:
    """An ``OffsetStore`` for as long as a membership lasts. For the group's worker.

    Only the owner can save: the coordinator accepts nothing from others than members of the generation.
    """

    def __init__(
        self, coordinator: Coordinator, who: Callable[[], Identity], on_refused: Callable[[int], None]
    ) -> None:
        """``who``: the member that saves. ``on_refused`` is called with an error code that makes it join again."""
        self._coordinator = coordinator
        self._who = who
        self._on_refused = on_refused
        self._ahead: dict[Place, Committed] = {}
        self._logs: dict[Place, int] = {}
        self._lost: dict[Place, str] = {}

    def read_ahead(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Ask at once for what ``load`` will be asked for. Raises ``CoordinationError``."""
        self._ahead = self._fetched(group, map(place_of, partitions))

    def load(self, group: str, partition: TopicPartition) -> int | None:
        """The offset to go on at; None when none was ever saved. Raises ``CoordinationError``."""
        place = place_of(partition)
        found = self._ahead.pop(place, None) or self._fetched(group, [place])[place]
        log, lost = _LOG.search(found.text), _LOST.search(found.text)
        self._logs[place] = int(log[1]) if log else 0
        self._lost.pop(place, None)
        if lost:
            self._lost[place] = lost[1]
        return found.offset if found.offset >= 0 else None

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Keep these; they are on the broker's disk when it returns.

        Raises:
            SessionLostError: it is no member any more.
            CoordinationError: some were not kept; the others were.
        """
        rows = {place_of(partition): offset for partition, offset in offsets.items()}
        answered = self._coordinator.ask(
            requests.commit(group, self._who(), {place: Committed(rows[place], self._text(place)) for place in rows}),
            requests.parse_commit,
            lambda found: next((code for code in found.values() if code in PASSING), 0),
        )
        refused = {place: answered.get(place, -1) for place in rows if answered.get(place, -1)}
        for code in sorted(set(refused.values())):
            if code in GONE or code == Code.REBALANCE_IN_PROGRESS:
                self._on_refused(code)
            if code in GONE:
                raise SessionLostError(f"offsets were not committed: {meaning_of(code)}")
        if refused:
            names = listed([f"{topic}/{number}" for topic, number in sorted(refused)], _SHOWN)
            code = next(iter(refused.values()))
            raise CoordinatorError(f"not committed: {names}: {meaning_of(code)}", code)

    def note_logs(self, group: str, logs: Mapping[TopicPartition, int]) -> None:
        """When the logs were made that offsets saved from now on are of."""
        for partition, made in logs.items():
            self._logs[place_of(partition)] = made

    def log_of(self, group: str, partition: TopicPartition) -> int:
        """When the log was made that the offset is of; 0: not known."""
        return self._logs.get(place_of(partition), 0)

    def note_lost(self, partition: TopicPartition, from_offset: int, to_offset: int) -> None:
        """Write down with the next saved offset that the messages between these two were lost."""
        self._lost[place_of(partition)] = f"{from_offset}-{to_offset}"

    def _text(self, place: Place) -> str:
        log, lost = self._logs.get(place), self._lost.get(place)
        return " ".join([*([f"log={log}"] if log else []), *([f"lost={lost}"] if lost else [])])

    def _fetched(self, group: str, places: Iterable[Place]) -> dict[Place, Committed]:
        wanted = list(places)
        if not wanted:
            return {}
        code, found = self._coordinator.ask(
            requests.fetch_offsets(group, wanted), requests.parse_offsets, lambda found: found[0]
        )
        code = code or next((row[0] for row in found.values() if row[0]), 0)
        if code:
            raise CoordinatorError(f"offsets of group {group!r} cannot be read: {meaning_of(code)}", code)
        missing = [place for place in wanted if place not in found]
        if missing:
            raise CoordinationError(f"the coordinator says nothing of {missing[:_SHOWN]}")
        return {place: found[place][1] for place in wanted}
