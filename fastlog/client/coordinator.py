"""A connection to the broker that coordinates groups: found by FindCoordinator, made again when it breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from fastlog.client import group_requests as requests
from fastlog.client import kafka_fields
from fastlog.client.addresses import Address, parse_brokers
from fastlog.client.kafka_connection import KafkaConnection, connected
from fastlog.errors import GroupCoordinatorError, TransportError
from fastlog.kafka_codes import Code
from fastlog.retry import Backoff

_T = TypeVar("_T")

PASSING = frozenset((Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR))
"""Codes of a coordinator that has just begun: what was asked for was not done, and is asked for again."""

_MEANINGS: dict[int, str] = {
    Code.UNKNOWN_SERVER_ERROR: "the broker reports an unknown error: its log says more",
    Code.UNKNOWN_TOPIC_OR_PARTITION: "the topic is not there (any more)",
    Code.REQUEST_TIMED_OUT: "its disk takes too long; it may have been kept",
    Code.OFFSET_METADATA_TOO_LARGE: "the text beside an offset is too long: raise offset.metadata.max.bytes of the"
    " broker",
    Code.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is reading its log; it will be there soon",
    Code.COORDINATOR_NOT_AVAILABLE: "the coordinator is not available: its disk may be full or failing, and the"
    " broker's log says more",
    Code.NOT_COORDINATOR: "the broker does not coordinate this group",
    Code.ILLEGAL_GENERATION: "the group has gone on without this member",
    Code.INCONSISTENT_GROUP_PROTOCOL: "the members of the group are no consumers of fastlog: choose another name for"
    " the group",
    Code.INVALID_GROUP_ID: "the name of the group is empty or too long",
    Code.UNKNOWN_MEMBER_ID: "the group has members, and this is none of them (any more)",
    Code.INVALID_SESSION_TIMEOUT: "the broker does not allow the session's time-out: set session.timeout.ms within its"
    " group.min.session.timeout.ms and group.max.session.timeout.ms",
    Code.REBALANCE_IN_PROGRESS: "the group rebalances",
    Code.INVALID_COMMIT_OFFSET_SIZE: "the coordinator has no room for more offsets",
    Code.TOPIC_AUTHORIZATION_FAILED: "the broker does not allow that with the topic",
    Code.GROUP_AUTHORIZATION_FAILED: "the broker does not allow that with the group",
    Code.INVALID_REQUEST: "what the member says of itself is too large: read fewer topics",
    Code.NON_EMPTY_GROUP: "the group has members: stop them first",
    Code.GROUP_ID_NOT_FOUND: "there is no such group",
    Code.GROUP_MAX_SIZE_REACHED: "the group is full (group.max.size of the broker), or the coordinator has no room for"
    " more members",
    Code.FENCED_INSTANCE_ID: "another process has taken this member's place",
    Code.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group read the topic: stop them first",
}

_PURPOSE = "groups without ZooKeeper work: name a broker of fastlog, or a ZooKeeper (zk.connect)"
_KEYS = (8, 9, 10, 11, 12, 13, 14)
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 0.5


class CoordinatorError(GroupCoordinatorError):
    """The coordinator refuses what it was asked for; ``code`` is the number on the wire, by Kafka's table."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class NotReachedError(GroupCoordinatorError):
    """The coordinator does not answer; what it was asked for may have been done. ``why``: what the last try met."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why


class OtherClusterError(GroupCoordinatorError):
    """An address leads to another broker than before, which has groups of its own."""


def meaning_of(code: int) -> str:
    """An error code of the coordinator's in words."""
    return f"{_MEANINGS.get(code, 'an error of which this client knows nothing')} (error {code})"


