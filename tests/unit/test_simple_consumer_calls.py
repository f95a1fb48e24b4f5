"""R-3: whatever is called on a consumer in whatever order, the right messages or fastlog's own exceptions come."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fastlog._segment import pack
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.errors import ClosedError, ConfigError, OffsetOutOfRangeError, UnsupportedFeatureError
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker

COUNT = 30
MESSAGES = [b"%d" % number * (number % 5) for number in range(COUNT)]
OFFSETS = list(itertools.accumulate((len(pack([message])) for message in MESSAGES), initial=0))


class Calls(RuleBasedStateMachine):
    """One consumer of a log that does not change, with iterations that are begun, continued and abandoned."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = FakeBroker().__enter__()
        self.broker.logs["t", 0] = pack(MESSAGES)
        self.running: list[tuple[Iterator[object], int]] = []
        self.closed = False

    @initialize(own=st.booleans(), fetch_bytes=st.sampled_from([1, 40, 10_000]))
    def make(self, own: bool, fetch_bytes: int) -> None:
        self.broker.own = own
        self.consumer = SimpleConsumer("127.0.0.1", self.broker.port, fetch_bytes=fetch_bytes)

    @rule(number=st.integers(0, COUNT), how=st.sampled_from(["set", "numpy", "arrow"]))
    def fetch(self, number: int, how: str) -> None:
        def call() -> list[bytes]:
            if how == "arrow":
                return list(self.consumer.fetch_arrow("t", 0, OFFSETS[number]).column("payload").to_pylist())
            if how == "numpy":
                batch = self.consumer.fetch_numpy("t", 0, OFFSETS[number])
                return [batch.payload(index) for index in range(len(batch))]
            return self.consumer.fetch("t", 0, OFFSETS[number]).payloads()

        found = self._call(call)
        if found is not None:
            assert found == MESSAGES[number : number + len(found)]
            assert found or number == COUNT

    @rule()
    def fetch_out_of_range(self) -> None:
        with pytest.raises(ClosedError if self.closed else OffsetOutOfRangeError):
            self.consumer.fetch("t", 0, 10**9)

    @rule(numbers=st.lists(st.integers(0, COUNT - 1), max_size=3))
    def multifetch(self, numbers: list[int]) -> None:
        found = self._call(lambda: self.consumer.multifetch([("t", 0, OFFSETS[number]) for number in numbers]))
        for number, part in zip(numbers, found or [], strict=found is not None):
            payloads = part.payloads()
            assert payloads
            assert payloads == MESSAGES[number : number + len(payloads)]

    @rule(time=st.sampled_from([EARLIEST, LATEST]))
    def offsets(self, time: int) -> None:
        found = self._call(lambda: self.consumer.get_offsets_before("t", 0, time))
        assert found is None or found == [0 if time == EARLIEST else OFFSETS[-1]]

    @rule()
    def metadata(self) -> None:
        self._call(lambda: self.consumer.metadata(["t"]))

    @precondition(lambda self: len(self.running) < 4)
    @rule(number=st.integers(0, COUNT))
    def begin(self, number: int) -> None:
        self.running.append((self.consumer.messages("t", 0, OFFSETS[number]), number))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), steps=st.integers(1, COUNT))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        found, number = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        came: list[bytes] = []
        if self.closed:
            with pytest.raises(ClosedError):  # behind what had been fetched already
                came.extend(message.payload for message in found)  # type: ignore[attr-defined]
        else:
            came.extend(message.payload for message in itertools.islice(found, steps))  # type: ignore[attr-defined]
        assert came == MESSAGES[number : number + len(came)]
        if len(came) == steps and not self.closed:
            self.running.append((found, number + steps))

    @precondition(lambda self: self.running)
    @rule()
    def abandon(self) -> None:
        self.running.pop()

    @rule()
    def enter(self) -> None:
        self._call(self.consumer.__enter__)

    @precondition(lambda self: not self.closed)
    @rule(block=st.booleans(), chance=st.integers(0, 3))
    def close(self, block: bool, chance: int) -> None:
        if chance:
            return  # most of a run is with an open one
        if block:
            with self.consumer:
                pass
        self.consumer.close()
        self.closed = True

    def _call(self, call: Callable[[], object]) -> object:
        """What the call gives, or None when the consumer is closed and says so."""
        if not self.closed:
            return call()
        with pytest.raises(ClosedError):
            call()
        return None

    def teardown(self) -> None:
        if hasattr(self, "consumer"):
            self.consumer.close()
            self.consumer.close()
        self.broker.__exit__()


TestCalls = pytest.mark.slow(Calls.TestCase)
TestCalls.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_partitions_are_counted(own: bool) -> None:
    """Written to or not; retention at work, and a broker that refuses no number."""
    with FakeBroker(partitions=5, own=own) as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        assert consumer.partition_count("t") == 5
        fake.logs["t", 6] = b""
        assert consumer.partition_count("t") == 7
        fake.after = lambda request: (
            wire07.encode_fetch(1) if isinstance(request, wire07.FetchRequest) and request.partition < 5 else None
        )
        assert consumer.partition_count("t") == 7
        fake.after = lambda request: wire07.encode_fetch(0) if isinstance(request, wire07.FetchRequest) else None
        if not own:
            with pytest.raises(UnsupportedFeatureError, match="every number"):
                consumer.partition_count("t")


def test_a_broker_is_named_in_every_usual_way() -> None:
    with FakeBroker() as fake:
        fake.logs["t", 0] = pack([b"x"])
        for consumer in (
            SimpleConsumer("127.0.0.1", fake.port),
            SimpleConsumer(f"127.0.0.1:{fake.port}"),
            SimpleConsumer(fake.address, fake.port),
        ):
            with consumer:
                assert list(consumer.payloads("t", 0)) == [b"x"]
    for shown, consumer in (
        ("localhost:9092", SimpleConsumer()),
        ("h:1", SimpleConsumer("h:1")),
        ("[::1]:9092", SimpleConsumer("::1")),
        ("[::1]:7", SimpleConsumer("[::1]:7")),
        ("[::1]:7", SimpleConsumer("[::1]", 7)),
    ):
        assert repr(consumer) == f"<SimpleConsumer of {shown}>"
    for arguments in (("h:1", 2), ("h:x",), ("h:",), (":1",), ("a:1,b:2",), ("a,b",), ("h:0",), ("[::1]:7", 8)):
        with pytest.raises(ConfigError):
            SimpleConsumer(*arguments)  # type: ignore[arg-type]
