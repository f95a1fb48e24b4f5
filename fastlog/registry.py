"""The broker in ZooKeeper: its own node, and one for each topic it has, so that producers and consumers find it.

Written exactly as Kafka 0.7.2 writes them (KafkaZooKeeper, LogManager), and otherwise than there kept so: whatever
ZooKeeper shows is compared with what the broker has, until both agree, again whenever either changes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol

from fastlog.addresses import host_port
from fastlog.coordination.addresses import parse_connect
from fastlog.coordination.outage import Outage
from fastlog.coordination.session import (
    Node,
    NodeExistsError,
    NoNodeError,
    Session,
    SessionLostError,
    VersionError,
    Watch,
    session_name,
)
from fastlog.coordination.watched import AUDIT_SECONDS
from fastlog.counts import listed
from fastlog.errors import CoordinationError
from fastlog.log._shared_memory import KEEPER
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.retry import Backoff
from fastlog.workers import child
from fastlog.zkpaths import (
    BROKER_IDS,
    BrokerRegistration,
    broker_path,
    encode_holdings,
    encode_number,
    holdings_path,
    topic_broker_path,
    topic_path,
)

__all__ = ["Registration", "Registry", "parse_connect"]

log = logging.getLogger(__name__)

BLOCKED_LOOK_SECONDS = 1.0
AWAY_LOOK_SECONDS = 0.5
LEAST_PAUSE, MOST_PAUSE = 0.1, 2.0
GATHER_SECONDS, MOST_GATHER_SECONDS = 0.02, 0.1
SHOWN_TOPICS = 10
MOST_HOLDINGS_BYTES = 900_000
"""A node of ZooKeeper holds a megabyte at most, unless it is configured otherwise."""
_TRIES = 5
_AT_ONCE = 16


class Registration:
    """What one session shows of a broker. For one thread, which has some help; watches only note what has changed."""

    def __init__(
        self, session: Session, broker: int, value: BrokerRegistration, former: Collection[str], notify: Watch
    ) -> None:
        """``former``: creators of earlier starts, whose processes are known to be gone.

        ``notify`` is called, as a watch is, when something of it has changed.
        """
        self._session = session
        self._path = broker_path(broker)
        self._broker = broker
        self._value = value
        self._former = frozenset(former)
        self._notify = notify
        self._made: set[str] = set()
        self._settled: dict[str, bytes] = {}
        self.announced: dict[str, int] = {}
        """The partition count that ZooKeeper shows of each topic, as far as is known. Any thread may look."""
        self._watched: set[str] = set()
        self._changed: deque[str] = deque()
        self._others: list[int] = []
        self._others_changed = True

    def hold_broker(self) -> Node | None:
        """Let ZooKeeper show the broker; the node in which another one holds the id, if there is one.

        Raises (so does ``hold_topics``):
            SessionLostError: everything this session made is gone.
            CoordinationError: ZooKeeper does not answer or refuses; what was done stays, the rest is for the next call.
        """
        while self._changed:
            path = self._changed.popleft()
            self._settled.pop(path, None)
            self._watched.discard(path)
        return self._hold(self._path, self._value.encode(), self._is_stale)

    def hold_topics(self, topics: Mapping[str, int], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Let ZooKeeper show the partition count of each topic, while ``is_wanted``; free where nothing changed.

        For who holds the id: what another session made of these nodes is left over. Several at a time, as each waits
        for a server twice or more, and a broker whose session has ended has all of them to show.
        """
        due = [
            (topic, count)
            for topic, count in topics.items()
            if self._settled.get(topic_broker_path(topic, self._broker)) != encode_number(count)
        ]

        silence: list[CoordinationError] = []

        def hold(item: tuple[str, int]) -> CoordinationError | None:
            if silence or not is_wanted():
                return None
            error = self._hold_topic(*item)
            if error is not None and (self._session.is_lost or not self._session.is_connected):
                silence.append(error)  # the others would wait as long, for nothing
            return error

        failures = [hold(item) for item in due[:1]]  # alone: a server that is silent is asked once
        if due[1:]:
            with ThreadPoolExecutor(min(_AT_ONCE, len(due)), "fastlog-register") as pool:
                failures += pool.map(hold, due[1:])
        # a topic that ZooKeeper refuses keeps no other one back
        first = next((error for error in (*silence, *failures) if error is not None), None)
        if first is not None:
            raise first

    def drop_topics(self, topics: Collection[str]) -> None:
        """Let ZooKeeper show no partitions of these topics any more, nor a topic of which no broker has any."""
        for topic in topics:
            path = topic_broker_path(topic, self._broker)
            self._session.delete(path)
            self._made.discard(path)
            self._settled.pop(path, None)
            if self._session.children(topic_path(topic)) == []:
                # another broker may have it now: then it stays
                with contextlib.suppress(CoordinationError):
                    self._session.delete(topic_path(topic))
            self.announced.pop(topic, None)

    def _hold_topic(self, topic: str, count: int) -> CoordinationError | None:
        try:
            self._hold(topic_broker_path(topic, self._broker), encode_number(count), lambda _: True)
        except CoordinationError as error:
            self.announced.pop(topic, None)
            return error
        self.announced[topic] = count
        return None

    def leave_word(self, topics: Mapping[str, int]) -> None:
        """Write down what the broker has where it stays when the broker goes; free where nothing changed.

        Only who reads a topic to its end needs that, so a refusal by ZooKeeper is logged, and no more.
        """
        path, data = holdings_path(self._broker), encode_holdings(topics)
        if self._settled.get(path) == data:
            return
        self._settled[path] = data
        if len(data) > MOST_HOLDINGS_BYTES:
            log.warning(
                "not written path=%s bytes=%d: that this broker is missing is not seen by readers", path, len(data)
            )
            return
        try:
            node = self._session.get(path)
            if node.data != data if node is not None else topics:
                self._session.put(path, data)
        except SessionLostError:
            raise
        except CoordinationError as error:
            log.warning("not written path=%s reason=%s: tried again in %d s", path, error, AUDIT_SECONDS)

    def others(self) -> list[int]:
        """The ids of the other brokers that ZooKeeper shows, in order; free where nothing changed.

        Raises as ``hold_broker`` does.
        """
        if self._others_changed:
            self._others_changed = False  # before it is read: a change while that goes on is looked at again
            try:
                names = self._session.children(BROKER_IDS, self._on_others) or ()
            except CoordinationError:
                self._others_changed = True
                raise
            ids = {int(name) for name in names if name.isascii() and name.isdecimal()}
            self._others = sorted(ids - {self._broker})
        return self._others

    def _on_others(self) -> None:
        self._others_changed = True
        self._notify()

    def recheck(self) -> None:
        """Let the next calls read everything again."""
        self._settled.clear()

    def _hold(self, path: str, data: bytes, may_replace: Callable[[Node], bool]) -> Node | None:
        if self._settled.get(path) == data:
            return None
        if path not in self._made:
            self._create(path, data)
            self._made.add(path)
        for _ in range(_TRIES):
            node = self._get(path)
            if node is None:
                self._create(path, data)
            elif node.owner == self._session.id:
                if node.data == data:
                    self._settled[path] = data
                    return None
                log.info("path=%s is %r, changed to %r", path, node.data[:200], data)
                with contextlib.suppress(VersionError, NoNodeError):
                    self._session.set(path, data, node.version)
            elif may_replace(node) or not node.owner:
                if not node.owner:  # a broker's node ends with its session: somebody made this one by hand
                    log.warning("removing path=%s, which is no broker's: value=%r", path, node.data[:200])
                elif path == self._path:
                    log.info("replacing path=%s of an earlier session: value=%r", path, node.data[:200])
                with contextlib.suppress(VersionError):
                    # In one step: without the broker for a moment, keys would go elsewhere, and groups share anew.
                    self._session.replace(path, data, node.version)
            else:
                return node
        raise CoordinationError(f"{path} is changed by somebody else all the time")

    def _create(self, path: str, data: bytes) -> None:
        with contextlib.suppress(NodeExistsError):
            self._session.create(path, data, ephemeral=True)

    def _get(self, path: str) -> Node | None:
        """Reads the node; leaves one watch, however often it is read."""
        if path in self._watched:
            return self._session.get(path)
        node = self._session.get(path, partial(self._on_change, path))
        self._watched.add(path)
        return node

    def _on_change(self, path: str) -> None:
        self._changed.append(path)
        self._notify()

    def _is_stale(self, node: Node) -> bool:
        if node.data == self._value.encode():
            return True  # of a keeper before this one
        try:
            return BrokerRegistration.parse(node.data).creator in self._former
        except CoordinationError:
            return False


