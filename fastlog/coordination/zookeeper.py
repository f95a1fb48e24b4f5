"""Sessions of ZooKeeper, through kazoo."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.exceptions import NodeExistsError as KazooNodeExistsError
from kazoo.exceptions import NoNodeError as KazooNoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.retry import KazooRetry

from fastlog import escaping
from fastlog.coordination.addresses import parse_connect, unknown_hosts
from fastlog.coordination.session import (
    ANY_VERSION,
    Node,
    NodeExistsError,
    NoNodeError,
    SessionLostError,
    UnknownHostError,
    VersionError,
    Watch,
)
from fastlog.errors import CoordinationError
from fastlog.retry import Backoff

log = escaping.logger(__name__)

_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.CRITICAL)  # it has a line for each try; what matters is said here, once
_LEAST_PAUSE = 0.05
_GREETING_SECONDS = 0.5

_T = TypeVar("_T")


class _OneSessionClient(KazooClient):  # type: ignore[misc]
    """Kazoo goes on with a new session when one has expired, and what was queued for the old one may run in it.

    It also keeps to itself how long a session the server has granted, and forgets its number while no server answers.
    """

    granted_ms: int = 0
    session_number: int = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        invoke = self._connection._invoke

        def noting(timeout: float, request: Any, xid: int | None = None) -> Any:
            answer = invoke(timeout, request, xid)
            if isinstance(request, Connect) and answer[0].time_out > 0:
                self.granted_ms = answer[0].time_out
                self.session_number = answer[0].session_id
            return answer

        self._connection._invoke = noting

    def _session_callback(self, state: Any) -> None:
        if state in ("EXPIRED_SESSION", "AUTH_FAILED", "CLOSED"):
            self._stopped.set()
        super()._session_callback(state)


class ZooKeeperSession:
    """One session; see ``fastlog.coordination.session.Session``.

    Source: Kafka 0.7.2 (ZkUtils), whose writes these are.
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout: float = 6.0,
        connection_timeout: float = 6.0,
        on_change: Watch | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
        makes_root: bool = True,
    ) -> None:
        """Connects; waits up to ``connection_timeout`` seconds for it.

        ``makes_root``: the path behind the servers is made where it is missing; for who only reads, it is not.

        ``on_change`` is called, as a watch is, when the connection goes or comes back and when the session is lost.
        ``is_wanted`` is asked while waiting; once it says no, waiting ends with ``CoordinationError``.

        Raises:
            ConfigError: ``connect`` cannot be read.
            UnknownHostError: no name of a server can be resolved; raised at once, or soon without a name server.
            CoordinationError: no server answered in time; names them.
        """
        self.servers = parse_connect(connect)
        deadline = time.monotonic() + connection_timeout
        unknown = unknown_hosts(self.servers, connection_timeout, is_wanted)
        if len(unknown) == len({host for host, _ in self.servers.servers}):
            reasons = "; ".join(f"cannot resolve {host}: {reason}" for host, reason in unknown.items())
            raise UnknownHostError(f"{reasons} (ZooKeeper at {self.servers}): is zk.connect right?")
        self._timeout = session_timeout
        self._on_change = on_change
        self._lost = threading.Event()
        self._is_closing = False
        retry = KazooRetry(max_tries=-1, delay=_LEAST_PAUSE, backoff=2, max_delay=1.0, max_jitter=0.4)
        # A server swallows a greeting that comes before it serves. Kazoo waits for the answer as long as a session
        # lasts, divided by the number of servers: so each is named several times.
        times = math.ceil(session_timeout / _GREETING_SECONDS / len(self.servers.servers))
        self._client = _OneSessionClient(
            ",".join([self.servers.hosts] * times), timeout=session_timeout, connection_retry=retry, logger=_kazoo_log
        )
        self._client.add_listener(self._heard)
        live = self._client.start_async()
        try:
            while not live.wait(min(0.1, max(0.0, deadline - time.monotonic()))):
                if self._lost.is_set() or time.monotonic() >= deadline or not is_wanted():
                    raise CoordinationError(
                        f"no ZooKeeper answers at {self.servers} within {connection_timeout:g} s: is it running, and is"
                        " zk.connect right?"
                    )
            self._id = self._client.session_number
            if self.servers.chroot:
                if makes_root:
                    self._call(self._client.ensure_path_async, self.servers.chroot)
                self._client.chroot = self.servers.chroot
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ZooKeeperSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def id(self) -> int:
        """What ``Node.owner`` shows for its ephemeral nodes."""
        return self._id

    @property
    def timeout(self) -> float:
        """Seconds of silence after which the server ends it."""
        return self._client.granted_ms / 1000

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended. Never becomes False again."""
        return self._lost.is_set()

    @property
    def is_connected(self) -> bool:
        """Whether a server answers; while False, the session may have ended without this process knowing."""
        # Not its ``state``, which follows: who was let on by a connection, or failed by its loss, may look before that.
        return not self._lost.is_set() and bool(self._client.connected)

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node, and its parents as needed. Raises ``NodeExistsError``."""
        try:
            self._call(self._client.create_async, path, data, ephemeral=ephemeral, makepath=True)
        except KazooNodeExistsError:
            found = self.get(path)
            if found is None or found.data != data or found.owner != (self._id if ephemeral else 0):
                shown = "and went" if found is None else f"with {found.data[:200]!r}"
                raise NodeExistsError(f"{path} exists {shown}") from None

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """The node, or None where there is none; the watch then waits for it to be made."""
        while True:
            try:
                data, stat = self._call(self._client.get_async, path, watch=_once(watch))
            except KazooNoNodeError:
                if watch is None or self._call(self._client.exists_async, path, watch=_once(watch)) is None:
                    return None
            else:
                return _node(data, stat)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Change a node and return its new version. Raises ``NoNodeError``, ``VersionError``."""
        try:
            return int(self._call(self._client.set_async, path, data, version).version)
        except KazooNoNodeError:
            raise NoNodeError(f"there is no {path}") from None
        except BadVersionError:
            raise VersionError(f"{path} was changed since version {version}") from None

    def put(self, path: str, data: bytes) -> None:
        """Make or change a persistent node, whatever is there."""
        while True:
            try:
                self.set(path, data)
            except NoNodeError:
                try:
                    self.create(path, data)
                except NodeExistsError:
                    continue
            return

    def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        """Remove a node without children; False where there was none. Raises ``VersionError``."""
        try:
            self._call(self._client.delete_async, path, version)
        except KazooNoNodeError:
            return False
        except BadVersionError:
            raise VersionError(f"{path} was changed since version {version}") from None
        return True

    def replace(self, path: str, data: bytes, version: int) -> None:
        """Put an ephemeral node of this session in another one's place, in one step. Raises ``VersionError``."""

        def start(path: str) -> Any:
            transaction = self._client.transaction()
            transaction.delete(path, version)
            transaction.create(path, data, ephemeral=True)
            return transaction.commit_async()

        for error in self._call(start, path):
            if isinstance(error, BadVersionError | KazooNoNodeError):
                raise VersionError(f"{path} was changed since version {version}")
            if isinstance(error, KazooException) and not isinstance(error, RolledBackError | RuntimeInconsistency):
                raise self._refusal(path, error)

    def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """The names below a node, unordered; None where there is no node: the watch then waits for it to be made."""
        while True:
            try:
                return list(self._call(self._client.get_children_async, path, watch=_once(watch)))
            except KazooNoNodeError:
                if watch is None or self._call(self._client.exists_async, path, watch=_once(watch)) is None:
                    return None

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once. May be called again."""
        self._is_closing = True
        self._lost.set()
        # Its own flag is also set where the session expired; stopping it once more is what ends its threads.
        self._client._stopped.clear()
        try:
            self._client.stop()
            self._client.close()
        except Exception:
            log.debug("closing a session of %s", self.servers, exc_info=True)

    def _heard(self, state: str) -> None:
        if self._is_closing:
            return
        if state == KazooState.LOST:
            self._lost.set()
            log.warning("event=zookeeper_session_lost servers=%s", self.servers)
        elif state == KazooState.SUSPENDED:
            log.warning("event=zookeeper_connection_lost servers=%s", self.servers)
        else:
            log.debug("event=zookeeper_connected servers=%s", self.servers)
        if self._on_change is not None:
            self._on_change()

    def _call(self, start: Callable[..., Any], path: str, *args: Any, **options: Any) -> Any:
        """Do one thing; a lost connection is waited for, since everything here may be done twice."""
        deadline = time.monotonic() + self._timeout
        backoff = Backoff(_LEAST_PAUSE, 0.5)
        while True:
            if self._lost.is_set():
                raise SessionLostError(f"the session with ZooKeeper at {self.servers} is over")
            left = deadline - time.monotonic()
            try:
                if left <= 0:
                    raise OperationTimeoutError
                return start(path, *args, **options).get(timeout=left)
            except (ConnectionLoss, SessionMovedError):
                self._lost.wait(backoff.next())
            except (SessionExpiredError, ConnectionClosedError):
                self._lost.set()
            except (KazooTimeoutError, OperationTimeoutError):
                raise CoordinationError(
                    f"ZooKeeper at {self.servers} does not answer within {self._timeout:g} s (asked about {path})"
                ) from None
            except (KazooNodeExistsError, KazooNoNodeError, BadVersionError):
                raise
            except KazooException as error:
                raise self._refusal(path, error) from error

    def _refusal(self, path: str, error: KazooException) -> CoordinationError:
        return CoordinationError(f"ZooKeeper at {self.servers} refuses {path}: {str(error) or type(error).__name__}")


def _once(watch: Watch | None) -> Callable[[object], None] | None:
    return None if watch is None else lambda _event: watch()


def _node(data: bytes, stat: ZnodeStat) -> Node:
    return Node(data, stat.version, stat.ephemeralOwner, stat.ctime, stat.mtime)
