"""Log records into a topic: nobody waits, nothing is raised into the program, and what is lost is counted and said."""

from __future__ import annotations

import json
import logging
import logging.config
import logging.handlers
import math
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fastlog
from fastlog.errors import ArgumentError, ConfigError, InvalidTopicError
from fastlog.loghandler import JsonFormatter, LogHandler, StructlogProcessor
from fastlog.producer import Crc32Partitioner, publisher
from fastlog.wire import requests as rq
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stalled, stored
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE, sooner_than


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """One that nothing else hears; its handlers are closed afterwards."""
    made = logging.getLogger("program.part")
    made.propagate = False
    made.setLevel(logging.DEBUG)
    yield made
    for handler in list(made.handlers):
        made.removeHandler(handler)
        handler.close()


def flushed(handler: LogHandler | StructlogProcessor) -> None:
    handler.flush(PATIENCE)
    assert handler.pending == 0


def test_records_arrive_in_their_order_as_the_formatter_makes_them(logger: logging.Logger) -> None:
    with FakeBroker() as broker:
        handler = LogHandler(broker.address, topic="t")
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        logger.addHandler(handler)
        for number in range(2500):
            logger.info("line %d", number)
        # Past pytest's own handler, whose text goes to another process that takes no such characters.
        handler.handle(logging.LogRecord("program", logging.WARNING, "", 0, "ü \udcff", None, None))
        flushed(handler)
        assert stored(broker)[:2500] == [b"INFO line %d" % number for number in range(2500)]
        assert stored(broker)[2500:] == ["WARNING ü \\udcff".encode()]
        assert (handler.published, handler.dropped) == (2501, 0)


