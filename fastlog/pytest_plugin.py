"""Fixtures for tests that need a broker or a ZooKeeper.

``fastlog_broker``, ``fastlog_shared_broker``, ``fastlog_topic``, ``fastlog_cluster``, ``fastlog_zookeeper``.
The report of a test that fails has what its brokers have said meanwhile, wherever they come from.

Nothing of fastlog is imported before the first of them is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fastlog.testing import RunningBroker, RunningZooKeeper


@pytest.fixture
def fastlog_broker() -> Iterator[RunningBroker]:
    """A broker of the test's own; see ``fastlog.testing.RunningBroker``."""
    from fastlog import testing

    with testing.broker() as running:
        yield running


@pytest.fixture(scope="session")
def fastlog_shared_broker() -> Iterator[RunningBroker]:
    """A broker for all tests of this process: with ``fastlog_topic`` they do not meet."""
    from fastlog import testing

    with testing.broker() as running:
        yield running


@pytest.fixture
def fastlog_topic() -> str:
    """A topic name that no other test has, whatever broker it uses."""
    import uuid

    return f"topic-{uuid.uuid4().hex}"


@pytest.fixture
def fastlog_cluster() -> Iterator[Callable[..., list[RunningBroker]]]:
    """A function that starts ``n`` brokers for the test: ``brokers = fastlog_cluster(2, partitions=4)``."""
    from fastlog import testing

    with ExitStack() as stack:

        def start(count: int = 2, **settings: Any) -> list[RunningBroker]:
            return stack.enter_context(testing.cluster(count, **settings))

        yield start


@pytest.fixture
def fastlog_zookeeper() -> Iterator[RunningZooKeeper]:
    """A ZooKeeper of the test's own; see ``fastlog.testing.RunningZooKeeper``."""
    from fastlog import testing

    with testing.zookeeper() as running:
        yield running


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What brokers said before this test does not stand in its report."""
    running = sys.modules.get("fastlog.testing.running")
    if running is not None:
        running.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test's report shows the logs of its brokers."""
    report = yield
    running = sys.modules.get("fastlog.testing.running")
    if running is not None and report.failed:
        report.sections += [(f"log of the broker {address}", text) for address, text in running.logs_of_test()]
    return report
