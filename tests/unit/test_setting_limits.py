"""Every setting at its least and its most, as a field and as text, by itself and for a topic; what is said of it."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import pytest

from fastlog import broker_settings
from fastlog.broker_settings import MAX_PROCESSORS
from fastlog.clock import SystemClock
from fastlog.config import BrokerConfig
from fastlog.durability import SHOWN_TOPICS, durability, flush_policy, promise
from fastlog.errors import ConfigError
from fastlog.listening import ListenAddress, check_advertised, check_monitor, is_loopback, parse_listen
from fastlog.settings import Setting, load_properties, parse_bytes, parse_duration, plain, unknown_name
from tests.harness.manual_clock import ManualClock

NUMBERS = [item for item in dataclasses.fields(BrokerConfig) if item.metadata["low"] is not None]
BYTES = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def just_beyond(value: float, whole: bool, up: bool) -> float:
    if whole:
        return value + (1 if up else -1)
    return math.nextafter(value, math.inf if up else -math.inf)


@pytest.mark.parametrize("item", NUMBERS, ids=lambda item: item.metadata["name"])
def test_the_least_and_the_most(item: dataclasses.Field[Any]) -> None:
    kind = str(item.type)
    whole = "float" not in kind
    for limit, up, said in (
        (item.metadata["low"], False, "too small, the least is"),
        (item.metadata["high"], True, "too large, the most is"),
    ):
        given: Any = {"t": limit} if kind.startswith("dict") else limit
        assert getattr(BrokerConfig(**{item.name: given}), item.name) == given
        text = f"t:{limit:.9f}".rstrip("0").rstrip(".") if kind.startswith("dict") else f"{limit:.9f}".rstrip("0")
        text = text.rstrip(".") if "." in text else text
        read = BrokerConfig.from_properties({item.metadata["name"]: text if whole is False else plain(given)})
        assert getattr(read, item.name) == given
        beyond = just_beyond(limit, whole, up)
        wrong: Any = {"t": beyond} if kind.startswith("dict") else beyond
        if kind.endswith("| None") and beyond == -1:
            continue
        with pytest.raises(ConfigError, match=said):
            BrokerConfig(**{item.name: wrong})


@pytest.mark.parametrize("unit", BYTES)
def test_units_of_bytes(unit: str) -> None:
    for text in (f"3{unit}", f"3 {unit.lower()}", f"+3{unit.upper()}"):
        assert parse_bytes(text) == 3 * BYTES[unit]
    assert parse_bytes(f"1.5{unit}") == BYTES[unit] * 3 // 2
    assert parse_bytes(f"-2{unit}") == -2 * BYTES[unit]
    assert parse_bytes("7") == parse_bytes("7B") == 7
    for wrong in (f"1{unit}s", f"0.0001{unit}" if unit == "KB" else "1.5", "", unit, "1e3", "0x10", "1 2"):
        with pytest.raises(ConfigError):
            parse_bytes(wrong)


@pytest.mark.parametrize(("unit", "ms"), [("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)])
def test_units_of_time(unit: str, ms: int) -> None:
    assert parse_duration(f"6{unit}", "ms") == 6 * ms
    assert isinstance(parse_duration(f"6{unit}", "ms"), int)
    assert parse_duration(f"6{unit}", "seconds") == 6 * ms / 1000
    assert parse_duration(f"6{unit}", "minutes") == pytest.approx(6 * ms / 60_000)
    assert parse_duration(f"6{unit}", "hours") == pytest.approx(6 * ms / 3_600_000)
    assert parse_duration(f"0.5{unit}", "ms") == ms / 2
    for own in ("ms", "seconds", "minutes", "hours"):
        assert parse_duration("6", own) == 6
        with pytest.raises(ConfigError, match="is no duration"):
            parse_duration(f"6{unit.upper()}x", own)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((None, None, ()), ""),
        ((1, None, ()), "≥ 1"),
        ((None, 9, ()), "≤ 9"),
        ((0, 0.5, ()), "0 … 0.5"),
        ((1, 2, ("a", "b")), "a, b"),
    ],
)
def test_a_range_in_words(found: tuple[Any, Any, tuple[str, ...]], words: str) -> None:
    low, high, choices = found
    assert Setting("n", "f", "int", "", "", low, high, choices, "").range == words


def test_the_nearest_name_is_suggested() -> None:
    assert unknown_name("log.dirr", ["log.dir", "port"]) == "unknown setting 'log.dirr'; did you mean 'log.dir'?"
    assert unknown_name("LOG_DIR", ["log.dir"]) == "unknown setting 'LOG_DIR'; did you mean 'log.dir'?"
    assert unknown_name("zzzzzz", ["log.dir"]) == "unknown setting 'zzzzzz'"
    said = unknown_name("batch.siz", {"batch_messages": "batch_messages", "batch.size": "batch_messages"})
    assert said == "unknown setting 'batch.siz'; did you mean 'batch_messages'? 'batch.size' is called so"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (True, "true"), (False, "false"), (0.1, "0.1"), (2.0, "2"), (1e-6, "0.000001"), (3, "3"),
     ({"a": 1.5, "b": True}, "a:1.5,b:true"), (("x", "y"), "x,y"), ([1, 2], "1,2"), ("x", "x")],
)  # fmt: skip
def test_a_value_as_a_person_writes_it(value: object, text: str) -> None:
    assert plain(value) == text


def test_lines_of_a_properties_file_are_counted(tmp_path: Path) -> None:
    """The number is that of the last line that belongs to what is wrong."""
    path = tmp_path / "p"
    path.write_text("# one\n\na=1\nb=\\\n  \\u12\n")
    with pytest.raises(ConfigError, match=r"p, line 5: malformed \\u escape"):
        load_properties(path)
    path.write_text("a = x\\\n   y\nb:\\ z\n!c\na2=\\\\\n")
    assert load_properties(path) == {"a": "xy", "b": "z", "a2": "\\"}


# -- the processors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cpus", "processors"), [(0, 1), (1, 1), (7, 7), (48, 48), (49, 48), (500, 48)])
def test_as_many_processors_as_processors(cpus: int, processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that this process may use, at least one, and no more than are possible."""

    class Os:
        @staticmethod
        def sched_getaffinity(pid: int) -> set[int]:
            assert pid == 0
            return set(range(cpus))

    monkeypatch.setattr(broker_settings, "os", Os)
    assert BrokerConfig().processors == processors
    assert MAX_PROCESSORS == 48


