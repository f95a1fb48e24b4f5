"""A broker that a real ZooKeeper shows, for clients that look there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from fastlog import testing
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.zkpaths import BrokerRegistration, broker_path, new_creator, topic_broker_path
from perf.replay.stage import TOPIC, Stage

HOST = "127.0.0.1"


@contextmanager
def shown(stage: Stage, port: int) -> Iterator[str]:
    """The ``zk.connect`` of a tree of its own in which the broker has one partition of the topic.

    The ZooKeeper is kept until the replay ends; the broker itself knows nothing of it.
    """
    zookeeper = stage.kept("zookeeper", testing.zookeeper)
    connect = f"{zookeeper.connect}/{uuid.uuid4().hex}"
    session = ZooKeeperSession(connect, session_timeout=20.0, connection_timeout=20.0)
    try:
        registration = BrokerRegistration(new_creator(HOST), HOST, port)
        session.create(broker_path(0), registration.encode(), ephemeral=True)
        session.create(topic_broker_path(TOPIC, 0), b"1", ephemeral=True)
        yield connect
    finally:
        session.close()
