"""Public calls of the clients with arguments of every wrong kind: what they raise is of ``fastlog.errors``, always."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import fastlog
from fastlog._segment import pack
from fastlog.consumer import connector
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ArgumentError, FastlogError, StateError
from fastlog.producer import Producer, ProducerConfig
from fastlog.zkpaths import PartitionId
from tests.harness.fake_broker import FakeBroker
from tests.unit.test_consumer import FakeGroup

WRONG: list[Any] = [
    None, True, -1, 0, 7, -3, 2**31, 2**63, 2**70, 1.5, float("nan"), float("-inf"), "", "x", "a/b", "\0", "\ud800",
    b"", b"x", (), ("t",), (1, 2, 3), ("t", 0, 0, 0, 0), [], [None], [("t",)], [("t", None, 0)], {}, {"t": None},
    {1: 1}, object(), Exception,
]  # fmt: skip

SOURCE = TopicPartition("t", PartitionId(0, 0))


def outcome(call: Callable[[], Any]) -> Exception | None:
    """What a call raises, or the walk through what it returns."""
    try:
        found = call()
        if isinstance(found, Iterator):
            next(found, None)
    except Exception as error:
        return error
    return None


def wrongly(call: Callable[..., Any], *right: Any, **named: Any) -> None:
    """Replace each argument by each wrong value."""
    for place in range(len(right)):
        for wrong in WRONG:
            given = [*right[:place], wrong, *right[place + 1 :]]
            check(outcome(lambda given=given: call(*given, **named)), call, given, named)  # type: ignore[misc]
    for name in named:
        for wrong in WRONG:
            given_names = {**named, name: wrong}
            check(outcome(lambda given=given_names: call(*right, **given)), call, right, given_names)  # type: ignore[misc]


def without_patience(timeout: Any) -> Any:
    """The same wrong value, unless a call would wait that long for nothing."""
    return 0 if isinstance(timeout, int | float) and timeout > 0 else timeout


def check(error: BaseException | None, call: Callable[..., Any], *given: Any) -> None:
    assert error is None or isinstance(error, FastlogError), f"{call.__qualname__}{given!r}: {error!r}"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        fake.logs["t", 0] = pack([b"a", b"b"])
        yield fake


def test_the_errors_for_wrong_arguments_are_what_python_calls_them() -> None:
    assert issubclass(ArgumentError, TypeError)
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(StateError, RuntimeError)
    with (
        pytest.raises(ArgumentError, match=r"a topic, which is a str, .* not int"),
        Producer("127.0.0.1:1") as producer,
    ):
        producer.send(5, b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_producers(broker: FakeBroker, kind: str) -> None:
    with Producer(broker.address, producer_type=kind) as producer:
        for _ in range(2):  # the second time the compiled path knows the topic
            wrongly(producer.send, "t", b"x", key="k")
            wrongly(producer.send, "t", b"x", partition=1, on_delivery=None)
            wrongly(producer.send, [fastlog.ProducerData("t", b"x")])
            wrongly(producer.submit, "t", b"x", key="k")
            wrongly(producer.submit, "t", b"x", partition=0)
        wrongly(producer.partitions, "t")
        wrongly(producer.flush, 1.0)
        wrongly(
            lambda **fields: producer.send(fastlog.ProducerData(**fields)), topic="t", value=b"", key="k", partition=0
        )


def test_making_a_producer(broker: FakeBroker) -> None:
    def make(*given: Any, **named: Any) -> None:
        Producer(*given, **named).close(0)

    wrongly(make, broker.address)
    names = [setting.field for setting in ProducerConfig.describe()]
    for name in names:
        wrongly(make, **{"broker_list": broker.address, name: 1})
    objects = ("encoder", "partitioner", "event_handler", "callback_handler", "on_delivery")
    wrongly(make, broker.address, producer_type="async", **dict.fromkeys(objects))
    wrongly(lambda timeout: Producer(broker.address).close(timeout), 0.0)


def test_a_sync_producer(broker: FakeBroker) -> None:
    def make(*given: Any, **named: Any) -> None:
        fastlog.SyncProducer(*given, **named).close()

    wrongly(make, "127.0.0.1", broker.port, max_message_bytes=100)
    with fastlog.SyncProducer("127.0.0.1", broker.port) as producer:
        wrongly(producer.send, "t", b"x", 0, codec=0)
        wrongly(producer.send, "t", [b"x"], 0)
        wrongly(producer.multi_send, [("t", 0, b"x")])
        for wrong in WRONG:
            wrongly(producer.multi_send, [wrong])
            wrongly(producer.multi_send, [("t", wrong, b"x")])


def test_a_simple_consumer(broker: FakeBroker) -> None:
    def make(*given: Any, **named: Any) -> None:
        fastlog.SimpleConsumer(*given, **named).close()

    wrongly(make, "127.0.0.1", broker.port)
    options = {"fetch_bytes": 100, "receive_buffer_bytes": None, "max_message_bytes": None, "limits": None}
    wrongly(make, "127.0.0.1", broker.port, timeout=1.0, local="off", **options)
    with fastlog.SimpleConsumer("127.0.0.1", broker.port, timeout=5) as consumer:
        for fetch in (consumer.fetch, consumer.fetch_numpy):
            wrongly(fetch, "t", 0, 0, 100, wait=0.0)
        wrongly(consumer.multifetch, [("t", 0, 0)])
        for wrong in WRONG:
            wrongly(consumer.multifetch, [wrong])
            wrongly(consumer.multifetch, [("t", 0, wrong)])
            wrongly(consumer.multifetch, [("t", 0, 0, wrong)])
        wrongly(consumer.fetch_unchecked, "t", 0, 0, 100)
        wrongly(consumer.get_offsets_before, "t", 0, -1, 1)
        wrongly(consumer.cut_points, "t", 0, 0, 22, 1, 10)
        wrongly(consumer.metadata, ["t"])
        wrongly(consumer.source_of, "t", 0)
        for read in (consumer.messages, consumer.payloads, consumer.batches, consumer.numpy_batches):
            wrongly(read, "t", 0, 0, fetch_bytes=100)
        wrongly(consumer.messages, "t", 0, 0, wait=0.0)


def test_a_consumer_of_a_group(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "Group", FakeGroup)
    wrongly(fastlog.Consumer, "zk:1")
    for setting in ConsumerConfig.describe():
        wrongly(fastlog.Consumer, **{"zk_connect": "zk:1", "group_id": "g", setting.field: 1})
    with ExitStack() as stack:

        def consumer() -> fastlog.Consumer:
            return stack.enter_context(fastlog.Consumer("zk:1", group_id="g", consumer_timeout_ms=1, local="off"))

        wrongly(lambda topics: consumer().create_message_streams(topics), {"t": 1})
        wrongly(lambda **names: consumer().create_message_streams({"t": 1}, **names), decoder=None, acknowledge=False)
        by_filter = {"whitelist": "t", "blacklist": None, "streams": 1, "decoder": None}
        wrongly(lambda **names: consumer().create_message_streams_by_filter(**names), **by_filter)
        made = consumer()
        for call in (made.commit_offsets, lambda: made.seek(SOURCE, 0), made.lag):
            assert isinstance(outcome(call), StateError)
        (stream,) = made.create_message_streams({"t": 1})["t"]
        assert isinstance(outcome(lambda: made.create_message_streams({"t": 1})), StateError)
        source = FakeGroup.last.own(SOURCE, 0, broker.port)
        wrongly(lambda timeout: made.wait_assigned(without_patience(timeout)), 0.0)
        wrongly(made.seek, source, 0)
        wrongly(made.seek_to_time, source, 0)
        wrongly(made.lag, 1.0)
        wrongly(lambda timeout: stream.poll(without_patience(timeout)), 0.0)
        for wrong in WRONG:
            check(outcome(lambda wrong=wrong: made.seek(SOURCE._replace(partition=wrong), 0)), made.seek, wrong)  # type: ignore[misc]
        wrongly(made.shutdown, 0.0)