@pytest.mark.slow
def test_a_broker_that_is_away_costs_nothing_but_what_does_not_fit(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """No record waits; those that fit arrive once the broker is there, the others are counted and said once."""
    port = unused_port()
    handler = LogHandler(f"127.0.0.1:{port}", topic="t", queue_messages=100, connect_timeout_ms=200)
    logger.addHandler(handler)
    with sooner_than(5, "records wait for the broker"):
        for number in range(350):
            logger.info("%d", number)
    assert (handler.pending, handler.dropped) == (100, 250)
    wait_until("it is said", lambda: "250 records were dropped, 250 so far" in capsys.readouterr().err)
    broker = FakeBroker()
    broker.port = port
    with broker:
        flushed(handler)
        assert stored(broker) == [b"%d" % number for number in range(100)]
        logger.info("again")
        flushed(handler)
        assert stored(broker)[100:] == [b"again"]
        handler.close()
    assert "dropped" not in capsys.readouterr().err


def test_a_broker_that_goes_and_comes_back_gets_what_was_written_meanwhile(logger: logging.Logger) -> None:
    first = FakeBroker()
    first.port = unused_port()
    with first:
        handler = LogHandler(first.address, topic="t", queue_messages=50)
        logger.addHandler(handler)
        logger.info("before")
        flushed(handler)
    for number in range(80):
        logger.info("%d", number)
    assert handler.dropped == 30
    second = FakeBroker()
    second.port = first.port
    with second:
        flushed(handler)
        assert list(dict.fromkeys(stored(second))) == [b"%d" % number for number in range(50)]
        handler.close()


def test_the_bytes_that_wait_are_bounded_too(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as broker:
        handler = LogHandler(broker.address, topic="t", queue_bytes=10_000)
        logger.addHandler(handler)
        for _ in range(50):
            logger.info("x" * 1000)
        assert handler.pending == 10
        assert handler.dropped == 40
        release.set()
        flushed(handler)
        logger.info("y")
        flushed(handler)
        assert len(stored(broker)) == 11
        handler.close()
    assert "40 records were dropped, 40 so far: the queue is full\n" in capsys.readouterr().err


@pytest.mark.parametrize("count", [3, 4])
def test_as_many_records_as_go_at_once_are_not_waited_with(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """What has come while others were sent goes at once if it is enough, however long records are collected."""
    monkeypatch.setattr(publisher, "_MOST_AT_ONCE", 3)
    is_asked, may_answer = threading.Event(), threading.Event()

    def hook(request: rq.Request) -> None:
        is_asked.set()
        may_answer.wait(PATIENCE)

    with FakeBroker(hook=hook) as broker:
        handler = LogHandler(broker.address, topic="t", queue_time_ms=10**6, connect_timeout_ms=10**6)
        logger.addHandler(handler)
        logger.info("first")
        handler.flush(0)
        assert is_asked.wait(PATIENCE)
        for number in range(count):
            logger.info("%d", number)
        may_answer.set()
        wait_until("so many are stored", lambda: handler.published == 4)
        assert handler.pending == count - 3
        flushed(handler)


class _LateQueue(queue.SimpleQueue[None]):
    """Whoever puts something in goes on when it was taken, and more is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Condition()
        self.waits = 0

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        with self.asked:
            self.waits += 1
            self.asked.notify_all()
        return super().get(block, timeout)

    def put(self, item: None, block: bool = True, timeout: float | None = None) -> None:
        with self.asked:
            before = self.waits
            super().put(item)
            self.asked.wait_for(lambda: self.waits > before, 0.5)


def test_whoever_is_woken_at_the_end_sees_that_it_is_the_end(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no broker answers, the thread sleeps until its next try; once more would be too long."""
    monkeypatch.setattr(publisher, "_LEAST_PAUSE", 1000.0)
    monkeypatch.setattr(publisher, "_LONGEST_PAUSE", 1000.0)
    handler = LogHandler(f"127.0.0.1:{unused_port()}", topic="t", connect_timeout_ms=200, queue_time_ms=0)
    wakeups = handler._publisher._wakeups = _LateQueue()
    logger.addHandler(handler)
    logger.info("x")
    wait_until("it waits for its next try", lambda: wakeups.waits)
    handler.flush(0)
    handler.close()
    assert "fastlog-publisher" not in {thread.name for thread in threading.enumerate()}


def test_closing_is_bounded_and_says_what_is_left(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    handler = LogHandler(f"127.0.0.1:{unused_port()}", topic="t", close_timeout_ms=100, connect_timeout_ms=300)
    logger.addHandler(handler)
    logger.info("x")
    with sooner_than(10):
        handler.flush()
        assert handler.pending == 1
        handler.close()
        handler.close()
    assert (handler.pending, handler.dropped) == (0, 1)
    assert "topic t: 1 records were dropped, 1 so far" in capsys.readouterr().err
    logger.info("y")
    assert handler.dropped == 2


def test_a_flush_is_not_held_up_by_what_comes_later(logger: logging.Logger) -> None:
    """It is for the records before it, while other threads go on."""
    with FakeBroker() as broker:
        handler = LogHandler(broker.address, topic="t", queue_time_ms=5)
        logger.addHandler(handler)
        over = threading.Event()

        def talk() -> None:
            while not over.is_set():
                logger.info("talk")
                time.sleep(0.0002)

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            for number in range(5):
                logger.info("%d", number)
                with sooner_than(PATIENCE):
                    handler.flush(PATIENCE)
                assert b"%d" % number in stored(broker)
        finally:
            over.set()
            thread.join()
        flushed(handler)


def test_a_record_that_cannot_be_formatted_is_told_as_by_any_handler(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = logging.LogRecord("program", logging.INFO, "", 0, "%d", ("no number",), None)
    with FakeBroker() as broker:
        handler = LogHandler(broker.address, topic="t")
        logger.addHandler(handler)
        handler.handle(wrong)  # alone, as pytest's own handler would raise
        assert "--- Logging error ---" in capsys.readouterr().err
        monkeypatch.setattr(logging, "raiseExceptions", False)
        handler.handle(wrong)
        assert capsys.readouterr().err == ""
        assert handler.dropped == 2
        logger.info("fine")
        flushed(handler)
        assert stored(broker) == [b"fine"]


def test_one_record_that_is_too_large_keeps_no_other_back(logger: logging.Logger) -> None:
    with FakeBroker() as broker:
        handler = LogHandler(broker.address, topic="t", max_message_bytes=100)
        logger.addHandler(handler)
        for text in ("a", "b" * 101, "c"):
            logger.info(text)
        flushed(handler)
        assert stored(broker) == [b"a", b"c"]
        assert (handler.published, handler.dropped) == (2, 1)


def test_records_beside_one_that_is_too_large_go_where_their_key_says(logger: logging.Logger) -> None:
    with FakeBroker(partitions=8) as broker:
        handler = LogHandler(broker.address, topic="t", key="name", max_message_bytes=100, queue_time_ms=10**6)
        logger.addHandler(handler)
        for text in ("a", "b" * 101, "c"):
            logger.info(text)
        flushed(handler)
        assert stored(broker, "t", Crc32Partitioner().partition(logger.name, 8)) == [b"a", b"c"]


def test_records_that_were_dropped_take_no_room(logger: logging.Logger) -> None:
    with FakeBroker() as broker:
        handler = LogHandler(broker.address, topic="t", max_message_bytes=100, queue_bytes=500)
        logger.addHandler(handler)
        for _ in range(10):
            logger.info("x" * 101)
            flushed(handler)
        logger.info("fits")
        flushed(handler)
        assert stored(broker) == [b"fits"]
        assert (handler.published, handler.dropped) == (1, 10)


def test_a_flush_is_for_the_records_before_the_flush_before_as_well() -> None:
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as broker:
        processor = StructlogProcessor(broker.address, topic="t")
        processor(None, "info", {"event": "one"})
        assert not processor.flush(0)
        assert not processor.flush(0)
        processor(None, "info", {"event": "two"})
        assert not processor.flush(0)
        release.set()
        assert processor.flush(PATIENCE)
        processor.close()


def test_closing_waits_no_second_time_behind_a_flush_that_came_to_no_end(logger: logging.Logger) -> None:
    """As ``logging.shutdown`` does one after the other; unless something was delivered in between."""
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as broker:
        handler = LogHandler(broker.address, topic="t", close_timeout_ms=int(3 * PATIENCE) * 1000)
        logger.addHandler(handler)
        logger.info("x")
        handler.flush(0)
        with sooner_than(PATIENCE):
            handler.close()
        assert handler.dropped == 1
        release.set()


def test_closing_waits_behind_a_flush_whose_records_were_delivered_later(logger: logging.Logger) -> None:
    holds = [threading.Event(), threading.Event()]
    requests = iter(holds)

    def hook(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceAckRequest):
            assert next(requests).wait(PATIENCE)

    with FakeBroker(hook=hook) as broker:
        handler = LogHandler(broker.address, topic="t", close_timeout_ms=int(3 * PATIENCE) * 1000)
        logger.addHandler(handler)
        logger.info("late")
        handler.flush(0)
        holds[0].set()
        wait_until("it was delivered", lambda: handler.published == 1)
        logger.info("last")
        later = threading.Timer(0.05, holds[1].set)
        later.start()
        handler.close()
        later.join()
        assert (handler.published, handler.dropped) == (2, 0)


def test_what_fastlog_itself_logs_is_left_out() -> None:
    with FakeBroker() as broker:
        handler = LogHandler(broker.address, topic="t")
        try:
            for name in ("fastlog", "fastlog.producer", "kazoo.client", "fastlogger", "program"):
                record = logging.LogRecord(name, logging.ERROR, "", 0, name, None, None)
                handler.handle(record)
            flushed(handler)
            assert stored(broker) == [b"fastlogger", b"program"]
        finally:
            handler.close()


@pytest.mark.slow
def test_at_the_root_a_failing_producer_brings_no_more_records() -> None:
    """What the producer says about a broker that is away would come to the same handler."""
    handler = LogHandler(f"127.0.0.1:{unused_port()}", topic="t", connect_timeout_ms=50, close_timeout_ms=100)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        logging.getLogger("program").error("x")
        time.sleep(0.3)
        assert handler.pending == 1
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("name", b"program.part"),
        (lambda record: record.args[0], b"a"),
        (lambda record: (1, 2), b"(1, 2)"),
        (lambda record: None, None),
        (None, None),
    ],
)
def test_keys_choose_partitions(logger: logging.Logger, key: Any, wanted: bytes | None) -> None:
    """Records of one key share a partition; without a key the broker chooses."""
    with FakeBroker(partitions=8) as broker:
        handler = LogHandler(broker.address, topic="t", key=key)
        logger.addHandler(handler)
        for number in range(20):
            logger.info("%s %d", "a", number)
        flushed(handler)
        ((_, partition),) = broker.logs
        assert partition == (0 if wanted is None else Crc32Partitioner().partition(wanted, 8))
        assert stored(broker, "t", partition) == [b"a %d" % number for number in range(20)]


def test_dict_config_and_a_queue_handler() -> None:
    """Both ways in which programs set handlers up; names are found through the package."""
    with FakeBroker() as broker:
        logging.config.dictConfig(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "formatters": {"json": {"()": "fastlog.JsonFormatter", "static": {"service": "shop"}}},
                "handlers": {
                    "topic": {
                        "class": "fastlog.LogHandler",
                        "brokers": broker.address,
                        "topic": "t",
                        "formatter": "json",
                        "level": "INFO",
                        "key": "name",
                        "queue_messages": 1000,
                    }
                },
                "loggers": {"configured": {"handlers": ["topic"], "level": "DEBUG", "propagate": False}},
            }
        )
        logger = logging.getLogger("configured")
        (handler,) = logger.handlers
        assert isinstance(handler, fastlog.LogHandler)
        logger.debug("no")
        logger.info("yes")
        flushed(handler)
        (payload,) = stored(broker)
        assert json.loads(payload)["service"] == "shop"
        logger.removeHandler(handler)

        records: queue.Queue[logging.LogRecord] = queue.Queue()
        listener = logging.handlers.QueueListener(records, handler, respect_handler_level=True)
        through = logging.handlers.QueueHandler(records)
        logger.addHandler(through)
        listener.start()
        logger.info("through %s", "a queue")
        listener.stop()
        logger.removeHandler(through)
        handler.close()
        assert json.loads(stored(broker)[1])["message"] == "through a queue"


def test_filters_and_levels_hold(logger: logging.Logger) -> None:
    with FakeBroker() as broker:
        handler = LogHandler(broker.address, topic="t", level="WARNING")
        handler.addFilter(lambda record: "secret" not in record.getMessage())
        logger.addHandler(handler)
        logger.info("low")
        logger.error("secret")
        logger.error("high")
        flushed(handler)
        assert stored(broker) == [b"high"]


def test_a_forked_child_sends_for_itself(logger: logging.Logger) -> None:
    """What waits in the parent arrives once, and what the child writes arrives too."""
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as broker:
        handler = LogHandler(broker.address, topic="t")
        logger.addHandler(handler)
        logger.info("parent")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert (handler.pending, handler.dropped) == (0, 0)
                logger.info("child")
                handler.flush(PATIENCE)
                status = 0 if (handler.published, handler.pending) == (1, 0) else 2
            finally:
                os._exit(status)
        release.set()
        flushed(handler)
        wait_until("the child ends", lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sorted(stored(broker)) == [b"child", b"parent"]


@pytest.mark.slow
def test_a_signal_handler_may_log_at_any_moment(logger: logging.Logger) -> None:
    with FakeBroker() as broker:
        handler = LogHandler(broker.address, topic="t", queue_messages=1_000_000)
        logger.addHandler(handler)
        before = signal.signal(signal.SIGALRM, lambda *_: logger.info("from a signal handler"))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for number in range(20_000):
                logger.info("%d", number)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        flushed(handler)
        assert handler._publisher._put_bytes == handler._publisher._settled_bytes
        found = stored(broker)
        assert [line for line in found if line.isdigit()] == [b"%d" % number for number in range(20_000)]
        assert len(found) == handler.published


def test_many_threads(logger: logging.Logger) -> None:
    with FakeBroker() as broker:
        handler = LogHandler(broker.address, topic="t", queue_messages=100_000)
        logger.addHandler(handler)

        def talk(name: int) -> None:
            for number in range(500):
                logger.info("%d %d", name, number)

        threads = [threading.Thread(target=talk, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        flushed(handler)
        found = [tuple(map(int, line.split())) for line in stored(broker)]
        assert [[number for name, number in found if name == one] for one in range(8)] == [[*range(500)]] * 8


def test_records_as_json() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

    loop: list[Any] = []
    loop.append(loop)
    record = logging.makeLogRecord({"name": "n", "levelname": "INFO", "msg": "%s €", "args": ("x",), "created": 0.5})
    vars(record).update(user=7, when=math.nan, odd=Odd(), loop=loop, path=socket)
    found = json.loads(JsonFormatter(static={"service": "s"}).format(record))
    assert found.pop("path").startswith("<module 'socket'")
    assert found == {
        "service": "s",
        "time": "1970-01-01T00:00:00.500000+00:00",
        "level": "INFO",
        "logger": "n",
        "message": "x €",
        "user": 7,
        "when": "nan",
        "odd": "<Odd: RuntimeError>",
        "loop": "[[...]]",
    }
    chosen = JsonFormatter({"at": "lineno", "text": "message", "none": "nothing"}, extra=False).format(record)
    assert json.loads(chosen) == {"at": 0, "text": "x €", "none": None}
    try:
        raise ValueError("why")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    record.stack_info = "Stack"
    found = json.loads(JsonFormatter(extra=False).format(record))
    assert found["exception"].endswith("ValueError: why")
    assert found["stack"] == "Stack"


def test_a_processor_of_structlog(capsys: pytest.CaptureFixture[str]) -> None:
    """It hands on what it was given, publishes events as JSON and rendered text as it is, and never raises."""
    with FakeBroker() as broker:
        processor = StructlogProcessor(broker.address, topic="t", key="user")
        event = {"event": "hello", "user": 7, "seen": {1: {2}}}
        assert processor(None, "info", event) is event
        assert processor(None, "info", "rendered") == "rendered"
        assert processor(None, "info", b"bytes") == b"bytes"
        assert processor.flush(PATIENCE)
        assert stored(broker) == [b'{"event":"hello","user":7,"seen":{"1":"{2}"}}', b"rendered", b"bytes"]
        assert (processor.published, processor.dropped, processor.pending) == (3, 0, 0)
        processor.close()
        wrong = StructlogProcessor(broker.address, topic="t", key=lambda event: event["missing"])
        assert wrong(None, "info", event) is event
        assert "KeyError: 'missing'" in capsys.readouterr().err
        assert wrong.dropped == 1
        wrong.close()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"topic": "a/b"}, InvalidTopicError, "a/b"),
        ({"topic": "t", "queue_full": "block"}, ConfigError, "queue_full"),
        ({"topic": "t", "producer_type": "sync"}, ConfigError, "producer_type"),
        ({"topic": "t", "broker_list": "localhost:1"}, ConfigError, "named twice"),
        ({"topic": "t", "queue_messages": 0}, ConfigError, "queue.size"),
        ({"topic": "t", "unknown": 0}, ConfigError, "unknown"),
        ({"topic": "t", "key": 7}, ArgumentError, "key"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(options: dict[str, Any], error: type, text: str) -> None:
    for kind in (LogHandler, StructlogProcessor):
        with pytest.raises(error, match=text):
            kind("localhost:9092", **options)
