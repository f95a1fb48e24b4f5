"""One broker, said as a host and a port or as both in one text."""

from __future__ import annotations

import pytest

from fastlog.client.addresses import Address, one_broker
from fastlog.errors import ArgumentError, ConfigError


@pytest.mark.parametrize(
    ("host", "port", "found"),
    [
        ("h", None, ("h", 9092)),
        ("h", 1, ("h", 1)),
        ("h", 65535, ("h", 65535)),
        ("h:1", None, ("h", 1)),
        ("h:1", 1, ("h", 1)),
        ("h:65535", 65535, ("h", 65535)),
        ("::1", None, ("::1", 9092)),
        ("::1", 7, ("::1", 7)),
        ("[::1]", None, ("::1", 9092)),
        ("[::1]", 7, ("::1", 7)),
        ("[::1]:7", None, ("::1", 7)),
        ("[::1]:7", 7, ("::1", 7)),
    ],
)
def test_one_broker(host: str, port: int | None, found: tuple[str, int]) -> None:
    """An IPv6 address may stand without brackets, and its last number is then no port."""
    assert one_broker(host, port) == Address(*found)


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("h:1", 2, "'h:1' contradicts port 2"),
        ("h:9092", 9093, "contradicts port 9093"),
        ("[::1]:7", 8, "contradicts port 8"),
        ("h,i", None, "names 2 brokers"),
        ("h:1,i:1,j:1", 1, "names 3 brokers"),
        ("", None, "no broker is named"),
        ("", 9092, "no broker is named"),
        ("h", 0, "port: 0 is not from 1 to 65535"),
        ("h", 65536, "port: 65536 is not"),
        ("h:0", None, "h:0"),
        ("h:65536", None, "65536"),
    ],
)
def test_what_is_not_one_broker(host: str, port: int | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        one_broker(host, port)


@pytest.mark.parametrize(("host", "port"), [("h", "1"), ("h", True), ("h", 1.0), (None, 1)])
def test_what_is_no_host_or_port(host: object, port: object) -> None:
    with pytest.raises(ArgumentError):
        one_broker(host, port)  # type: ignore[arg-type]