@pytest.mark.parametrize(
    ("hours", "ms"), [(0.000001, 4), (1, 3_600_000), (0.5, 1_800_000), (10**9, 3_600_000 * 10**9), (168.0, 604_800_000)]
)
def test_hours_are_kept_in_milliseconds(hours: float, ms: int) -> None:
    found = BrokerConfig(roll_hours=hours, retention_hours=hours).for_topic("t")
    assert (found.roll_ms, found.retention_ms) == (ms, ms)


def test_what_holds_for_a_topic() -> None:
    """Each of its own values where there is one, else the general one; no two are exchanged."""
    general: dict[str, Any] = {
        "partitions": 2, "segment_bytes": 1003, "roll_hours": 5.0, "retention_hours": 7.0, "retention_bytes": 1011,
        "flush_interval_messages": 13, "flush_interval_ms": 17,
    }  # fmt: skip
    own = {name: {"t": value * 2} for name, value in general.items()}
    config = BrokerConfig(**general, **{f"{name}_by_topic": value for name, value in own.items()})
    assert config.for_topic("other") == (2, 1003, 18_000_000, 25_200_000, 1011, 13, 17, 0, False)
    assert config.for_topic("t") == (4, 2006, 36_000_000, 50_400_000, 2022, 26, 34, 0, False)
    assert (config.partition_count("t"), config.partition_count("other")) == (4, 2)


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("h:0", "h", 0), ("h:65535", "h", 65535), (" h:1 ", "h", 1), ("[::1]:9", "::1", 9), ("1.2.3.4:007", "1.2.3.4", 7)],
)
def test_addresses_to_listen_on(text: str, host: str, port: int) -> None:
    found = parse_listen("name", text)
    assert found == ListenAddress(host, port)
    assert str(found) == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


