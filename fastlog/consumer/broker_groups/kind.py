"""Groups that a broker keeps, for the worker of a member: the coordinator is looked for until it answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastlog.client import group_requests as requests
from fastlog.client.coordinator import Coordinator, CoordinatorError, NotReachedError
from fastlog.consumer.broker_groups.session import (
    REBALANCE_SESSIONS,
    BrokerGroupSession,
    CoordinatorSession,
    refusal_of,
)
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.member_session import AnySession, GroupWork
from fastlog.consumer.status import GroupState
from fastlog.coordination.session import Watch
from fastlog.errors import ConfigError, CoordinationError, GroupCoordinatorError

_TRY_SECONDS = 0.5
_OTHERS_SECONDS = 1.0


class InBroker:
    """Groups by today's protocol, of one broker."""

    away = GroupState.NO_COORDINATOR

    def __init__(self, config: ConsumerConfig, consumer_id: str) -> None:
        self._config = config
        self._consumer_id = consumer_id
        self._is_checked = False

    def open(self, on_change: Watch, is_wanted: Callable[[], bool]) -> AnySession:
        """A place in the group, not joined yet, by the first address that answers. Raises as ``GroupKind.open``."""
        config = self._config
        coordinator = Coordinator(
            config.brokers, config.group_id, client=self._consumer_id, timeout=config.session_timeout / 2
        )
        allowed = config.zk_connection_timeout_ms / 1000
        deadline = time.monotonic() + allowed
        try:
            while True:
                left = deadline - time.monotonic()
                try:
                    coordinator.ask(requests.metadata(), requests.parse_metadata, timeout=min(_TRY_SECONDS, left))
                    break
                except CoordinatorError as error:
                    raise refusal_of(error) or error from error
                except CoordinationError as error:
                    is_late = time.monotonic() >= deadline
                    if is_late and isinstance(error, NotReachedError):  # which knows the time of the last try only
                        raise NotReachedError(f"{self.silence(allowed)}: {error.why}", error.why) from None
                    if is_late or not is_wanted():
                        raise
            if not self._is_checked:
                self._check_others(coordinator)
            self._is_checked = True
        except BaseException:
            coordinator.close()
            raise
        return CoordinatorSession(coordinator, config.session_timeout)

    def run(self, work: GroupWork, session: AnySession) -> bool:
        """Be a member by requests to the coordinator; whether it ever was one."""
        assert isinstance(session, CoordinatorSession)
        return BrokerGroupSession(work, session).run()

    def silence(self, seconds: float) -> CoordinationError:
        """The error that no address of ``bootstrap.servers`` has answered for ``seconds``."""
        return GroupCoordinatorError(f"no coordinator of groups answers at {self._config.brokers} within {seconds:g} s")

    def seconds_to_join(self, session: AnySession) -> float:
        """The longest rebalance, and the session of a member of this id that died."""
        return (REBALANCE_SESSIONS + 1) * session.timeout

    def _check_others(self, coordinator: Coordinator) -> None:
        """Raise ``ConfigError`` where the addresses are those of several brokers, as far as they answer."""
        for address in coordinator.addresses if len(coordinator.addresses) > 1 else ():
            with Coordinator(
                [address], self._config.group_id, client=self._consumer_id, timeout=_OTHERS_SECONDS
            ) as other:
                try:
                    _, cluster = other.ask(requests.metadata(), requests.parse_metadata)
                except CoordinationError:
                    continue
            if cluster != coordinator.cluster:
                raise ConfigError(
                    f"bootstrap.servers: {address} is another broker than {coordinator.address}, and each keeps groups"
                    " of its own: name addresses of one of them, or a ZooKeeper (zk.connect) for a group over both"
                )
