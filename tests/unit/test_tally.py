"""The tally: what a set of numbers and a counter would say, however messages come, in a bit each."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import message
from fastlog._segment import pack
from fastlog.audit._tally import LATENCY_BOUNDS_MS, Tally
from fastlog.envelope import Envelope, wrap
from tests import reference
from tests.harness import memory_shim
from tests.harness.checkout import ROOT
from tests.harness.memory_shim import Memory
from tests.harness.sanitizer import IS_SANITIZED, about_memory

PAGE = 32768
WINDOW_MS = 1000


def identity(producer: int, number: int) -> bytes:
    return b"\x01" + producer.to_bytes(8, "big") + number.to_bytes(8, "big")


def payload(producer: int, number: int, time_ms: int = 0, server: int = 5) -> bytes:
    return wrap(b"value", Envelope(time_ms, server, deduplication_id=identity(producer, number)))


def counted(payloads: list[bytes], **options: Any) -> Tally:
    tally = Tally(WINDOW_MS)
    tally.count_entries(pack(payloads), len(payloads), **options)
    return tally


# Near the borders of words and pages, close together and far apart.
NUMBERS = st.one_of(
    st.integers(0, 200),
    st.builds(lambda page, near: max(0, page * PAGE + near), st.integers(0, 5), st.integers(-70, 70)),
    st.integers(0, 2**63 - 1),
)
MESSAGES = st.lists(
    st.tuples(st.sampled_from([0, 1, 7, 2**63 - 1]), NUMBERS, st.integers(-3000, 3000) | st.integers(-(2**62), 2**62)),
    max_size=60,
)


def test_ages_are_counted_once_and_by_their_bounds() -> None:
    """From the time in the envelope to the one that is given; what was seen before, or has no envelope, has no age."""
    now = 10**12
    ages = [0, 1, 2, 5, 6, 7_200_000, 7_200_001, -50, 2**62]
    payloads = [payload(1, number, now - age) for number, age in enumerate(ages)]
    tally = Tally(WINDOW_MS)
    assert tally.latencies() == ((0,) * (len(LATENCY_BOUNDS_MS) + 1), 0.0)
    tally.count_entries(pack([*payloads, b"none"]), len(ages) + 1, now_ms=now)
    tally.count_entries(pack(payloads), len(ages), now_ms=now + 5)
    tally.count_entries(pack(payloads), len(ages), True, now + 5)
    tally.count_entries(pack([payload(1, 100, now)]), 1)
    counts = dict.fromkeys([*LATENCY_BOUNDS_MS, None], 0)
    counts |= {1: 3, 5: 2, 10: 1, 7_200_000: 1, None: 2}
    assert tally.latencies() == (tuple(counts.values()), 2.0**62 + 14_400_015)
    other = Tally(WINDOW_MS)
    data = np.frombuffer(payloads[3], np.uint8)
    other.count_columns(data, np.zeros(1, np.int64), np.full(1, len(data), np.int32), now_ms=now)
    other.count_columns(data, np.zeros(1, np.int64), np.full(1, len(data), np.int32), True)
    assert other.latencies() == (tuple(int(bound == 5) for bound in [*LATENCY_BOUNDS_MS, None]), 5.0)
    assert list(LATENCY_BOUNDS_MS) == sorted(LATENCY_BOUNDS_MS)


def test_a_message_from_the_future_adds_nothing_to_the_ages() -> None:
    """It is counted as one of no age."""
    tally = counted([payload(1, 0, 10**12 + 50), payload(1, 1, 10**12 - 7)], now_ms=10**12)
    assert tally.latencies()[1] == 7.0
    assert sum(tally.latencies()[0]) == 2


@pytest.mark.slow
@settings(deadline=None)
@given(MESSAGES, st.integers(0, 60), st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5))
def test_a_tally_is_a_set_and_a_counter(
    messages: list[tuple[int, int, int]], cut: int, ranges: list[tuple[int, int]]
) -> None:
    payloads = [payload(*item) for item in messages]
    tally = counted(payloads[:cut])
    rest = np.frombuffer(b"".join(payloads[cut:]), np.uint8)
    lengths = np.array([len(item) for item in payloads[cut:]], np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if len(lengths) else np.empty(0, np.int64)
    tally.count_columns(rest, starts, lengths)
    seen: set[tuple[int, int]] = set()
    windows: Counter[tuple[int, int]] = Counter()
    again: Counter[tuple[int, int]] = Counter()
    for producer, number, time_ms in messages:
        window = (producer, time_ms // WINDOW_MS * WINDOW_MS)
        windows[window] += 1
        again[window] += (producer, number) in seen
        seen.add((producer, number))
    assert tally.messages == len(messages)
    assert {(cell[0], cell[2]): (cell[3], cell[4]) for cell in tally.cells()} == {
        window: (count, again[window]) for window, count in windows.items()
    }
    assert tally.producers() == sorted((producer, 5) for producer in {item[0] for item in messages})
    for producer in (0, 1, 7, 2**63 - 1, 99):
        numbers = {number for whose, number in seen if whose == producer}
        for one, other in ranges:
            first, last = sorted((one, other))
            inside = sorted(number for number in numbers if first <= number <= last)
            assert tally.seen(producer, first, last) == len(inside)
            gaps = []
            for number in inside:
                if first < number:
                    gaps.append((first, number - 1))
                first = number + 1
            if first <= last:
                gaps.append((first, last))
            assert tally.missing(producer, *sorted((one, other)), 1000) == gaps


@pytest.mark.slow
def test_pages_that_are_full_are_still_there() -> None:
    """Three pages to the last bit, but for one number; then that one, and one twice."""
    count = 3 * PAGE
    numbers = [number for number in range(count) if number != PAGE + 9]
    tally = counted([payload(3, number) for number in reversed(numbers)])
    assert tally.seen(3, 0, count) == count - 1
    assert tally.missing(3, 0, count - 1) == [(PAGE + 9, PAGE + 9)]
    assert tally.missing(3, 5, count + 5) == [(PAGE + 9, PAGE + 9), (count, count + 5)]
    tally.count_entries(pack([payload(3, PAGE + 9), payload(3, 2 * PAGE)]), 2)
    assert tally.missing(3, 0, count - 1) == []
    assert [cell[3:] for cell in tally.cells()] == [(count + 1, 1)]


@about_memory
def test_pages_that_are_full_take_no_room() -> None:
    """80 MiB of bits, all set."""
    tally = Tally(WINDOW_MS)
    process = psutil.Process()
    before = process.memory_info().rss
    for number in range(20_000):
        tally.merge_page(1, 5, number, b"\xff" * (PAGE // 8))
    assert process.memory_info().rss - before < 20 * 2**20
    assert tally.seen(1, 0, 20_000 * PAGE) == 20_000 * PAGE


@about_memory
def test_a_page_takes_no_room_from_its_last_number_on() -> None:
    """40 MiB of bits; the last number of each page comes as a message."""
    tally = Tally(WINDOW_MS)
    tally.merge_page(1, 5, 10_000, b"\0" * (PAGE // 8))  # what it needs at all is there now
    process = psutil.Process()
    before = process.memory_info().rss
    for number in range(10_000):
        tally.merge_page(1, 5, number, b"\xff" * (PAGE // 8 - 1) + b"\x7f")
        tally.count_entries(pack([payload(1, (number + 1) * PAGE - 1)]), 1)
    assert process.memory_info().rss - before < 10 * 2**20
    assert tally.seen(1, 0, 10_000 * PAGE) == 10_000 * PAGE


def test_full_pages_end_what_is_missing_before_them() -> None:
    tally = Tally(WINDOW_MS)
    for page in (2, 3, 5):
        tally.merge_page(1, 5, page, b"\xff" * (PAGE // 8))
    assert tally.missing(1, 0, 4 * PAGE - 1) == [(0, 2 * PAGE - 1)]
    assert tally.missing(1, PAGE, 6 * PAGE) == [(PAGE, 2 * PAGE - 1), (4 * PAGE, 5 * PAGE - 1), (6 * PAGE, 6 * PAGE)]


def test_not_more_gaps_than_wanted() -> None:
    tally = counted([payload(3, number) for number in range(0, 200, 2)])
    assert tally.missing(3, 0, 199, 3) == [(1, 1), (3, 3), (5, 5)]
    tally.merge_page(1, 5, 0, b"\x55" * (PAGE // 8))
    tracemalloc.start()
    try:
        assert tally.missing(1, 0, PAGE - 1, 3) == [(1, 1), (3, 3), (5, 5)]
        assert tracemalloc.get_traced_memory()[1] < 100_000, "nor are more made and thrown away"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [0, 5, 2**63 - 1])
def test_the_highest_number_is_an_end(number: int) -> None:
    """Where counting on would begin again below zero."""
    tally = counted([payload(3, number)])
    top = 2**63 - 1
    assert tally.missing(3, top, top) == ([] if number == top else [(top, top)])
    assert tally.missing(9, 0, top) == [(0, top)]
    assert tally.missing(3, 6, top) == [(6, top - (number == top))]
    assert tally.seen(3, 0, top) == 1


def test_many_producers_find_their_places() -> None:
    producers = [producer * 0x9E3779B97F4A7C15 % 2**63 for producer in range(1000)]
    tally = counted([payload(producer, number) for number in range(3) for producer in producers])
    assert [producer for producer, _ in tally.producers()] == sorted(producers)
    assert all(tally.seen(producer, 0, 9) == 3 for producer in producers)


@pytest.mark.parametrize(
    "odd", [b"", b"x" * 16, b"\x02" + bytes(16), b"\x01\x80" + bytes(15), b"\x01" + bytes(8) + b"\x80" + bytes(7)]
)
def test_other_deduplication_ids_are_no_numbers(odd: bytes) -> None:
    """Such messages count in their window, by server, and are never duplicates."""
    one = wrap(b"", Envelope(2500, 8, deduplication_id=odd))
    tally = counted([one, one, wrap(b"", Envelope(2500, 9))])
    assert sorted(tally.cells()) == [(None, 8, 2000, 2, 0), (None, 9, 2000, 1, 0)]
    assert tally.producers() == []
    assert tally.changed_pages() == []


def test_what_has_no_envelope_is_counted_apart() -> None:
    tally = counted([b"plain", b"", payload(1, 1)])
    assert (tally.messages, tally.unwrapped) == (3, 2)
    assert len(tally.cells()) == 1


def test_what_is_read_again_is_no_duplicate() -> None:
    """And what is new in it counts."""
    tally = counted([payload(1, 1), payload(1, 2)])
    tally.count_entries(pack([payload(1, 2), payload(1, 3)]), 2, True)
    assert [cell[3:] for cell in tally.cells()] == [(3, 0)]


def test_the_first_numbers_of_each_part() -> None:
    tally = Tally(WINDOW_MS)
    tally.begin_part()
    tally.count_entries(pack([payload(1, 5), payload(2, 9), payload(1, 4)]), 3)
    assert tally.firsts() == {1: 5, 2: 9}
    tally.begin_part()
    assert tally.firsts() == {}
    tally.count_entries(pack([payload(2, 3)]), 1)
    assert tally.firsts() == {2: 3}


@pytest.mark.slow
def test_pages_tell_somebody_else() -> None:
    """Only what is new, until it is known to have arrived; full pages too; in any order, any number of times."""
    here, there = Tally(WINDOW_MS), Tally(WINDOW_MS)
    assert here.changed_pages() == []
    for numbers in (range(0, 10), range(10, PAGE + 3), range(5 * PAGE, 5 * PAGE + 2)):
        here.count_entries(pack([payload(4, number) for number in numbers]), len(numbers))
        news = here.changed_pages()
        assert here.changed_pages() == news
        for producer, server, number, _, bits in [*reversed(news), *news]:
            there.merge_page(producer, server, number, bits)
        here.note_published(news)
        assert here.changed_pages() == []
    for first, last in ((0, PAGE + 2), (0, 6 * PAGE), (5 * PAGE, 5 * PAGE + 1)):
        assert there.seen(4, first, last) == here.seen(4, first, last)
    assert there.producers() == here.producers()
    assert there.missing(4, 0, 5 * PAGE) == [(PAGE + 3, 5 * PAGE - 1)]


def test_a_page_that_grew_while_it_was_told_is_told_again() -> None:
    tally = counted([payload(4, 1)])
    news = tally.changed_pages()
    tally.count_entries(pack([payload(4, 2)]), 1)
    tally.note_published(news)
    assert [page[3] for page in tally.changed_pages()] == [2]


@pytest.mark.parametrize(
    "page", [(1, 0, 0, b"short"), (1, 0, -1, bytes(4096)), (1, 0, 2**48, bytes(4096)), (2**63, 0, 0, bytes(4096))]
)
def test_pages_that_are_none(page: Any) -> None:
    with pytest.raises(ValueError, match="page"):
        Tally(1).merge_page(*page)


def test_bytes_that_are_not_there() -> None:
    """A cut anywhere is an error, never a read behind it."""
    entries = pack([payload(1, 1)])
    for cut in range(len(entries)):
        with pytest.raises(BufferError):
            Tally(1).count_entries(bytes(entries[:cut]), 1)
    for start, length in ((0, 11), (-1, 2), (3, -1), (2**62, 2**31 - 1)):
        with pytest.raises(ValueError, match="outside"):
            Tally(1).count_columns(bytes(10), np.array([start]), np.array([length], np.int32))
    with pytest.raises(ValueError, match="window"):
        Tally(0)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30), st.data())
def test_damaged_envelopes_count_as_the_twin_reads_them(numbers: list[tuple[int, int]], data: st.DataObject) -> None:
    payloads = []
    for number, at in numbers:
        changed = bytearray(payload(1, number))
        changed[at % len(changed)] ^= 1 << data.draw(st.integers(0, 7))
        payloads.append(bytes(changed[: data.draw(st.integers(0, len(changed)))]))
    unwrapped = 0
    for item in payloads:
        try:
            reference.envelope(item)
        except reference.DamagedError:
            unwrapped += 1
    tally = counted(payloads)
    assert tally.unwrapped == unwrapped
    assert sum(cell[3] for cell in tally.cells()) == len(payloads) - unwrapped


def test_spans_of_wrappers_are_counted() -> None:
    tally = Tally(WINDOW_MS)
    data = message.encode_set([payload(1, number) for number in range(9)], 1)
    for span in message.spans(data):
        tally.count_entries(span.entries, span.count)
    assert tally.seen(1, 0, 8) == 9


@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (0, 1), (1, 0)])
def test_columns_of_different_lengths_are_refused(counts: tuple[int, int]) -> None:
    """Before anything is counted: the shorter one ends before the longer."""
    one = payload(1, 0)
    starts, lengths = np.zeros(counts[0], np.int64), np.full(counts[1], len(one), np.int32)
    tally = Tally(WINDOW_MS)
    with pytest.raises(ValueError, match="starts and lengths have different lengths"):
        tally.count_columns(np.frombuffer(one, np.uint8), starts, lengths)
    assert tally.messages == 0


def test_an_empty_payload_is_a_message() -> None:
    """Without an envelope, wherever in the buffer it is said to lie; also at its end."""
    tally = Tally(WINDOW_MS)
    tally.count_columns(bytes(3), np.array([0, 3]), np.array([0, 0], np.int32))
    assert (tally.messages, tally.unwrapped) == (2, 2)


def test_what_was_told_of_an_unknown_page_says_nothing_of_another() -> None:
    """Before the pages of its producer, between them and behind them; nor of a producer that has none."""
    tally = counted([payload(1, number * PAGE) for number in (2, 4)])
    pages = tally.changed_pages()
    assert [page[2] for page in pages] == [2, 4]
    tally.note_published([(producer, 5, number, 1, b"") for producer in (1, 2) for number in (0, 3, 9)])
    assert tally.changed_pages() == pages
    tally.note_published(pages[1:])
    assert tally.changed_pages() == pages[:1]


# -- without memory ----------------------------------------------------------------------------------------------------

OTHER_ID = 77


def each_place_refused() -> None:
    """For a process behind ``memory_shim``: each place of the tally that asks for memory has none, once."""
    memory = Memory(ROOT / "fastlog")
    entries = [payload(1, number) for number in (0, PAGE, 5 * PAGE)]
    bits = b"\x05" + bytes(PAGE // 8 - 1)
    sizes = np.array([len(entry) for entry in entries], np.int32)
    starts = np.array([0, *np.cumsum(sizes)[:-1]], np.int64)
    others = pack([wrap(b"", Envelope(0, 9))])  # is counted by its time alone, and has no page
    calls: list[Callable[[Tally], None]] = [
        lambda tally: tally.count_entries(others, 1),
        lambda tally: tally.count_entries(pack(entries), len(entries)),
        lambda tally: tally.count_columns(b"".join(entries), starts, sizes),
        lambda tally: tally.merge_page(OTHER_ID, 5, 3, bits),
    ]
    for call in calls:
        call(Tally(WINDOW_MS))
    refused = 0
    for place in [number for number, name in enumerate(memory.places()) if "_tally" in name]:
        for call in calls:
            tally = Tally(WINDOW_MS)
            memory.refuse(place, 1)
            before = memory.refused()
            try:
                call(tally)
                assert memory.refused() == before
            except MemoryError:
                assert memory.refused() == before + 1
                refused += 1
            memory.refuse(place, 0)
            tally.note_published(
                [(key, 5, 9, 1, b"") for key in (1, OTHER_ID)]
            )  # a producer may be known and have no page yet
            tally.merge_page(OTHER_ID, 5, 3, bits)
            assert (OTHER_ID, 5, 3, 2, bits) in tally.changed_pages()
    assert refused >= 9


@pytest.mark.skipif(IS_SANITIZED, reason="the sanitizer has an allocator of its own")
def test_who_has_no_memory_is_told_so_and_goes_on(tmp_path: Path) -> None:
    """A number that could not be noted is no number that is missing later without a word."""
    program = f"from {__name__} import each_place_refused as run; run()"
    environment = os.environ | {"LD_PRELOAD": memory_shim.preloaded(memory_shim.build(tmp_path))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
