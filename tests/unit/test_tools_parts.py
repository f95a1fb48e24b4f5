"""What the commands are made of: keys in lines, what became of lines, and printing with limits."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import select
import threading
import zlib
from pathlib import Path

import pytest

from fastlog import message
from fastlog.client.records import RecordsError
from fastlog.consumer.fetched import MessageSet
from fastlog.errors import ClosedError, FastlogError, MessageTooLargeError, StorageError
from fastlog.producer import Crc32Partitioner
from fastlog.producer.hooks import Delivery
from fastlog.tools import deliveries as deliveries_module
from fastlog.tools import printing, signals
from fastlog.tools.deliveries import Deliveries, Losses, is_refusal
from fastlog.tools.keys import KeyedLines, KeyRule, LineGroup
from fastlog.tools.lines import LineBatches
from fastlog.tools.printing import FORMS, DamageError, Printer
from fastlog.tools.progress import ConsoleProgress
from tests.harness.descriptors import count_descriptors
from tests.harness.timing import PATIENCE

# --- keys ---


@pytest.mark.parametrize(
    ("rule", "line", "found"),
    [
        (KeyRule(b"\t", 0, False, True), b"k\tv\tw", (b"k", b"v\tw")),
        (KeyRule(b"\t", 0, True, True), b"k\tv", (b"k", b"k\tv")),
        (KeyRule(b"\t", 0, False, True), b"\tv", (b"", b"v")),
        (KeyRule(b"\t", 0, False, True), b"k\t", (b"k", b"")),
        (KeyRule(b"\t", 0, False, True), b"kv", (None, b"kv")),
        (KeyRule(b"::", 0, False, True), b"k:1::v", (b"k:1", b"v")),
        (KeyRule(b" ", 1, True, True), b"1.2.3.4 - -", (b"1.2.3.4", b"1.2.3.4 - -")),
        (KeyRule(b" ", 3, True, True), b"a b c d", (b"c", b"a b c d")),
        (KeyRule(b" ", 3, True, True), b"a b c", (b"c", b"a b c")),
        (KeyRule(b" ", 4, True, True), b"a b c", (None, b"a b c")),
        (KeyRule(b" ", 1, True, True), b"\xff\x00", (b"\xff\x00", b"\xff\x00")),
        (KeyRule(b"\t", 0, False, True, b"k"), b"own\tv", (b"own", b"v")),
        (KeyRule(b"\t", 0, False, True, b"k"), b"\tv", (b"", b"v")),
        (KeyRule(b"\t", 0, False, True, b"k"), b"none", (b"k", b"none")),
        (KeyRule(b" ", 2, True, True, b"k"), b"none", (b"k", b"none")),
        (KeyRule(None, 0, False, True, b"k"), b"a\tb", (b"k", b"a\tb")),
    ],
)
def test_where_the_key_is(rule: KeyRule, line: bytes, found: tuple[bytes | None, bytes]) -> None:
    assert rule.split(line) == found


def test_keys_choose_as_the_producer_does() -> None:
    """Each partition gets its lines in their order, with their numbers; nothing is lost between batches."""
    places = tuple((broker, number) for broker in (3, 7) for number in range(3))
    keyed = KeyedLines(KeyRule(b"\t", 0, False, True), lambda: places)
    lines = [b"key %d\tline %d" % (number % 17, number) for number in range(500)]
    found: dict[object, list[tuple[int, bytes]]] = {}
    for start in (0, 200):
        end = 200 if start == 0 else 500
        groups, keyless = keyed.sort(lines[start:end], range(start + 1, end + 1))
        assert keyless is None
        for group in groups:
            found.setdefault(group.place, []).extend(zip(group.numbers, group.payloads, strict=True))
    expected: dict[object, list[tuple[int, bytes]]] = {}
    for number, line in enumerate(lines, start=1):
        key, _, payload = line.partition(b"\t")
        place = places[Crc32Partitioner().partition(key, len(places))]
        expected.setdefault(place, []).append((number, payload))
    assert found == expected and len(found) > 3


def test_keys_follow_a_list_that_changes() -> None:
    """Each batch goes by the partitions that there are then; and lines need not follow one another."""
    places = [(1, 0)]
    keyed = KeyedLines(KeyRule(b"\t", 0, False, True), lambda: tuple(places))
    assert keyed.sort([b"a\t1"], [1]) == ([LineGroup((1, 0), [b"1"], [1])], None)
    places[:] = [(2, 0), (3, 0)]
    expected = places[Crc32Partitioner().partition(b"a", 2)]
    assert keyed.sort([b"a\t1", b"a\t2"], [1, 7]) == ([LineGroup(expected, [b"1", b"2"], [1, 7])], None)


def test_lines_without_a_key() -> None:
    """An error names the first of them, and what is before it is sent; else they go anywhere."""
    lines = [b"a\t1", b"no key", b"b\t2"]
    places = ((0, 0),)
    assert KeyedLines(KeyRule(b"\t", 0, False, True), lambda: places).sort(lines, range(10, 13)) == (
        [LineGroup((0, 0), [b"1"], [10])],
        11,
    )
    groups, keyless = KeyedLines(KeyRule(b"\t", 0, False, False), lambda: places).sort(lines, range(10, 13))
    assert keyless is None
    assert groups == [LineGroup((0, 0), [b"1", b"2"], [10, 12]), LineGroup(None, [b"no key"], [11])]
    assert KeyedLines(KeyRule(b"\t", 0, False, True), tuple).sort([b"a\t1"], [1]) == (
        [LineGroup(None, [b"1"], [1])],
        None,
    )


def test_lines_that_become_records_keep_their_keys() -> None:
    """Their keys choose by all bits of the hash, as today's clients have it; those without go where they are sent."""
    keyed = KeyedLines(KeyRule(b"\t", 0, False, False), lambda: tuple(range(7)), of_records=True)
    lines = [b"%d\tv" % number for number in range(50)]
    groups, _ = keyed.sort([*lines, b"none"], range(51), 3)
    found = {key: group.place for group in groups for key in group.keys or ()}
    expected = {b"%d" % number: zlib.crc32(b"%d" % number) % 7 for number in range(50)}
    assert found == {**expected, None: 3}
    assert any(zlib.crc32(key) & 0x7FFFFFFF != zlib.crc32(key) for key in expected)
    keyed = KeyedLines(KeyRule(b"\t", 0, False, True), lambda: (0, 1), of_records=True, has_nulls=True)
    assert keyed.sort([b"\t1", b"\t", b"none"], range(3), 1) == ([LineGroup(1, [b"1", None], [0, 1], [None, None])], 2)


