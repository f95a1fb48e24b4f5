"""What may keep a group, ZooKeeper or a broker: how its members get a session there, and act in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.member_session import AnySession, GroupWork
from fastlog.consumer.status import GroupState
from fastlog.coordination.session import Session, Watch
from fastlog.errors import CoordinationError

OpenSession = Callable[[Watch, Callable[[], bool]], Session]
"""Makes a session with ZooKeeper; given what to call when its connection changes, and whether it is still wanted."""


class GroupKind(Protocol):
    """For the worker of one member, but for what is said of single calls."""

    away: GroupState
    """How a member stands that is cut off. For any thread."""

    def open(self, on_change: Watch, is_wanted: Callable[[], bool]) -> AnySession:
        """A new session. ``on_change`` is called when its connection changes; ``is_wanted`` ends waiting.

        Raises:
            CoordinationError: nobody answers; it is tried again.
            FastlogError: it cannot be; trying again does not mend it.
        """

    def run(self, work: GroupWork, session: AnySession) -> bool:
        """Be a member until the session ends; whether it ever was one. Afterwards nothing is read or owned."""

    def silence(self, seconds: float) -> CoordinationError:
        """What to say when nobody has answered for so long. For any thread."""

    def seconds_to_join(self, session: AnySession) -> float:
        """How long others may keep a new member out that will get in: one of its id has died. For any thread."""


class InZooKeeper:
    """Groups as those of Kafka 0.7."""

    away = GroupState.NO_ZOOKEEPER

    def __init__(self, config: ConsumerConfig, open_session: OpenSession | None = None) -> None:
        """Sessions are made by ``open_session``, if it is given."""
        self._config = config
        self._open_session = open_session or self._open
        self._session: Session | None = None

    def open(self, on_change: Watch, is_wanted: Callable[[], bool]) -> AnySession:
        """A session with ZooKeeper."""
        self._session = self._open_session(on_change, is_wanted)
        return self._session

    def run(self, work: GroupWork, session: AnySession) -> bool:
        """By nodes there."""
        from fastlog.consumer.group_session import GroupSession

        assert self._session is session and self._session is not None
        return GroupSession(work, self._session).run()

    def silence(self, seconds: float) -> CoordinationError:
        """Names the servers."""
        return CoordinationError(f"no ZooKeeper answers at {self._config.zk_connect} within {seconds:g} s")

    def seconds_to_join(self, session: AnySession) -> float:
        """Until the session of who died is over."""
        return session.timeout

    def _open(self, on_change: Watch, is_wanted: Callable[[], bool]) -> Session:
        from fastlog.coordination.zookeeper import ZooKeeperSession

        return ZooKeeperSession(
            self._config.zk_connect,
            session_timeout=self._config.session_timeout,
            connection_timeout=self._config.zk_connection_timeout_ms / 1000,
            on_change=on_change,
            is_wanted=is_wanted,
        )


def kind_of(config: ConsumerConfig, consumer_id: str, open_session: OpenSession | None = None) -> GroupKind:
    """What the settings name."""
    if config.zk_connect:
        return InZooKeeper(config, open_session)
    from fastlog.consumer.broker_groups.kind import InBroker

    return InBroker(config, consumer_id)
