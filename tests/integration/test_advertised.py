"""The address that clients are told is looked at by the broker itself: R-9, a name that clients cannot reach."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog.testing import Proxy
from fastlog.workers import advertised
from fastlog.workers.child import Listener
from tests.harness.broker import Broker, BrokerDidNotStart, wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE

WARNING = "ADVERTISED ADDRESS"


def leads_to(port: int, broker_id: int = 0, timeout: float = 5.0) -> str | None:
    listener = Listener("default", "kafka-0.7", "0.0.0.0", 1, "127.0.0.1", port, -1)
    return advertised.problem_or_none(listener, broker_id, timeout)


def test_what_is_no_fastlog_broker_is_told_apart() -> None:
    with FakeBroker(own=False) as kafka:
        assert leads_to(kafka.port) == "what answers at 127.0.0.1 is no fastlog broker"
    assert leads_to(unused_port()) == "127.0.0.1: Connection refused"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert leads_to(silent.getsockname()[1], timeout=0.05) == "127.0.0.1 does not answer within 0.05 s"


def test_any_answer_is_taken_by_somebody() -> None:
    """Whatever a stranger sends, it is one line for the log."""
    none = "what answers at 127.0.0.1 is no fastlog broker"
    for answer, reason in (
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", none),  # as a size it is a gigabyte, which is not waited for
        (b"\0\0\0\4\0\0\0\0", none),
        (b"\xff" * 100, none),
        (b"\0\0\0\x20" + b"\xff" * 32, "another broker answers at 127.0.0.1, with the id -1 and the address :-1"),
    ):
        with FakeBroker(hook=lambda _request, answer=answer: answer) as stranger:
            assert leads_to(stranger.port, timeout=PATIENCE) == reason


@pytest.mark.slow
def test_an_unknown_name_stops_the_start(start_broker: Callable[..., Broker]) -> None:
    with pytest.raises(BrokerDidNotStart) as caught:
        start_broker(arguments=["--advertise", "no-such-name.invalid:9092"])
    assert "exit code 2" in str(caught.value)
    assert re.search(r"fastlog-broker: hostname: .*'no-such-name\.invalid'.*--advertise", str(caught.value))
    named = {"listeners": "a://127.0.0.1:0,b://127.0.0.1:0", "advertised.listeners": "b://no-such-name.invalid:9092"}
    with pytest.raises(BrokerDidNotStart) as caught:
        start_broker(settings=named)
    line = r"fastlog-broker: advertised\.listeners: .*'no-such-name\.invalid'.*; set advertised\.listeners to a name"
    assert re.search(line, str(caught.value))


@pytest.mark.slow
def test_an_address_of_another_broker_is_one_warning_with_both(start_broker: Callable[..., Broker]) -> None:
    other = start_broker(settings={"brokerid": 8})
    broker = start_broker(settings={"brokerid": 9}, arguments=["--advertise", f"127.0.0.1:{other.port}"])
    broker.wait_log(
        rf"{WARNING}: .* 127\.0\.0\.1:{other.port}, .*listening on 127\.0\.0\.1:{broker.port}: another broker "
        rf"answers .*the id 8 and the address 127\.0\.0\.1:{other.port}\. Set --advertise"
    )
    assert broker.log_text().count(WARNING) == 1


@pytest.mark.slow
def test_a_way_round_that_leads_here_is_no_warning(start_broker: Callable[..., Broker]) -> None:
    """As behind a port that is forwarded; clients are told the outer port."""
    port = unused_port()
    seen: list[bytes] = []
    with Proxy(("127.0.0.1", port)) as outer:
        outer.on_data = lambda data, from_server: (seen.append(data) if from_server else None, data)[1]  # type: ignore[method-assign]
        broker = start_broker(port=port, settings={"advertised.port": outer.port})
        wait_until("it asked itself", lambda: seen)
        with broker.connect() as client:
            metadata = client.metadata([])
        assert (metadata.host, metadata.port) == ("127.0.0.1", outer.port)
        assert f"advertised=127.0.0.1:{outer.port} " in broker.log_text()
        assert broker.stop() == 0
        assert WARNING not in broker.log_text()


@pytest.mark.slow
def test_who_listens_everywhere_tells_the_name_of_the_machine(tmp_path: Path) -> None:
    """No client could do anything with 0.0.0.0."""
    with Broker(tmp_path, arguments=["--host", "0.0.0.0", "--insecure"]) as broker, broker.connect() as client:
        assert client.metadata([]).host == socket.gethostname()