def test_each_line_has_a_number() -> None:
    keyed = KeyedLines(KeyRule(b"\t", 0, False, True), lambda: (0, 1))
    with pytest.raises(ValueError, match="shorter"):
        keyed.sort([b"a\tv"], [1, 2])


# --- numbers of lines ---


def test_batches_know_their_line_numbers(tmp_path: Path) -> None:
    """Also behind lines that were left out, and at an end without a newline."""
    source = random.Random(5)
    lines = [b"x" * source.choice([0, 1, 3, 5, 6, 9]) + b"." for _ in range(300)]
    path = tmp_path / "f"
    path.write_bytes(b"\n".join(lines))
    for batch_bytes in (1, 10, 1000):
        batches = LineBatches(batch_bytes, 5)
        found = []
        with path.open("rb") as file:
            for batch in batches.read(file.fileno(), "f", lambda fd: None):
                assert batches.size == sum(map(len, batch))
                found += enumerate(batch, start=batches.first_line)
        assert found == [(number, line) for number, line in enumerate(lines, start=1) if len(line) <= 5]
        assert batches.given_bytes == path.stat().st_size


# --- what became of lines ---


def told(messages: int, error: Exception | None = None, first: int = 0) -> Delivery:
    return Delivery("t", 0, 0, -1, -1, messages, error, first)  # type: ignore[arg-type]


