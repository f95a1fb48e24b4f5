"""What every test can ask for: a broker, a topic name nobody else has, lines of text; the broker's log on failure."""

from __future__ import annotations

import gc
import itertools
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from fastlog.errors import MissingDependencyError
from fastlog.java import find_java, use_spark_java
from fastlog.spark.environment import check_packages
from fastlog.testing import running
from fastlog.zkserver.jars import find_class_path
from tests.harness import command_process
from tests.harness.broker import KEPT, Broker, open_brokers
from tests.harness.data import access_log_lines
from tests.harness.nursery import Nursery
from tests.harness.quick_zookeeper import quick_zookeepers
from tests.harness.raw_client import RawClient
from tests.harness.sanitizer import SLOWER

if TYPE_CHECKING:
    from tests.harness.spread import ByFileAndSession

SECONDS_BY_FOLDER = {"unit": 120, "integration": 180}
SHOWN_LOG_BYTES = 20_000
_topic_numbers = itertools.count(1)

# No assertion is about speed, this one neither: a machine may have other work.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--core`` leaves out what needs a Java; ``tests.mutants`` asks for what failed."""
    parser.addoption("--core", action="store_true", help="leave out the tests that need a Java")
    parser.addoption(
        "--failed-tests", type=Path, metavar="FILE", help="write the names of tests that failed, at the end"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Programs that tests interrupt get SIGINT, also where whoever runs the tests ignores it, as a shell's jobs do."""
    path = config.getoption("--failed-tests")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailedTests(path))
    if config.getoption("dist", "no") != "no" and not config.getoption(
        "--core"
    ):  # several processes, of which none can say it
        check_javas("all", "all")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileAndSession | None:
    """Who hands tests out where it is to be done by file."""
    from tests.harness.spread import ByFileAndSession

    return ByFileAndSession(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests stay to the end: no search for garbage looks through them, which takes 0.3 s where there are all."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """What is there between two files stays, as modules do: tests that count what is left search for garbage often.

    What a command has done to Ctrl-C does not: tests that call it need not know.
    """
    try:
        return (yield)
    finally:
        if nextitem is not None and nextitem.path != item.path:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            gc.collect()
            gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test without a time limit of its own gets that of its folder. Where some need a Java and find none, none runs.

    It is the last to look, behind what ``-k`` and ``-m`` leave out.
    """
    needing = [item for item in items if item.get_closest_marker("java")]
    if config.getoption("--core"):
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]
    else:
        with_spark = [item for item in needing if item.get_closest_marker("spark")]
        check_javas([item for item in needing if item not in with_spark], with_spark)
    if hasattr(config, "workerinput"):  # one of several processes has those that share a session: it begins with them
        from tests.harness.spread import shares_the_session

        items.sort(key=lambda item: not shares_the_session(item.nodeid.partition("::")[0]))
    for item in items:
        own = item.get_closest_marker("timeout")
        if seconds := own.args[0] if own else SECONDS_BY_FOLDER.get(item.path.parent.name):
            item.add_marker(pytest.mark.timeout(seconds * SLOWER), append=False)


def check_javas(with_zookeeper: Sequence[object], with_spark: Sequence[object]) -> None:
    """Raise ``UsageError`` that says what is missing unless these tests can run."""
    missing = []
    for group, what, check in (
        (with_zookeeper, "a Java and a ZooKeeper", check_zookeeper),
        (with_spark, "Spark and its Java", check_spark),
    ):
        try:
            if group:
                check()
        except MissingDependencyError as error:
            missing.append(f"tests need {what}: {error}")
    if missing:
        raise pytest.UsageError(*missing, "Or leave them out on purpose: scripts/test --core")


def check_zookeeper() -> None:
    """Raise ``MissingDependencyError`` unless a ZooKeeper can be started."""
    find_java()
    find_class_path()


def check_spark() -> None:
    """Raise ``MissingDependencyError`` unless Spark can be started; whatever test does so, it takes the Java found."""
    check_packages()
    use_spark_java()


class FailedTests:
    """Writes down which failed, for ``tests.mutants``; of several processes, the one that hands tests out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of a test, or of what comes before and behind it."""
        if report.failed:
            self._names.setdefault(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """The run has come to its end."""
        self._path.write_text("".join(f"{name}\n" for name in self._names))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the log of every broker that runs at that moment."""
    report = yield
    if report.failed:
        for broker in open_brokers:
            if broker.log_path.exists():
                report.sections.append((f"log of {broker.directory}", broker.log_text()[-SHOWN_LOG_BYTES:]))
    return report


@pytest.fixture(scope="session", autouse=True)
def nursery() -> Iterator[None]:
    """Brokers and commands are forked, from a process that this one has for it."""
    made = Nursery()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Broker, "begin", made.start)
        patched.setattr(command_process, "begun", made.run)
        patched.setattr(running, "start_broker", made.start_testing)
        yield
    made.close()


@pytest.fixture(scope="session", autouse=True)
def zookeepers() -> Iterator[None]:
    """ZooKeepers start quickly."""
    with quick_zookeepers():
        yield


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic{next(_topic_numbers):04}"


@pytest.fixture
def new_topic() -> Callable[[], str]:
    """Gives a topic name that no other test uses, each time it is called."""
    return lambda: f"topic{next(_topic_numbers):04}"


@pytest.fixture(scope="session")
def data_lines() -> tuple[bytes, ...]:
    """About 10,000 access-log lines."""
    return access_log_lines()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with two processors and four partitions a topic, shared by the tests of one module."""
    with Broker(tmp_path_factory.mktemp("broker"), settings={"num.partitions": 4} | KEPT) as running:
        yield running


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose one processor serves every connection, so that what blocks it is seen by all."""
    with Broker(tmp_path_factory.mktemp("single"), processors=1, settings={"num.partitions": 4} | KEPT) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    """A connection to the shared broker."""
    with broker.connect() as connected:
        yield connected


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Starts a broker for this test alone; takes what ``Broker`` takes after the directory, which is ``tmp_path``."""
    with ExitStack() as stack:
        numbers = itertools.count()

        def start(**options: Any) -> Broker:
            number = next(numbers)
            directory = options.pop("directory", tmp_path / f"broker{number}")
            return stack.enter_context(Broker(directory, **options))

        yield start
