"""Where a query's brokers are: those of a list, or those that ZooKeeper shows. For the driver; knows no Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from fastlog.client.addresses import Address
from fastlog.client.connection import pause
from fastlog.client.registrations import read_addresses, read_partitions
from fastlog.coordination.outage import Outage
from fastlog.coordination.session import Session
from fastlog.coordination.watched import AUDIT_SECONDS, Watched
from fastlog.errors import CoordinationError, FastlogError, TransportError
from fastlog.retry import pause_after
from fastlog.spark.addresses import NamedAddress
from fastlog.zkpaths import BROKER_HOLDINGS, BROKER_TOPICS, holdings_path, parse_holdings

log = logging.getLogger(__name__)

_MOST_PAUSE = 10.0
_WAIT_PAUSE = 2.0  # a broker that is back is not left waiting for long
_REOPEN_SECONDS = 5.0


class RetryBackoff:
    """Lets a call fail ``retries`` times in a row, and for ``timeout`` seconds at least; the pauses between double.

    For one thread.
    """

    def __init__(self, retries: int, interval: float, timeout: float = 0.0) -> None:
        """``interval``: seconds of the first pause; ``timeout``: seconds from the first failure on."""
        self._retries = retries
        self._interval = interval
        self._timeout = timeout
        self._failures = 0
        self._began = 0.0

    def worked(self) -> None:
        """The next failure is a first one again."""
        self._failures = 0

    def failed(self, error: FastlogError) -> None:
        """Return after a pause, to try again, or raise ``error`` once it was tried often enough."""
        now = time.monotonic()
        if not self._failures:
            self._began = now
        left = self._began + self._timeout - now
        what = str(error).partition("\n")[0]
        doubled = pause_after(self._failures + 1, self._interval, _MOST_PAUSE)
        if left > 0:
            log.warning("%s: waiting for it, %.0f s more at most", what, left)
            doubled = min(doubled, _WAIT_PAUSE, left)
        elif self._failures >= self._retries:
            raise error
        else:
            log.warning("%s: trying again, %d of %d", what, self._failures + 1, self._retries)
        pause(doubled)
        self._failures += 1


class Brokers(Protocol):
    """Finds brokers and their addresses. For one thread."""

    follows: bool
    """Whether brokers come and go: one that is not registered now is unavailable, and not gone."""

    def look(self) -> list[NamedAddress]:
        """The brokers that are known now, with their addresses."""

    def look_again(self, named: NamedAddress) -> NamedAddress | None:
        """The present address of a broker that could not be reached; None when it is no longer there."""

    def partitions(self, broker: int) -> Mapping[str, int] | None:
        """How many partitions of each topic a broker has that does not report it; None when that is not known."""

    def absent(self, wants: Callable[[str], bool]) -> Mapping[int, Mapping[str, int]]:
        """How many partitions of the wanted topics unavailable brokers are known to have, by broker id."""

    def close(self) -> None:
        """Release what was opened to find brokers."""


class ListedBrokers:
    """The brokers of the option ``brokers``; nothing is asked to find them."""

    follows = False

    def __init__(self, named: tuple[NamedAddress, ...]) -> None:
        self._named = list(named)

    def look(self) -> list[NamedAddress]:
        """The brokers of the option."""
        return self._named

    def look_again(self, named: NamedAddress) -> NamedAddress | None:
        """The same address: the option is all that is known."""
        return named

    def partitions(self, broker: int) -> Mapping[str, int] | None:
        """None: the option does not say."""
        return None

    def absent(self, wants: Callable[[str], bool]) -> Mapping[int, Mapping[str, int]]:
        """None: those that are named have to be there."""
        return {}

    def close(self) -> None:
        """There is nothing to release."""


class Coordination:
    """A session with ZooKeeper: opened when it is first needed, and again when it is over. For one thread."""

    def __init__(self, connect: str, timeout: float, open_session: Callable[[], Session] | None = None) -> None:
        """``timeout``: of the session, and of the first connection, in seconds."""
        self.connect = connect
        self._timeout = timeout
        self._open = open_session or self._opened
        self._session: Session | None = None
        self._outage = Outage()
        self._failed_at = float("-inf")

    def session(self) -> Session:
        """A session that is alive, as far as is known. Raises ``CoordinationError``: there is none."""
        made = self._session
        if made is not None and (made.is_lost or self._outage.is_for_good(made)):
            self.close()
            made = None
        if made is None:
            try:
                made = self._session = self._open()
            except CoordinationError:
                self._failed_at = time.monotonic()
                raise
        return made

    def is_resting(self) -> bool:
        """Whether it could not be opened a moment ago: who can do without does not wait for it again."""
        return self._session is None and time.monotonic() - self._failed_at < _REOPEN_SECONDS

    def close(self) -> None:
        """End the session; the next use opens another one."""
        made, self._session, self._outage = self._session, None, Outage()
        if made is not None:
            made.close()

    def _opened(self) -> Session:
        from fastlog.coordination.zookeeper import ZooKeeperSession  # only who uses it pays for it

        return ZooKeeperSession(self.connect, session_timeout=self._timeout, connection_timeout=self._timeout)


class RegisteredBrokers:
    """The brokers that are registered in ZooKeeper. What was read last stays in use while ZooKeeper is unavailable."""

    follows = True

    def __init__(self, coordination: Coordination, retries: int, interval: float) -> None:
        """``retries``, ``interval`` (seconds): how ZooKeeper is tried while no broker is known yet."""
        self._coordination = coordination
        self._retries = retries
        self._interval = interval
        self._session: Session | None = None
        self._watched: Watched | None = None
        self._next_audit = 0.0
        self._addresses: dict[int, Address] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._reported: set[str] = set()
        self._error: CoordinationError | None = None

    def look(self) -> list[NamedAddress]:
        """All that are registered.

        Raises:
            CoordinationError: ZooKeeper has never answered, after all retries.
            TransportError: no broker has ever been registered, the same.
        """
        backoff = RetryBackoff(self._retries, self._interval)
        while not self._read():
            missing = f"no broker is registered in ZooKeeper {self._coordination.connect}: /brokers/ids is empty"
            backoff.failed(self._error or TransportError(missing))
        return [NamedAddress(address, broker) for broker, address in sorted(self._addresses.items())]

    def look_again(self, named: NamedAddress) -> NamedAddress | None:
        """The address that is registered for its id now; None where there is none."""
        self._read()
        address = self._addresses.get(named.broker) if named.broker is not None else None
        return None if address is None else NamedAddress(address, named.broker)

    def partitions(self, broker: int) -> Mapping[str, int] | None:
        """What is registered; topics that are not announced are not there."""
        try:
            watched = self._current()
            self._counts = {
                topic: read_partitions(watched, topic, self._garbage) for topic in watched.children(BROKER_TOPICS) or []
            }
        except CoordinationError as error:
            self._say("topics", f"{error}: the topics last seen stay in use")
        return {topic: counts[broker] for topic, counts in sorted(self._counts.items()) if broker in counts}

    def absent(self, wants: Callable[[str], bool]) -> Mapping[int, Mapping[str, int]]:
        """By what brokers of fastlog leave behind when they go, and by the topics that are announced.

        Nothing is known while ZooKeeper is unavailable.
        """
        found: dict[int, dict[str, int]] = {}
        try:
            watched = self._current()
            for name in watched.children(BROKER_HOLDINGS) or []:
                node = watched.get(f"{BROKER_HOLDINGS}/{name}") if name.isdecimal() else None
                if node is not None and int(name) not in self._addresses:
                    try:
                        found[int(name)] = {t: count for t, count in parse_holdings(node.data).items() if wants(t)}
                    except CoordinationError as error:
                        self._garbage(holdings_path(int(name)), "nothing is known of what the broker has", error)
            for topic in filter(wants, watched.children(BROKER_TOPICS) or []):
                for broker, count in read_partitions(watched, topic, self._garbage).items():
                    if broker not in self._addresses:
                        found.setdefault(broker, {})[topic] = count
        except CoordinationError as error:
            self._say("absent", f"{error}: whether a broker is missing is not known")
        return found

    def close(self) -> None:
        """The session is somebody else's to end."""

    def _read(self) -> bool:
        """Whether brokers are known, from now or from before."""
        self._error = None
        if self._addresses and self._coordination.is_resting():
            return True
        try:
            addresses = read_addresses(self._current(), self._garbage)
        except CoordinationError as error:
            self._error = error
            self._say("away", f"{error}: the brokers last seen stay in use")
            return bool(self._addresses)
        self._reported.discard("away")
        if addresses:
            for broker in self._addresses.keys() - addresses.keys():
                log.warning("broker %d is not registered any more: it is left out until it is", broker)
            self._addresses = addresses
            self._reported.discard("empty")
        elif self._addresses:
            # A ZooKeeper that lost its data, or ended all sessions, shows them again a little later.
            self._say(
                "empty",
                f"no broker is registered in ZooKeeper {self._coordination.connect}: the brokers last seen stay in use",
            )
        return bool(self._addresses)

    def _current(self) -> Watched:
        session = self._coordination.session()
        now = time.monotonic()
        if self._watched is None or session is not self._session:
            self._watched, self._session = Watched(session, lambda: None), session
            self._next_audit = now + AUDIT_SECONDS
        elif now >= self._next_audit:
            self._next_audit = now + AUDIT_SECONDS
            self._watched.audit()
        return self._watched

    def _garbage(self, path: str, so: str, error: CoordinationError) -> None:
        self._say(path, f"{path}: {so}: {error}")

    def _say(self, key: str, line: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            log.warning("%s", line)