def test_what_a_broker_refuses_is_not_stored_and_of_the_rest_nobody_knows() -> None:
    """Each request fails by itself; null has no bytes."""
    deliveries = Deliveries()
    call = deliveries.begin("a", [b"x", None, b"yy", b"", b"z", b"w"], range(1, 7), 5)
    call(told(1, MessageTooLargeError("large")))
    call(told(2, first=1))
    call(told(1, RecordsError("no codec", 76), 3))
    call(told(1, RecordsError("nothing before it", 45), 4))
    assert (deliveries.refused, deliveries.unknown) == (2, 1)
    assert deliveries.lost_lines() == "a, line 1; a, lines 4-5"
    assert deliveries.pending_bytes
    deliveries.give_up()
    assert (deliveries.unknown, deliveries.lost_lines()) == (2, "a, line 1; a, lines 4-6")
    assert (deliveries.delivered, deliveries.delivered_bytes) == (2, 2)


def test_lost_lines_are_named() -> None:
    """As ranges, by input."""
    deliveries = Deliveries()
    first = deliveries.begin("a", [b"xx"] * 10, range(1, 11), 20)
    second = deliveries.begin("a", [b"x"] * 3, [11, 13, 14], 3)
    third = deliveries.begin("b", [b"x"] * 2, range(1, 3), 2)
    first(told(4))
    assert deliveries.error is None and not select.select([deliveries.woken], [], [], 0)[0]
    first(told(3, StorageError("full"), 4))
    assert select.select([deliveries.woken], [], [], 0)[0]
    first(told(3, first=7))
    second(told(1, ClosedError("closed")))
    second(told(2, ClosedError("closed"), 1))
    deliveries.give_up()
    third(told(0))
    assert (deliveries.delivered, deliveries.delivered_bytes) == (7, 14)
    assert (deliveries.refused, deliveries.unknown, type(deliveries.error)) == (3, 5, StorageError)
    assert deliveries.lost_lines() == "a, lines 5-7; a, line 11; a, lines 13-14; b, lines 1-2"


def test_lines_of_a_request_that_is_settled_out_of_turn_are_named() -> None:
    """A refused request is tried again behind later ones, a compressed set that is too large is before all others."""
    deliveries = Deliveries()
    call = deliveries.begin("a", [b"x" * number for number in range(10)], range(1, 11), 45)
    call(told(2, MessageTooLargeError("set"), 6))
    call(told(2, first=8))
    call(told(3))
    assert (deliveries.refused, deliveries.delivered, deliveries.delivered_bytes) == (2, 5, 0 + 1 + 2 + 8 + 9)
    assert deliveries.pending_bytes and deliveries.lost_lines() == "a, lines 7-8"
    call(told(3, StorageError("full"), 3))
    assert not deliveries.pending_bytes and deliveries.lost_lines() == "a, lines 4-8"


def test_what_is_given_up_is_what_has_no_answer() -> None:
    """Wherever it is in its call."""
    deliveries = Deliveries()
    call = deliveries.begin("a", [b"x"] * 10, range(1, 11), 10)
    call(told(2, first=6))
    call(told(1, first=3))
    deliveries.give_up()
    assert (deliveries.unknown, deliveries.lost_lines()) == (7, "a, lines 1-3; a, lines 5-6; a, lines 9-10")


def test_many_ranges_are_cut() -> None:
    deliveries = Deliveries()
    deliveries.begin("a", [b"x"] * 20, range(1, 40, 2), 20)
    deliveries.give_up()
    assert deliveries.lost_lines().count("line") == 8 and deliveries.lost_lines().endswith(" and 12 more ranges")


def test_room_comes_with_deliveries_and_with_failures() -> None:
    deliveries = Deliveries()
    call = deliveries.begin("a", [b"x" * 100], range(1, 2), 100)
    deliveries.wait_room(102)
    call(told(1))
    deliveries.wait_room(1)
    deliveries.begin("a", [b"x" * 100], range(2, 3), 100)
    deliveries.begin("a", [b"x"], range(3, 4), 1)(told(1, StorageError("full")))
    deliveries.wait_room(1)