class RegistrationStatus(NamedTuple):
    """How the broker stands with ZooKeeper, as far as its registry knows."""

    session: str
    """``none``: there is no session now; ``away``: there is one, and no server answers; ``waiting``: another start
    holds the id; ``registering``; ``registered``."""
    problem: str
    """Why not everything is shown; empty: no try has failed since the last one that did all."""
    announced: Mapping[str, int]
    """The partition count that is shown of each topic."""


class OpenSession(Protocol):
    """Opens a session; waits for it while ``is_wanted``. Raises ``CoordinationError``."""

    def __call__(self, on_change: Watch, is_wanted: Callable[[], bool]) -> Session: ...


class Registry:
    """Keeps a broker in ZooKeeper, in a thread of its own, through every outage. ``start`` and the rest: one thread.

    Nothing waits for it: while ZooKeeper is unavailable, clients are served, and topics wait to be announced.
    """

    def __init__(self, shared: child.Shared, open_session: OpenSession | None = None) -> None:
        config, listener = shared.config, shared.listeners[0]
        self._config = config
        self._arena = shared.arena
        self._manager = LogManager(config, shared.arena, FileOps())
        self._value = BrokerRegistration(shared.creators[0], listener.advertised_host, listener.advertised_port)
        self._former = shared.creators[1:]
        self._open = open_session or self._open_zookeeper
        self._patience = (config.zk_session_timeout_ms + config.zk_sync_time_ms) / 1000
        self._flag = threading.Event()
        self._stopping = threading.Event()
        self._disturbed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fastlog-registry", daemon=True)
        self._change_count = -1
        self._topics: dict[str, int] = {}
        self._blocked_since: float | None = None
        self._outage = Outage()
        self._backoff = Backoff(LEAST_PAUSE, MOST_PAUSE, 0.5)
        self._session: Session | None = None
        self._table: Registration | None = None
        self._holds = False
        self._problem = ""
        self.may_not_run = False
        """Another live broker has the id, and this one never had it. The reason is in the log."""

    # -- the keeper's side ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that registers the broker."""
        self._thread.start()

    def look(self) -> None:
        """See whether there are new partitions; returns at once."""
        if self._arena.change_count != self._change_count:
            self._flag.set()

    def stop(self) -> None:
        """End the session, so that this broker's nodes vanish; returns at once."""
        self._stopping.set()
        self._flag.set()

    def wait_stopped(self, seconds: float) -> None:
        """Wait until they have. When ZooKeeper does not answer they vanish with the session's time-out."""
        self._thread.join(max(0.0, seconds))

    def status(self) -> RegistrationStatus:
        """What is known at this moment; for any thread, waits for nothing."""
        session, table = self._session, self._table
        if session is None or table is None or session.is_lost:
            return RegistrationStatus("none", self._problem, {})
        announced = dict(table.announced)
        if not session.is_connected:
            return RegistrationStatus("away", self._problem, announced)
        if self._blocked_since is not None:
            return RegistrationStatus("waiting", self._problem, announced)
        return RegistrationStatus("registered" if self._holds else "registering", self._problem, announced)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set() and not self.may_not_run:
            try:
                session = self._open(self._on_session_change, self._is_wanted)
            except CoordinationError as error:
                self._failed(error)
                continue
            except Exception:
                log.exception("no session with ZooKeeper: tried again")
                self._pause()
                continue
            try:
                self._arena.count(KEEPER, "zookeeper_sessions")
                self._serve(session)
            except Exception:
                log.exception("registration: tried again in a new session")
                self._pause()
            finally:
                self._session = self._table = None
                session.close()

    def _open_zookeeper(self, on_change: Watch, is_wanted: Callable[[], bool]) -> Session:
        # here and not above: of all processes this one alone pays for it, and only when it is used
        from fastlog.coordination.zookeeper import ZooKeeperSession

        return ZooKeeperSession(
            self._config.zookeeper,
            session_timeout=self._config.zk_session_timeout_ms / 1000,
            connection_timeout=self._config.zk_connection_timeout_ms / 1000,
            on_change=on_change,
            is_wanted=is_wanted,
        )

    def _is_wanted(self) -> bool:
        return not self._stopping.is_set()

    def _on_session_change(self) -> None:
        self._disturbed.set()
        self._flag.set()

    def _serve(self, session: Session) -> None:
        """Keep ZooKeeper right until the session or the broker ends, or the broker may not run."""
        table = Registration(session, self._config.broker_id, self._value, self._former, self._flag.set)
        self._session, self._table, self._holds = session, table, False
        shown: dict[str, int] = {}
        next_audit = time.monotonic() + AUDIT_SECONDS
        while True:
            # cleared before anything is read: what happens from now on is looked at in the next turn
            self._flag.clear()
            if self._stopping.is_set():
                return
            if session.is_lost:
                self._pause()
                return
            if self._outage.is_for_good(session):
                log.warning("registration: no ZooKeeper for two time-outs of a session: trying with a new one")
                return
            if not session.is_connected:
                self._blocked_since = None
                self._flag.wait(AWAY_LOOK_SECONDS)
                continue
            if time.monotonic() >= next_audit:
                next_audit = time.monotonic() + AUDIT_SECONDS
                table.recheck()
            try:
                other = table.hold_broker()
                if other is not None:
                    self._problem = f"{self._shown(other)} holds the id"
                    if self._has_waited_for(other):
                        return
                    left = (self._blocked_since or 0.0) + self._patience - time.monotonic()
                    self._flag.wait(left if 0 < left < BLOCKED_LOOK_SECONDS else BLOCKED_LOOK_SECONDS)
                    continue
                self._blocked_since = None
                if not self._holds:
                    self._holds = True
                    self._say_registered(session)
                self._tell_of_others(table.others())
                wanted = self._wanted()
                table.drop_topics(table.announced.keys() - wanted.keys())
                table.leave_word(wanted)  # first: what was announced is known to be missing when the broker dies
                table.hold_topics(wanted, self._is_wanted)
            except SessionLostError:
                continue
            except CoordinationError as error:
                self._blocked_since = None
                self._failed(error)
                continue
            self._backoff.reset()
            self._problem = ""
            if wanted != shown:
                _say_topics({topic: count for topic, count in wanted.items() if shown.get(topic) != count})
                shown = wanted
            self._flag.wait(max(0.0, next_audit - time.monotonic()))

    def _say_registered(self, session: Session) -> None:
        self._arena.count(KEEPER, "zookeeper_registrations")
        log.info(
            "registered path=%s value=%r session=%s zookeeper=%s",
            broker_path(self._config.broker_id),
            self._value.encode().decode(),
            session_name(session.id),
            self._config.zookeeper,
        )

    def _tell_of_others(self, others: list[int]) -> None:
        """Let processors know whether this broker is a cluster of one, as clients of today's protocol take it to be."""
        other = others[0] if others else None
        before = self._arena.other_broker
        if other == before:
            return
        self._arena.set_other_broker(other)
        if other is None:
            log.info("no other broker is registered any more: clients of today's protocol are served again")
        elif before is None:
            log.warning(
                "broker %d is registered in ZooKeeper %s too: clients of today's protocol are refused, because they "
                "would take the partitions of one broker for all",
                other,
                self._config.zookeeper,
            )

    def _wanted(self) -> dict[str, int]:
        """The partition count of every topic that has a partition here."""
        count = self._arena.change_count
        if count == self._change_count:
            return self._topics
        # several partitions of one topic are often made one after the other
        deadline = time.monotonic() + MOST_GATHER_SECONDS
        while self._change_count >= 0 and time.monotonic() < deadline and not self._stopping.wait(GATHER_SECONDS):
            before, count = count, self._arena.change_count
            if before == count:
                break
        self._change_count = count
        self._topics = {topic: self._manager.partition_count(topic) for topic in self._manager.topics_of_kafka07()}
        return self._topics

    def _has_waited_for(self, other: Node) -> bool:
        """Whether the broker must stop, because the node of another one stays for longer than a dead one's would."""
        now = time.monotonic()
        if self._disturbed.is_set() or self._blocked_since is None:
            # a ZooKeeper that was away begins to count a session's time anew
            self._disturbed.clear()
            self._blocked_since = now
            log.info("waiting up to %g s for %s to go", self._patience, self._shown(other))
        if now - self._blocked_since < self._patience:
            return False
        if self._arena.counters(KEEPER)["zookeeper_registrations"]:
            log.warning("not registered: %s has taken the id; tried again until it is free", self._shown(other))
            return False
        log.error(
            "broker id %d is taken by %s, which lives: it was not gone after %g s, and this broker may not run. Give "
            "it an id of its own with --broker-id (brokerid), or stop the other one",
            self._config.broker_id,
            self._shown(other),
            self._patience,
        )
        self.may_not_run = True
        return True

    def _shown(self, other: Node) -> str:
        try:
            found = BrokerRegistration.parse(other.data)
        except CoordinationError:
            who = f"{other.data[:200]!r}"
        else:
            who = f"the broker at {host_port(found.host, found.port)} (creator {found.creator})"
        path = broker_path(self._config.broker_id)
        return f"{who}, session {session_name(other.owner)}, in {path} of ZooKeeper {self._config.zookeeper}"

    def _failed(self, error: CoordinationError) -> None:
        if self._stopping.is_set():
            return
        self._arena.count(KEEPER, "zookeeper_failures")
        self._problem = str(error)
        log.warning("registration: %s; clients are served, and it is tried again", error)
        self._pause()

    def _pause(self) -> None:
        """Wait a while, longer each time, and at random, so that many brokers do not come back at once."""
        self._stopping.wait(self._backoff.next())


def _say_topics(topics: Mapping[str, int]) -> None:
    if topics:
        named = [f"{topic!r}: {count}" for topic, count in topics.items()]
        log.info("announced topics with their partitions: %s", listed(named, SHOWN_TOPICS))