@pytest.mark.parametrize(
    "text",
    ["", "h", "h:", ":1", "h:65536", "h:-1", "h:1x", "h:٣", "::1:9", "[]:1", "h:655350", "h:9999999", "h:0655350"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^name: .*127\.0\.0\.1:9080|^name: .*brackets"):
        parse_listen("name", text)


@pytest.mark.parametrize(
    ("host", "is_it"),
    [("localhost", True), ("127.0.0.1", True), ("127.255.255.254", True), ("[::1]", True), ("::1", True),
     ("128.0.0.1", False), ("0.0.0.0", False), ("::", False), ("", False), ("localhost.", False), ("name", False)],
)  # fmt: skip
def test_loopback(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it


@pytest.mark.parametrize("host", ["", "name", "1.2.3.4", "::1", "[::1]", "a-b.c"])
def test_names_that_may_be_told(host: str) -> None:
    check_advertised(host)


@pytest.mark.parametrize("host", ["a/b", "a,b", "a b", "a\tb", "a\n", "a[b]c", "h:1", ":::", "[::1]:9"])
def test_names_that_may_not_be_told(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^hostname: "):
        check_advertised(host)


def test_a_monitor_is_guarded() -> None:
    """Loopback or a token; and a token without an address protects nothing."""
    check_monitor(None, has_token=False)
    check_monitor(ListenAddress("127.0.0.1", 1), has_token=False)
    check_monitor(ListenAddress("0.0.0.0", 1), has_token=True)
    with pytest.raises(ConfigError, match=r"there is no monitor\.address to protect"):
        check_monitor(None, has_token=True)
    with pytest.raises(ConfigError, match=r"refusing to listen on 0\.0\.0\.0 without a token"):
        check_monitor(ListenAddress("0.0.0.0", 1), has_token=False)


# -- what the settings promise -----------------------------------------------------------------------------------------


def test_the_promise_has_the_figures_of_the_settings() -> None:
    config = BrokerConfig(flush_interval_messages=3, flush_interval_ms=5, flush_bytes=7, flush_min_interval_ms=11)
    policy = "every 3 messages or 5 ms or 7 bytes, on demand after 11 ms"
    kept = (
        "after a power loss at most 3 messages or 7 bytes per partition are missing, from the end, and nothing older "
        "than 10 ms; a killed process loses nothing that was acknowledged"
    )
    assert (flush_policy(config), promise(config)) == (policy, kept)
    begin = f"acked = page cache, unless the producer asks for flushed; flushed {policy}; {kept}; "
    assert durability(config, 0.01234) == f"{begin}measured fdatasync 12.34 ms"
    assert durability(config, 0.0) == f"{begin}measured fdatasync 0.00 ms"
    assert durability(config, None) == f"{begin}fdatasync not measured"


@pytest.mark.parametrize("count", [1, 2, SHOWN_TOPICS, SHOWN_TOPICS + 1, SHOWN_TOPICS + 5])
def test_topics_with_figures_of_their_own_are_named_and_the_others_counted(count: int) -> None:
    names = [f"t{number:02}" for number in range(count)]
    config = BrokerConfig(
        flush_interval_messages=3,
        flush_interval_ms=5,
        flush_interval_messages_by_topic={name: 100 for name in names[::2]},
        flush_interval_ms_by_topic={name: 50 for name in names[1::2]},
    )
    shown = [f"'{name}' {'3 messages, 100' if at % 2 else '100 messages, 10'} ms" for at, name in enumerate(names)]
    more = f" and {count - SHOWN_TOPICS} more topics" if count > SHOWN_TOPICS else ""
    assert f"older than 10 ms (but {'; '.join(shown[:SHOWN_TOPICS])}{more}); a killed" in promise(config)


# -- clocks ------------------------------------------------------------------------------------------------------------


def test_the_clock_of_the_machine() -> None:
    clock = SystemClock()
    before, before_ns = time.time_ns() // 10**6, time.monotonic_ns()
    assert before <= clock.now_ms() <= time.time_ns() // 10**6
    assert before_ns <= clock.monotonic_ns() <= time.monotonic_ns()
    clock.sleep(0.002)
    assert time.monotonic_ns() - before_ns >= 2_000_000


def test_a_clock_that_is_moved_by_hand() -> None:
    clock = ManualClock(1000)
    clock.sleep(1.5)
    clock.advance_ms(0.25)
    assert (clock.now_ms(), clock.monotonic_ns()) == (2500, 1_500_250_000)
    clock.set_wall_ms(7)
    clock.advance_ms(0)
    assert (clock.now_ms(), clock.monotonic_ns()) == (7, 1_500_250_000)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance_ms(-0.001)
    assert ManualClock().now_ms() == 10**12
