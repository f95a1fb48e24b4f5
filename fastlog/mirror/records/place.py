"""A mirror's place in a group of the target: how mirrors of one name share the partitions, and keep their positions.

Members send no metadata, and get their number and how many there are. Whoever is no member any more cannot write a
position down: the coordinator compares the generation. That is needed where offsets of the source have gaps; what comes
twice otherwise, the numbers of the batches keep out.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from fastlog.client import group_requests as requests
from fastlog.client.addresses import Address
from fastlog.client.coordinator import PASSING, Coordinator, CoordinatorError, NotReachedError, meaning_of
from fastlog.client.group_requests import Committed, Identity
from fastlog.client.kafka_fields import Answer, Place, Request
from fastlog.errors import FastlogError, ProtocolError
from fastlog.kafka_codes import Code
from fastlog.mirror.records.cluster import CLIENT

_T = TypeVar("_T")

KIND = "fastlog-mirror"
"""The protocol type, so that no consumer comes into the group by mistake."""
_PROTOCOL = "share"
_LOOK_SECONDS = 0.1
_REBALANCE_MS = 60_000
_LOST = frozenset(
    (Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.REBALANCE_IN_PROGRESS, Code.FENCED_INSTANCE_ID)
)


class PlaceLostError(CoordinatorError):
    """This member is not in the group any more, or not in the generation that it believes."""


class Share(NamedTuple):
    """The number of this member, from 0, and how many members there are."""

    number: int
    of: int

    def has(self, place: Place) -> bool:
        """Whether a partition is this member's: those of a topic go round."""
        topic, partition = place
        return (sum(topic.encode()) + partition) % self.of == self.number


class GroupPlace:
    """``join``, ``beat`` and ``leave`` are for one thread, ``committed`` and ``commit`` for any.

    Raises (every call):
        PlaceLostError: it has to join anew.
        CoordinatorError: the coordinator refuses.
        NotReachedError: no answer in time.
    """

    def __init__(self, addresses: Sequence[Address], group: str, *, session_ms: int, timeout: float) -> None:
        self.group = group
        self._session_ms = session_ms
        self._who = Identity()
        self._member = Coordinator(addresses, group, client=CLIENT, timeout=timeout)
        self._keeper = Coordinator(addresses, group, client=CLIENT, timeout=timeout)
        self._lock = threading.Lock()
        self._is_over = False

    def join(self) -> Share | None:
        """Be a member of the next generation, waited for as long as it takes; None once it was interrupted."""
        while True:
            joined = self._posted(self._join_request(), requests.parse_joined)
            if joined is None:
                return None
            if joined.code == Code.MEMBER_ID_REQUIRED:
                self._who = Identity(joined.member)
                continue
            if joined.code == Code.UNKNOWN_MEMBER_ID and self._who.member:
                self._who = Identity()  # the id that was refused may stand in the answer, too
                continue
            self._require(joined.code)
            self._who = Identity(joined.member, joined.generation)
            shares: dict[str, bytes] = {}
            if joined.leader == joined.member:
                members = sorted(joined.members)
                shares = {member: b"%d/%d" % (i, len(members)) for i, member in enumerate(members)}
            synced = self._posted(requests.sync(self.group, self._who, shares), requests.parse_synced)
            if synced is None:
                return None
            code, data = synced
            if code in (Code.REBALANCE_IN_PROGRESS, Code.ILLEGAL_GENERATION):
                continue
            self._require(code)
            return _share(data)

    def beat(self) -> None:
        """Send a heartbeat. Raises ``PlaceLostError`` also where the group rebalances."""
        code = self._member.ask(requests.heartbeat(self.group, self._who), requests.parse_code, lambda found: found)
        self._require(code)

    def leave(self) -> None:
        """Leave the group, so that the others take over at once. Raises nothing: else the session expires by itself."""
        if self._who.member:
            with contextlib.suppress(FastlogError):
                self._member.ask(requests.leave(self.group, self._who.member), lambda answer: None, timeout=1.0)
        self._who = Identity()

    def close(self) -> None:
        """End the connections; for the thread that joins."""
        self._member.close()
        with self._lock:
            self._keeper.close()

    def interrupt(self) -> None:
        """Have ``join`` return; from any thread."""
        self._is_over = True

    def committed(self, places: Iterable[Place]) -> dict[Place, Committed]:
        """What the group has written down, of the partitions of which it has."""
        with self._lock:
            code, found = self._keeper.ask(
                requests.fetch_offsets(self.group, places), requests.parse_offsets, lambda answer: answer[0]
            )
        self._require(code)
        for code, _ in found.values():
            self._require(code)
        return {place: committed for place, (_, committed) in found.items() if committed.offset >= 0}

    def commit(self, offsets: Mapping[Place, Committed]) -> None:
        """Write it down, and return when it is."""
        who = self._who
        with self._lock:
            codes_of = self._keeper.ask(
                requests.commit(self.group, who, offsets),
                requests.parse_commit,
                lambda found: next((code for code in found.values() if code in PASSING), 0),
            )
        for place in offsets:
            self._require(codes_of.get(place, -1))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _join_request(self) -> Request:
        return requests.join(self.group, self._who.member, self._session_ms, _REBALANCE_MS, KIND, [(_PROTOCOL, b"")])

    def _posted(self, request: Request, parse: Callable[[Answer], _T]) -> _T | None:
        """The answer to a request that is answered when all members are there."""
        deadline = time.monotonic() + 2 * _REBALANCE_MS / 1000
        self._member.post(request)
        while not self._is_over and time.monotonic() < deadline:
            found = self._member.poll(_LOOK_SECONDS)
            if found is not None:
                return parse(found)
        self._member.forget()
        if not self._is_over:
            raise NotReachedError(f"the coordinator of group {self.group!r} does not answer")
        return None

    def _require(self, code: int) -> None:
        if code in _LOST:
            if code in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
                self._who = Identity()
            raise PlaceLostError(f"group {self.group!r}: {meaning_of(code)}", code)
        if code == Code.INCONSISTENT_GROUP_PROTOCOL:
            raise CoordinatorError(
                f"group {self.group!r} of the target has members that are no mirrors: choose another groupid", code
            )
        if code:
            raise CoordinatorError(f"group {self.group!r}: {meaning_of(code)}", code)


def _share(data: bytes) -> Share:
    index, slash, of = data.partition(b"/")
    if not (slash and index.isdigit() and of.isdigit() and int(index) < int(of)):
        raise ProtocolError(f"the leader of the group has shared out {data[:40]!r}, which is no share of a mirror")
    return Share(int(index), int(of))
