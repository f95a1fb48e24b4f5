"""What a ZooKeeper shows of brokers, read on a session of the test's own, and brokers that register there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from fastlog.coordination.session import Node
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.errors import CoordinationError
from tests.harness.broker import Broker, wait_until
from tests.harness.timing import PATIENCE

SESSION_SECONDS = 1.0
BACK_SECONDS = PATIENCE
"""Twice the time-out of a session is promised; a machine that is busy with other tests gets five times as much."""


def registered_broker(directory: Path, connect: str, broker_id: int = 0, **options: Any) -> Broker:
    """A broker, not yet started, that registers in ``connect``; ``settings`` as for ``Broker``."""
    settings = {
        "brokerid": broker_id,
        "zk.connect": connect,
        "zk.sessiontimeout.ms": int(SESSION_SECONDS * 1000),
        "zk.connectiontimeout.ms": 1000,
        "zk.synctime.ms": 500,
        **options.pop("settings", {}),
    }
    return Broker(directory, settings=settings, **options)


class Tree:
    """What is below ``/brokers``. Opens another session where one is lost, and asks again where nobody answers."""

    def __init__(self, connect: str) -> None:
        self._connect = connect
        self._session: ZooKeeperSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session; the next read opens another one."""
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def session(self) -> ZooKeeperSession:
        """A session that is alive, as far as is known."""
        if self._session is None or self._session.is_lost:
            self.close()
            self._session = ZooKeeperSession(self._connect, session_timeout=3.0, connection_timeout=20.0)
        return self._session

    def node(self, path: str) -> Node | None:
        """The node at a path; None where there is none."""
        for _ in range(20):
            try:
                return self.session.get(path)
            except CoordinationError:
                # the session of a server that lost its data is never over, and of no use
                self.close()
        raise AssertionError(f"{self._connect} does not answer")

    def id_node(self, broker_id: int = 0) -> Node | None:
        return self.node(f"/brokers/ids/{broker_id}")

    def counts(self, broker_id: int = 0) -> dict[str, bytes]:
        """The value of each topic of a broker."""
        try:
            found = {
                name: self.node(f"/brokers/topics/{name}/{broker_id}")
                for name in self.session.children("/brokers/topics") or []
            }
        except CoordinationError:
            return {}
        return {name: node.data for name, node in found.items() if node is not None}

    def shows(self, broker: Broker, broker_id: int = 0, topics: dict[str, int] | None = None) -> bool:
        """Whether all of a broker is there, in the session that its id has."""
        node = self.id_node(broker_id)
        if node is None or not node.data.endswith(f":127.0.0.1:{broker.port}".encode()) or not node.owner:
            return False
        for topic, count in (topics or {}).items():
            found = self.node(f"/brokers/topics/{topic}/{broker_id}")
            if found is None or (found.data, found.owner) != (b"%d" % count, node.owner):
                return False
        return True

    def wait_shows(
        self, broker: Broker, broker_id: int = 0, topics: dict[str, int] | None = None, within: float = BACK_SECONDS
    ) -> Node:
        """The id node once all of the broker is there."""
        wait_until(
            f"ZooKeeper shows {broker_id} with {topics}", lambda: self.shows(broker, broker_id, topics), within, 0.01
        )
        node = self.id_node(broker_id)
        assert node is not None
        return node

    def wait_gone(self, broker_id: int = 0, within: float = BACK_SECONDS) -> None:
        """Returns once nothing of the broker is shown."""
        wait_until(
            f"nothing of {broker_id} is left",
            lambda: self.id_node(broker_id) is None and not self.counts(broker_id),
            within,
            0.01,
        )
