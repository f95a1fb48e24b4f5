"""Where messages begin: every answer against a plain list, and what was walked once is not walked again."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import segment_files
from fastlog.log.formats import kafka07, log_format
from fastlog.workers.kafka07 import boundaries
from fastlog.workers.kafka07.boundaries import KnownBoundaries, Walk
from tests.harness import raw_format

LOG = ("t", 0)
KAFKA = log_format("kafka-0.7")


class Written:
    """A log of messages up to 400 bytes in segments, and its boundaries."""

    def __init__(self, directory: Path, messages: int, segments: int) -> None:
        source = random.Random(messages)
        made = [raw_format.entry(source.randbytes(source.randrange(400)), number & 1) for number in range(messages)]
        self.directory = directory
        self.all = [0, *itertools.accumulate(map(len, made))]
        self.end = self.all[-1]
        self.bases = []
        self.files = {}
        for first in range(0, messages, -(-messages // segments)):
            self.bases.append(self.all[first])
            data = b"".join(made[first : first + -(-messages // segments)])
            self.files[self.bases[-1]] = directory / segment_files.segment_name(self.bases[-1])
            self.files[self.bases[-1]].write_bytes(data)

    def asked(self, known: KnownBoundaries, start: int, end: int, step: int, limit: int = 1000) -> list[int]:
        """The answer of a new walk."""
        return list(Walk(LOG, self.end, self.files, KAFKA, known).boundaries(start, end, step, limit))

    def check(self, found: list[int], start: int, end: int, step: int) -> None:
        """It is what the protocol promises, and goes to the end."""
        places = [place for place in self.all if start <= place <= end]
        assert set(found) <= set(places)
        assert found[:1] == places[:1]
        assert all(after - before >= step for before, after in itertools.pairwise(found[:-1]))
        for before, after in itertools.pairwise(found):
            assert after <= min(
                end, self.all[min(bisect_left(self.all, before + step + step // 16), len(self.all) - 1)]
            )
        if places:
            left = end - found[-1]
            assert left < step + step // 16 + 500


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes marks close to each other; holds how many bytes each walk through a file has passed."""
    monkeypatch.setattr(boundaries, "MARK_BYTES", 2000)
    monkeypatch.setattr(boundaries, "_NEAR_BYTES", 5000)
    passed = []
    original = segment_files.first_boundary

    def noted(path: Path, start: int, target: int, end: int, most_bytes: int) -> int:
        reached = original(path, start, target, end, most_bytes)
        passed.append(reached - start)
        return reached

    monkeypatch.setattr(kafka07, "first_boundary", noted)
    return passed


@pytest.mark.slow
def test_any_walks_after_any_walks(tmp_path: Path, far: list[int]) -> None:
    """Whatever was asked before, an answer holds boundaries alone, in the distance asked for, up to the end."""
    written = Written(tmp_path, 500, 3)

    @settings(deadline=None, max_examples=30)
    @given(
        st.lists(
            st.tuples(st.integers(0, written.end), st.integers(0, written.end), st.integers(200, 40_000)),
            min_size=1,
            max_size=8,
        )
    )
    def check(asked: list[tuple[int, int, int]]) -> None:
        known = KnownBoundaries()
        for first, second, step in asked:
            start, end = sorted((first, second))
            written.check(written.asked(known, start, end, step, 10**6), start, end, step)

    check()


def test_what_was_walked_is_not_walked_again(tmp_path: Path, far: list[int]) -> None:
    """The same question costs no byte; one in other steps a little for each point; one inside begins near its start."""
    written = Written(tmp_path, 5000, 1)
    known = KnownBoundaries()
    first = written.asked(known, 0, written.end, 8000)
    assert sum(far) > written.end - 10_000
    far.clear()
    assert written.asked(known, 0, written.end, 8000) == first
    assert sum(far) == 0
    other = written.asked(known, 0, written.end, 50_000)
    assert sum(far) <= len(other) * 3000
    far.clear()
    start = written.all[4000]
    assert written.asked(known, start, written.end, 10**9) == [start, written.end]
    assert sum(far) <= 3000


