"""What the perf tools send: seeded, bounded, whole batches, every line of a file in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastlog.errors import ConfigError
from fastlog.perf._sizes import total_bytes
from fastlog.perf.payloads import POOL_BYTES, Cycle, lines_of, random_payloads


def dealt(cycle: Cycle, count: int, most: int) -> list[bytes]:
    """So many messages, taken at most ``most`` at a time."""
    found: list[bytes] = []
    while len(found) < count:
        part = cycle.take(min(most, count - len(found)))
        assert part.size == sum(map(len, part.payloads))
        assert [payload for batch in part.batches for payload in batch] == part.payloads
        found += part.payloads
    return found


def test_random_payloads_are_those_of_their_seed() -> None:
    assert random_payloads(200, seed=7) == random_payloads(200, seed=7) != random_payloads(200, seed=8)
    assert {len(payload) for payload in random_payloads(200)} == {200}
    assert random_payloads(0)[0] == b""


def test_sizes_vary_from_one_to_the_size() -> None:
    sizes = {len(payload) for payload in random_payloads(20, vary=True)}
    assert sizes == set(range(1, 21))


@pytest.mark.parametrize("size", [1, 200, 1_000_000])
def test_the_pool_is_bounded(size: int) -> None:
    found = random_payloads(size)
    assert 1 <= len(found) <= 10_000 and sum(map(len, found)) <= POOL_BYTES


def test_one_payload_may_be_larger_than_the_pool() -> None:
    assert [len(payload) for payload in random_payloads(POOL_BYTES + 1)] == [POOL_BYTES + 1]


@pytest.mark.parametrize("most", [1, 7, 333, 10**9])
@pytest.mark.parametrize(("lines", "batch"), [(10, 50), (7, 3), (5000, 50), (1, 4), (2500, 2000)])
def test_lines_come_in_order_over_and_over(lines: int, batch: int, most: int) -> None:
    """However they are taken, message n is line n modulo their number."""
    payloads = [b"%d" % number for number in range(lines)]
    count = min(3 * lines * batch, 6000)
    assert dealt(Cycle(payloads, batch), count, most) == [payloads[number % lines] for number in range(count)]


@pytest.mark.parametrize(("lines", "batch"), [(10, 50), (7, 3), (9973, 50), (10_000, 1), (3, 20_000)])
def test_whole_parts_have_whole_batches(lines: int, batch: int) -> None:
    """A cycle that does not end with a batch is repeated until it does."""
    cycle = Cycle([b"x"] * lines, batch)
    for _ in range(200):
        assert {len(one) for one in cycle.take(10**9).batches} == {batch}


def test_threads_begin_at_different_places() -> None:
    payloads = [b"%d" % number for number in range(10_000)]
    first = [Cycle(payloads, 50, place=number / 4).take(50).payloads[0] for number in range(4)]
    assert first == [b"0", b"2000", b"5000", b"7000"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [(b"a\nb\n", [b"a", b"b"]), (b"a\nb", [b"a", b"b"]), (b"\n\nx\n", [b"", b"", b"x"]), (b"a\r\n", [b"a\r"])],
)
def test_lines_of_a_file(tmp_path: Path, data: bytes, lines: list[bytes]) -> None:
    path = tmp_path / "lines"
    path.write_bytes(data)
    assert lines_of(path) == (lines, False)


def test_of_a_large_file_the_first_whole_lines_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"aaa\nbbb\nccc\n")
    assert lines_of(path, 10) == ([b"aaa", b"bbb"], True)
    assert lines_of(path, 12) == ([b"aaa", b"bbb", b"ccc"], False)
    with pytest.raises(ConfigError, match="no whole line"):
        lines_of(path, 3)


def test_a_file_without_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(ConfigError, match="no whole line"):
        lines_of(path)


def test_bytes_are_counted() -> None:
    assert total_bytes([]) == 0
    assert total_bytes([b"", b"abc", bytes(1000)]) == 1003
    assert total_bytes(type("Batch", (list,), {})([b"abc"])) == 3
    with pytest.raises(TypeError):
        total_bytes([b"a", "b"])  # type: ignore[list-item]
