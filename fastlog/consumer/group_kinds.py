"""The two kinds of groups, kept by ZooKeeper or by a broker: how a member gets a session there, and acts in it."""

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
    """How one member deals with what keeps its group. For the member's worker, where nothing else is said."""

    away: GroupState
    """The state of a member that is cut off. For any thread."""

    def open(self, on_change: Watch, is_wanted: Callable[[], bool]) -> AnySession:
        """Open a new session. ``on_change`` is called when its connection changes; ``is_wanted`` ends waiting.

        Raises:
            CoordinationError: no server answers; it is tried again.
            FastlogError: it is refused; trying again does not help.
        """

    def run(self, work: GroupWork, session: AnySession) -> bool:
        """Be a member until the session ends; whether it ever was one. Afterwards nothing is read or owned."""

    def silence(self, seconds: float) -> CoordinationError:
        """The error for a start without an answer for ``seconds``. For any thread."""

    def seconds_to_join(self, session: AnySession) -> float:
        """How long a new member may have to wait for one of its id that has died, in seconds. For any thread."""


class InZooKeeper:
    """A group as Kafka 0.7 has them: members, owners and offsets are nodes in ZooKeeper."""

    away = GroupState.NO_ZOOKEEPER

    def __init__(self, config: ConsumerConfig, open_session: OpenSession | None = None) -> None:
        """Sessions are made by ``open_session``, if it is given."""
        self._config = config
        self._open_session = open_session or self._open
        self._session: Session | None = None

    def open(self, on_change: Watch, is_wanted: Callable[[], bool]) -> AnySession:
        """Open a session with ZooKeeper. Raises as ``GroupKind.open``."""
        self._session = self._open_session(on_change, is_wanted)
        return self._session

    def run(self, work: GroupWork, session: AnySession) -> bool:
        """Be a member by an ephemeral node, and own partitions by others; whether it ever was one."""
        from fastlog.consumer.group_session import GroupSession

        assert self._session is session and self._session is not None
        return GroupSession(work, self._session).run()

    def silence(self, seconds: float) -> CoordinationError:
        """The error that no server of ``zk.connect`` has answered for ``seconds``."""
        return CoordinationError(f"no ZooKeeper answers at {self._config.zk_connect} within {seconds:g} s")

    def seconds_to_join(self, session: AnySession) -> float:
        """The session's time-out: until then the node of a member of this id that died stays."""
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
    """The kind of group that the settings ask for: ``zk.connect``, or else ``bootstrap.servers``."""
    if config.zk_connect:
        return InZooKeeper(config, open_session)
    from fastlog.consumer.broker_groups.kind import InBroker

    return InBroker(config, consumer_id)