class Coordinator:
    """Asks the coordinator of a group, one request at a time. For one thread; ``interrupt`` is for any.

    Raises (every call):
        NotReachedError: no answer within ``timeout`` seconds.
        GroupCoordinatorError: it was closed, or the broker is none that coordinates groups.
    """

    def __init__(self, brokers: str | Sequence[Address], group: str, *, client: str, timeout: float) -> None:
        """Connects at the first call. ``brokers``: addresses of one broker, tried in their order."""
        self.addresses = parse_brokers(brokers) if isinstance(brokers, str) else list(brokers)
        self.address = self.addresses[0]
        """Where the coordinator is; known once it has been asked."""
        self.broker_id = -1
        self.cluster = ""
        """The id of the cluster that the broker is; empty before it was asked."""
        self.is_connected = False
        """Whether it has answered the last request."""
        self.is_closed = False
        self._group = group
        self._client = client
        self._timeout = timeout
        self._connection: KafkaConnection | None = None
        self._posted = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))

    def close(self) -> None:
        """Close the connection, if there is one; may be called again."""
        self.is_closed = True
        self._drop()

    def interrupt(self) -> None:
        """Have a thread that waits for an answer raise, and every later call; from any thread. Then ``close`` it."""
        self.is_closed = True
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def ask(
        self,
        request: kafka_fields.Request,
        parse: Callable[[kafka_fields.Answer], _T],
        code_of: Callable[[_T], int] = lambda found: 0,
        timeout: float | None = None,
    ) -> _T:
        """The answer. A broken connection and a coordinator that has just begun are put up with within the time.

        What is asked is asked again then: it has to be something that may be done twice.
        """
        allowed = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + allowed
        backoff = Backoff(_LEAST_PAUSE, _MOST_PAUSE)
        while True:
            try:
                found = parse(self._asked(request, deadline))
                if code_of(found) not in PASSING:
                    self.is_connected = True
                    return found
                why = meaning_of(code_of(found))
            except TransportError as error:
                why = str(error).partition("\n")[0]
                self._drop()
            except BaseException:
                self._drop()
                raise
            if self.is_closed:
                raise GroupCoordinatorError("the connection to the coordinator was closed")
            if time.monotonic() + backoff.seconds >= deadline:
                self.is_connected = False
                raise NotReachedError(f"no coordinator of groups at {self} within {allowed:g} s: {why}", why)
            time.sleep(backoff.next())

    def post(self, request: kafka_fields.Request) -> None:
        """Send a request whose answer may take long. Raises as ``ask``, at once."""
        try:
            self._posted = self._ready(time.monotonic() + self._timeout).send(request)
        except TransportError as error:
            self._drop()
            raise NotReachedError(f"no coordinator of groups at {self}: {error}") from error
        except BaseException:
            self._drop()
            raise

    def poll(self, seconds: float) -> kafka_fields.Answer | None:
        """The answer to what was posted; None if it has not come within ``seconds``. Raises as ``ask``."""
        connection = self._connection
        if connection is None or self._posted < 0:
            raise NotReachedError("nothing was posted")
        try:
            found = connection.received(self._posted, seconds)
            if found is not None:
                self._posted = -1
                self.is_connected = True
            return found
        except TransportError as error:
            self._drop()
            raise NotReachedError(f"the coordinator of groups at {self.address} is gone: {error}") from error
        except BaseException:
            self._drop()
            raise

    def forget(self) -> None:
        """Wait for what was posted no more; what is asked next goes over another connection."""
        if self._posted >= 0:
            self._drop()

    # -- the connection ------------------------------------------------------------------------------------------------

    def _asked(self, request: kafka_fields.Request, deadline: float) -> kafka_fields.Answer:
        self.forget()
        return self._ready(deadline).ask(request, deadline)

    def _ready(self, deadline: float) -> KafkaConnection:
        if self._connection is None or not self._connection.is_quiet():
            self._drop()
            self._connect(deadline)
        assert self._connection is not None
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._posted = -1
        self.is_connected = False
        if connection is not None:
            connection.close()

    def _connect(self, deadline: float) -> None:
        """Find the coordinator, by the first address that answers."""
        reasons = []
        for address in self.addresses:
            if self.is_closed:
                break
            try:
                self._find(address, deadline)
            except TransportError as error:
                self._drop()
                reason = str(error.reason)
                reasons.append(reason if str(address) in reason else f"{address}: {reason}")
            else:
                return
        raise TransportError("; ".join(reasons) or "it was closed")

    def _find(self, address: Address, deadline: float) -> None:
        self._open(address, deadline)
        brokers, cluster = requests.parse_metadata(self._one(requests.metadata(), deadline))
        if self.cluster and cluster != self.cluster:
            raise OtherClusterError(
                f"{address} is another broker than before (cluster {cluster}, it was {self.cluster}), and has groups of"
                " its own: name addresses of one broker; a group over several needs a ZooKeeper (zk.connect)"
            )
        answer = self._one(requests.find_coordinator(self._group), deadline)
        code, text, node, place = requests.parse_coordinator(answer)
        if code in PASSING:
            raise TransportError(meaning_of(code))
        if code:
            raise CoordinatorError(f"group {self._group!r}: {text or meaning_of(code)}", code)
        self.cluster, self.broker_id = cluster, node
        self.address = Address(*place)
        if self.address != address and brokers.get(node) == place:
            self._drop()
            self._open(self.address, deadline)

    def _open(self, address: Address, deadline: float) -> None:
        connection = connected(address, self._client, deadline)
        self._connection = connection
        if self.is_closed:
            connection.interrupt()
        connection.begin(
            "groups without ZooKeeper work: name a broker of fastlog, or a ZooKeeper (zk.connect)", deadline
        )
        missing = [key for key in _KEYS if key not in connection.versions]
        if missing:
            raise GroupCoordinatorError(
                f"{address} does not coordinate groups (requests {missing}): name a broker of fastlog, or a ZooKeeper"
                " (zk.connect)"
            )

    def _one(self, request: kafka_fields.Request, deadline: float) -> kafka_fields.Answer:
        """The answer of the connection that there is."""
        assert self._connection is not None
        return self._connection.ask(request, deadline)