def test_what_is_under_way_counts_with_its_frames() -> None:
    """Until all of a call is settled, or it is taken back; so many bytes are too many already."""
    deliveries = Deliveries(frame_bytes=3)
    call = deliveries.begin("a", [b"x" * 50] * 2, range(1, 3), 100)
    refused = deliveries.begin("a", [b"y"], range(3, 4), 1)
    assert deliveries.pending_bytes == 110
    deliveries.cancel(refused)
    assert deliveries.pending_bytes == 106
    deliveries.cancel(refused)
    assert deliveries.pending_bytes == 106
    deliveries.wait_room(107, pytest.fail)
    call(told(1, first=1))
    assert deliveries.pending_bytes == 106
    waited = []

    def settle() -> None:
        waited.append(True)
        call(told(1))

    deliveries.wait_room(106, settle)
    assert waited == [True] and (deliveries.pending_bytes, deliveries.delivered_bytes) == (0, 100)


@pytest.mark.parametrize("error", [None, StorageError("full")])
def test_who_waits_for_room_is_woken_at_once(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """By the last delivery of a call, or by the first failure."""
    monkeypatch.setattr(deliveries_module, "_LOOK_SECONDS", 10 * PATIENCE)
    deliveries = Deliveries()
    count = 1 if error is None else 2
    call = deliveries.begin("a", [b"x"] * count, range(count), count)
    begun = threading.Event()

    def waiting_now() -> contextlib.nullcontext[None]:
        begun.set()
        return contextlib.nullcontext()

    monkeypatch.setattr(signals, "waiting", waiting_now)
    waiting = threading.Thread(target=deliveries.wait_room, args=(1,), daemon=True)
    waiting.start()
    assert begun.wait(PATIENCE)
    call(told(1, error))
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_a_descriptor_goes_with_the_counts() -> None:
    before = count_descriptors()
    for _ in range(3):
        Deliveries()
    gc.collect()
    assert count_descriptors() <= before


def test_ranges_begin_at_any_number_and_as_many_as_are_shown_are_all() -> None:
    deliveries = Deliveries(unit="record")
    deliveries.begin("a", [b"x"] * 3, range(3), 3)
    deliveries.begin("a", [b"x"] * 7, range(10, 24, 2), 7)
    deliveries.give_up()
    deliveries.give_up()
    assert deliveries.lost_lines().startswith("a, records 0-2; a, record 10; ")
    assert deliveries.lost_lines().count("record") == 8 and "more" not in deliveries.lost_lines()
    assert next(deliveries.lost_ranges()) == ("a", 0, 2) and deliveries.unknown == 10
    only = Deliveries()
    only.begin("a", [b"x"], [0], 1)
    only.begin("a", [b"x"], [2], 1)
    only.give_up()
    assert list(only.lost_ranges()) == [("a", 0, 0), ("a", 2, 2)]


def test_warnings_of_the_producer_are_shown_and_the_first_loss_is_kept() -> None:
    said: list[str] = []
    log = logging.getLogger("fastlog.producer.link")
    with Losses("fastlog x", said.append) as losses:
        log.warning("messages not delivered: 5")
        log.info("may be lost, but that is no warning")
        log.warning("%s away", "broker")
        assert losses.first == ""
        log.warning("3 messages may be lost")
        log.error("4 messages may be lost")
    log.warning("5 messages may be lost")
    assert said == ["fastlog x: broker away", "fastlog x: 3 messages may be lost", "fastlog x: 4 messages may be lost"]
    assert losses.first == "3 messages may be lost"


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (None, False),
        (ClosedError("closed"), False),
        (StorageError("full"), True),
        (RecordsError("too large", 10), True),
        (RecordsError("not the leader", 6), False),
        (RecordsError("out of order", 45), False),
    ],
)
def test_only_what_a_broker_has_refused_is_surely_not_stored(error: FastlogError | None, is_refused: bool) -> None:
    assert is_refusal(error) is is_refused


# --- printing ---


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    written: list[bytes] = []
    monkeypatch.setattr(printing, "write_all", written.append)
    return written


