"""A real broker inside a test: ``with fastlog.testing.broker() as b:`` gives ``b.host`` and ``b.port``.

``fastlog.testing.zookeeper()`` does the same for a ZooKeeper.

Real processes, a port and a directory of its own, gone without a trace after the block. Knobs kill and pause single
processes, delay or cut connections, and fill the disk. The pytest plugin offers the same as fixtures.
"""

from __future__ import annotations

from fastlog.testing.proxy import Proxy
from fastlog.testing.running import BrokerStartError, RunningBroker, broker, cluster
from fastlog.testing.zookeeper import RunningZooKeeper, zookeeper

__all__ = ["BrokerStartError", "Proxy", "RunningBroker", "RunningZooKeeper", "broker", "cluster", "zookeeper"]
