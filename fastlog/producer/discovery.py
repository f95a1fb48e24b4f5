"""Which brokers live, and which of them has what of a topic: read from ZooKeeper, again whenever it changes.

One worker thread owns all state; watches and callers only leave a note and wake it. What was read last stays in use
while ZooKeeper is unavailable.

Source: Kafka 0.7.2 (ZKBrokerPartitionInfo), which kept its lists by what each watch told it.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fastlog.client.addresses import Address
from fastlog.client.registrations import read_addresses, read_partitions
from fastlog.coordination.outage import Outage
from fastlog.coordination.session import Session, Watch
from fastlog.coordination.watched import AUDIT_SECONDS, Watched
from fastlog.errors import ClosedError, CoordinationError
from fastlog.producer.config import ProducerConfig
from fastlog.producer.ledger import Ledger, logger
from fastlog.producer.waiting import LazyThread, LocklessCondition
from fastlog.retry import Backoff

_AWAY_LOOK_SECONDS = 0.5
_LEAST_PAUSE = 0.05

OpenSession = Callable[[Watch, Callable[[], bool]], Session]
"""Makes a session; given what to call when its connection changes, and whether it is still wanted."""


class View(NamedTuple):
    """What was read last; never changed, only replaced."""

    addresses: Mapping[int, Address] = {}
    """The addresses of the live brokers, by id."""
    partitions: Mapping[str, Mapping[int, int]] = {}
    """For each topic that was asked for: how many partitions it has on each live broker, by broker id."""
    assumed: Mapping[str, frozenset[int]] = {}
    """The brokers in ``partitions`` that have not announced the topic, and are taken to have one partition."""


class Discovery:
    """Keeps a ``View`` from ``start`` to ``stop``. Safe in any thread and in signal handlers; the thread is its own."""

    def __init__(
        self,
        config: ProducerConfig,
        ledger: Ledger,
        on_change: Callable[[View], None],
        open_session: OpenSession | None = None,
    ) -> None:
        """``on_change`` is called in the worker with each new view, before anybody who waits for it goes on."""
        self.view = View()
        self.sessions = 0
        """How many sessions with ZooKeeper there have been."""
        self.session_id: int | None = None
        """The id of the session in use; None while there is none."""
        self._config = config
        self._ledger = ledger
        self._on_change = on_change
        self._open = open_session or _zookeeper(config)
        self._tickets = itertools.count(1)
        self._topics: dict[str, None] = {}  # an ordered set; only added to
        self._audit_wanted = 0
        self._audited = 0
        self._has_news = False
        self._stopping = False
        self._work = LocklessCondition()
        self._done = LocklessCondition()
        self._error: Exception | None = None
        self._assumed: dict[str, set[int]] = {}
        self._last_counts: dict[tuple[str, int], int] = {}
        self._outage = Outage()
        self._backoff = Backoff(_LEAST_PAUSE, config.zk_sync_time_ms / 1000, 0.5)
        self._thread = LazyThread(ledger, self._run, "fastlog-producer-zookeeper")

    # --- for everybody ---

    def start(self) -> None:
        """Start the thread that reads ZooKeeper; may be called again."""
        if not self._stopping:
            self._thread.begin()

    def stop(self) -> None:
        """End the session, and the thread; returns at once."""
        self._stopping = True
        self._wake()
        self._done.notify_all()

    def wait_for(self, topic: str, seconds: float) -> View:
        """A view that knows the topic; from then on every view does.

        Raises:
            CoordinationError: ZooKeeper has not answered within ``seconds``.
            ClosedError: it was stopped.
        """
        self.follow(topic)
        known = self._done.wait_for(lambda: topic in self.view.partitions or self._stopping, seconds)
        if self._stopping:
            raise ClosedError("the producer was closed")
        if not known:
            raise self._silence(seconds)
        return self.view

    def follow(self, topic: str) -> None:
        """Have every later view know the topic; returns at once."""
        if topic not in self._topics:
            self._topics[topic] = None
            self._wake()
        self.start()

    def read_again(self, seconds: float) -> bool:
        """Read everything again, whatever watches have reported; False when that takes longer than ``seconds``."""
        ticket = next(self._tickets)
        self._audit_wanted = max(self._audit_wanted, ticket)
        self._wake()
        return self._done.wait_for(lambda: self._audited >= ticket or self._stopping, seconds)

    def _silence(self, seconds: float) -> CoordinationError:
        if isinstance(self._error, CoordinationError):
            return self._error
        cause = f": {self._error}" if self._error is not None else ""
        return CoordinationError(f"no ZooKeeper answers at {self._config.zk_connect} within {seconds:g} s{cause}")

    def _wake(self) -> None:
        self._has_news = True
        self._work.notify_all()

    # --- the thread ---

    def _run(self) -> None:
        while not self._stopping:
            try:
                session = self._open(self._wake, lambda: not self._stopping)
            except CoordinationError as error:
                self._failed(error)
                continue
            except Exception as error:
                logger.exception("no session with ZooKeeper: tried again")
                self._failed(error)
                continue
            self.sessions += 1
            self.session_id = session.id
            try:
                self._serve(session)
            except Exception as error:
                logger.exception("finding brokers: tried again in a new session")
                self._failed(error)
            finally:
                self.session_id = None
                session.close()

    def _serve(self, session: Session) -> None:
        """Read what has changed, until the session or the producer ends."""
        watched = Watched(session, self._wake)
        next_audit = time.monotonic() + AUDIT_SECONDS
        while not self._stopping:
            self._has_news = False  # before anything is read: what happens from now on is for the next turn
            if session.is_lost:
                self._pause()
                return
            if self._outage.is_for_good(session):
                return
            if not session.is_connected:
                self._sleep(_AWAY_LOOK_SECONDS)
                continue
            wanted = self._audit_wanted
            try:
                if wanted > self._audited or time.monotonic() >= next_audit:
                    next_audit = time.monotonic() + AUDIT_SECONDS
                    watched.audit()
                view = self._read(watched)
            except CoordinationError as error:
                if not session.is_lost:
                    self._failed(error)
                continue
            self._backoff.reset()
            self._error = None
            self._publish(view)
            self._audited = max(self._audited, wanted)
            self._done.notify_all()
            self._sleep(max(0.0, next_audit - time.monotonic()))

    def _read(self, watched: Watched) -> View:
        addresses: Mapping[int, Address] = read_addresses(watched, self._garbage)
        if not addresses and self.view.addresses:
            # Nothing can be sent to nobody. They may live all the same: a ZooKeeper that lost its data, or ended all
            # sessions, shows them again a little later.
            self._ledger.log(
                logging.WARNING,
                "no brokers",
                f"no broker is registered in ZooKeeper {self._config.zk_connect}: the last known ones stay in use",
            )
            addresses = self.view.addresses
            known = self.view.partitions
            topics = list(self._topics)
            places = {topic: known.get(topic) or self._places(topic, addresses, {}) for topic in topics}
            return View(addresses, places, self._shown_assumed())
        partitions = {
            topic: self._places(topic, addresses, read_partitions(watched, topic, self._garbage))
            for topic in list(self._topics)
        }
        watched.end_round()
        return View(addresses, partitions, self._shown_assumed())

    def _shown_assumed(self) -> dict[str, frozenset[int]]:
        return {topic: frozenset(brokers) for topic, brokers in self._assumed.items() if brokers}

    def _places(self, topic: str, addresses: Mapping[int, Address], announced: Mapping[int, int]) -> dict[int, int]:
        """How many partitions each living broker has, sorted by id.

        A topic that nobody has announced is taken to have partition 0 on every living broker. Each of these stays
        until it is gone or has announced the topic itself, so that the topic spreads over all of them.
        """
        found = {broker: count for broker, count in announced.items() if broker in addresses and count > 0}
        for broker, count in found.items():
            self._last_counts[topic, broker] = count
        assumed = {broker for broker in self._assumed.get(topic, ()) if broker in addresses and broker not in found}
        if not found and not assumed:
            assumed = set(addresses)
        self._assumed[topic] = assumed
        for broker in assumed:
            found[broker] = self._last_counts.get((topic, broker), 1)
        return dict(sorted(found.items()))

    def _publish(self, view: View) -> None:
        if view == self.view:
            return
        before, self.view = self.view, view
        came, went = view.addresses.keys() - before.addresses.keys(), before.addresses.keys() - view.addresses.keys()
        if before.addresses and (came or went):
            logger.info("brokers in ZooKeeper: came %s, went %s", sorted(came), sorted(went))
        try:
            self._on_change(view)
        except Exception:
            logger.exception("a change of brokers could not be followed in full")

    def _garbage(self, path: str, so: str, error: CoordinationError) -> None:
        self._ledger.log(logging.WARNING, f"garbage {path}", f"path={path}: {so}: {error}")

    def _failed(self, error: Exception) -> None:
        if self._stopping:
            return
        self._error = error
        known = "; the brokers known so far stay in use" if self.view.addresses else ""
        self._ledger.log(logging.WARNING, "zookeeper", f"finding brokers: {error}{known}")
        self._pause()

    def _pause(self) -> None:
        """Wait a while, longer each time, and at random, so that many producers do not come back at once."""
        deadline = time.monotonic() + self._backoff.next()
        self._work.wait_for(lambda: self._stopping, max(0.0, deadline - time.monotonic()))

    def _sleep(self, seconds: float) -> None:
        self._work.wait_for(lambda: self._has_news or self._stopping, seconds)


def _zookeeper(config: ProducerConfig) -> OpenSession:
    # here and not above: only who finds brokers this way pays for it
    from fastlog.coordination.zookeeper import ZooKeeperSession

    def open_session(on_change: Watch, is_wanted: Callable[[], bool]) -> Session:
        assert config.zk_connect is not None
        return ZooKeeperSession(
            config.zk_connect,
            session_timeout=config.zk_session_timeout_ms / 1000,
            connection_timeout=config.zk_connection_timeout_ms / 1000,
            on_change=on_change,
            is_wanted=is_wanted,
            makes_root=False,
        )

    return open_session