PLAIN = message.encode_set([b"a", b"bb"])
WRAPPER = message.encode_set([b"c", b"d", b"e"], codec=1)
LOG = PLAIN + WRAPPER + message.encode_set([b"f"])
SENT = [b"a", b"bb", b"c", b"d", b"e", b"f"]
NEXT = [11, 23, 23, 23, 23 + len(WRAPPER), len(LOG)]


def fetched(data: bytes) -> MessageSet:
    return MessageSet("t", 4, 0, memoryview(data))


@pytest.mark.parametrize("most", [None, 1, 2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("skip", [0, 1, 3, 6])
@pytest.mark.parametrize("form", ["text", "offsets"])
def test_limits_and_positions(out: list[bytes], most: int | None, skip: int, form: str) -> None:
    """So many, from there on; and where to go on is behind what was printed, or the start of its compressed set."""
    progress = ConsoleProgress("consumed", shown=False)
    printer = Printer("t", FORMS[form], most, progress)
    printer.skip[4] = skip
    printer.print(fetched(LOG))
    expected = SENT[skip:][:most]
    lines = b"".join(out).split(b"\n")[:-1]
    assert [line.rpartition(b"\t")[2] for line in lines] == expected
    assert (progress.count, progress.size) == (len(expected), sum(map(len, expected)))
    done = skip + len(expected)
    assert printer.positions[4] == NEXT[done - 1]
    assert printer.left == (None if most is None else most - len(expected))


def test_forms(out: list[bytes]) -> None:
    for form in ("text", "offsets", "checksum", "json"):
        Printer("t", FORMS[form], None, ConsoleProgress("consumed", shown=False)).print(fetched(PLAIN))
    assert out[0] == b"a\nbb\n" and out[1] == b"4\t0\ta\n4\t11\tbb\n"
    assert out[2] == b"checksum:3904355907\nchecksum:3048086446\n"
    assert out[3].startswith(b'{"topic": "t", "partition": 4, "offset": 0, "next_offset": 11, "payload": "a"')


def test_what_is_before_damage_is_printed(out: list[bytes]) -> None:
    bad = message.encode_set([b"inside"], codec=2)
    bad = bad[:-1] + bytes([bad[-1] ^ 1])
    printer = Printer("t", None, None, ConsoleProgress("consumed", shown=False))
    with pytest.raises(DamageError) as damage:
        printer.print(fetched(LOG + bad + PLAIN))
    assert b"".join(out) == b"\n".join(SENT) + b"\n"
    assert (damage.value.partition, damage.value.offset, printer.positions[4]) == (4, len(LOG), len(LOG))


def test_a_write_that_is_interrupted_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes on at the position of the summary misses nothing."""

    def interrupted(data: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(printing, "write_all", interrupted)
    progress = ConsoleProgress("consumed", shown=False)
    printer = Printer("t", None, None, progress)
    printer.positions[4] = 0
    with pytest.raises(KeyboardInterrupt):
        printer.print(fetched(LOG))
    assert (printer.positions[4], progress.count) == (0, 0)


def test_large_sets_are_written_in_parts(out: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A small compressed set can hold much: memory does not."""
    monkeypatch.setattr(printing, "_BYTES_AT_ONCE", 100_000)
    sent = [b"x" * 1000] * 2000
    Printer("t", None, None, ConsoleProgress("consumed", shown=False)).print(fetched(message.encode_set(sent, codec=1)))
    assert b"".join(out) == b"".join(line + b"\n" for line in sent)
    assert len(out) > 1


# --- progress ---


def test_progress_shows_the_share_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing at first; then counts and rates, and how far it is when the end is known."""
    progress = ConsoleProgress("consumed", shown=True)
    progress.add(5, 50)
    assert capsys.readouterr().err == ""
    progress._next = 0.0
    progress.started -= 10
    progress.goal, progress.reached = 1000, 250
    progress.idle()
    shown = capsys.readouterr().err
    assert shown.startswith("consumed 5 messages, 50 bytes in 10.0") and shown.endswith(", 25 %, 30 s left\n")
    progress.idle()
    progress.summary(".")
    assert capsys.readouterr().err.count("\n") == 1