@pytest.mark.parametrize("beyond", [0, 3000])
def test_from_a_known_boundary_on_a_walk_is_sure_again(tmp_path: Path, far: list[int], beyond: int) -> None:
    """One that began where a client said keeps boundaries behind the first that it meets or passes."""
    written = Written(tmp_path, 5000, 1)
    known = KnownBoundaries()
    start, mark = written.all[1000], written.all[2000]
    known.add(LOG, mark, 1)
    written.asked(known, start, written.end, mark - start + beyond, 3)
    far.clear()
    inside = written.all[2900]
    assert written.asked(known, inside, written.end, 10**9) == [inside, written.end]
    assert 0 < sum(far) <= 3000


def test_a_walk_begins_with_the_segment_where_no_known_boundary_is_nearer(tmp_path: Path, far: list[int]) -> None:
    """And where the next one begins nothing has to be walked."""
    written = Written(tmp_path, 600, 3)
    known = KnownBoundaries()
    known.add(LOG, written.all[1], 1)
    assert written.asked(known, 0, written.bases[1], 10**9) == [0, written.bases[1]]
    assert far == []
    start = written.all[405]
    first = written.asked(known, start, written.end, 8000)
    assert sum(far) > 0
    far.clear()
    assert written.asked(known, start, written.end, 8000) == first
    assert sum(far) < 3000


def test_one_request_walks_so_far_and_names_so_many(
    tmp_path: Path, far: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is named all the same, where it is known to be a boundary."""
    monkeypatch.setattr(boundaries, "MAX_WALK_BYTES", 20_000)
    written = Written(tmp_path, 500, 1)
    found = written.asked(KnownBoundaries(), 0, written.end, 8000)
    assert len(found) == 4 and found[-1] == written.end
    assert 20_000 <= sum(far) < 30_000
    *others, reached = written.asked(KnownBoundaries(), 0, written.end - 1, 8000)
    assert others == found[:-1] and reached in written.all and 20_000 <= reached < 30_000
    for limit in range(4):
        assert written.asked(KnownBoundaries(), 0, written.end, 8000, limit) == found[:limit]


def test_a_known_boundary_behind_the_end_is_none(tmp_path: Path, far: list[int]) -> None:
    written = Written(tmp_path, 500, 1)
    known = KnownBoundaries()
    known.add(LOG, written.all[50], 1)
    end = written.all[49]
    assert written.asked(known, 0, end, end - 1) == [0, end]


def test_a_place_that_a_client_names_is_no_known_boundary(tmp_path: Path, far: list[int]) -> None:
    """A payload may hold what looks like a message: who begins there gets no boundary into what others are told."""
    inner = b"".join(raw_format.entry(bytes(1000)) for _ in range(20))
    data = raw_format.entry(bytes(9000)) + raw_format.entry(inner) + raw_format.entry(b"end")
    path = tmp_path / segment_files.segment_name(0)
    path.write_bytes(data)
    known = KnownBoundaries()
    inside = len(data) - len(raw_format.entry(b"end")) - len(inner)
    Walk(LOG, len(data), {0: path}, KAFKA, known).boundaries(inside, len(data), 1, 1000)
    outer = [0, 9010, len(data) - 13, len(data)]
    assert list(Walk(LOG, len(data), {0: path}, KAFKA, known).boundaries(0, len(data), 1, 1000)) == outer
    assert all(known.below(LOG, place) in (None, *outer) for place in range(0, len(data), 100))


def test_known_boundaries_are_bounded() -> None:
    """Beyond the most, those of the log that was asked for longest ago go."""
    known = KnownBoundaries(most=10)
    for number in range(6):
        known.add(("a", 0), number * 2**20, 100)
        known.add(("a", 0), number * 2**20 + 5, 100)
    known.add(("b", 0), 0, 100)
    assert known.below(("a", 0), 2**40) == 5 * 2**20
    for number in range(5):
        known.add(("b", 0), number * 2**20, 100)
    assert known.below(("a", 0), 2**40) is None
    assert known.below(("b", 0), 3 * 2**20 + 1) == 3 * 2**20
    assert known.below(("c", 0), 5) is None


def test_what_was_asked_for_lately_is_kept() -> None:
    known = KnownBoundaries(most=4)
    for number in range(2):
        for topic in "ab":
            known.add((topic, 0), number * 2**20, 100)
    assert known.below(("a", 0), 2**40) == 2**20
    known.add(("c", 0), 0, 100)
    assert [known.below((topic, 0), 2**40) for topic in "abc"] == [2**20, None, 0]
    known.add(("d", 0), 0, 100)
    assert [known.below((topic, 0), 2**40) for topic in "acd"] == [2**20, 0, 0], "there was room again"
