"""A mirror at full speed: one process between two brokers, which a real ZooKeeper shows."""

from __future__ import annotations

import uuid

from fastlog import testing
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.perf.results import Run
from fastlog.zkpaths import BrokerRegistration, broker_path, new_creator, topic_broker_path
from perf.replay.scenarios import Mirrored
from perf.replay.stage import MESSAGE_BYTES, TOPIC, Stage, create_topic, wait_appended

_HOST = "127.0.0.1"


def mirrored(stage: Stage, scenario: Mirrored) -> dict[str, Run]:
    """The round's backlog, as consumers read it; from the first run that was acknowledged to the last."""
    backlog = stage.backlog()
    zookeeper = stage.kept("zookeeper", testing.zookeeper)
    connect = f"{zookeeper.connect}/{uuid.uuid4().hex}"
    stage.warm(backlog.messages)
    session = ZooKeeperSession(connect, session_timeout=20.0, connection_timeout=20.0)
    try:
        registration = BrokerRegistration(new_creator(_HOST), _HOST, backlog.broker.port)
        session.create(broker_path(0), registration.encode(), ephemeral=True)
        session.create(topic_broker_path(TOPIC, 0), b"1", ephemeral=True)
        with stage.broker(scenario.settings) as target:
            create_topic(target.port, TOPIC, 1)
            options = {"connect": connect, "target": f"0:{_HOST}:{target.port}", "topic": TOPIC}
            found = stage.run("mirror", messages=backlog.messages, **options)
            wait_appended(target.port, (TOPIC,), backlog.bytes)
    finally:
        session.close()
    detail = {**found, "mb_per_second": found["rate"] * MESSAGE_BYTES / 1e6}
    return {"rate": Run(value=found["rate"], detail=detail)}
