"""Reading a log's files: each place and size around limits and ends of segments, files that move, what stays open."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.consumer import local as local_module
from fastlog.consumer import reader as reader_module
from fastlog.consumer.local import LocalLog, NotLocalError, NotThereYetError, SegmentsChangedError
from fastlog.consumer.offered import FetchOffer
from fastlog.consumer.reader import Reader
from fastlog.errors import FastlogError, LogError, ProtocolError
from fastlog.segment_files import KAFKA_0_7, segment_name
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness.consumers import consumer_of
from tests.harness.fake_broker import FakeBroker

MAPPED = pytest.mark.parametrize("mapped", [False, True], ids=["read", "map"])
SEGMENTS = [b"abcdefghij", b"klmno", b"pqrstuvwxyz"]
LOG = b"".join(SEGMENTS)
BASES = (0, 10, 15)


def write(directory: Path, segments: list[bytes], bases: tuple[int, ...]) -> Path:
    """The directory of partition 0 of topic ``t`` with these segments."""
    directory.mkdir(parents=True, exist_ok=True)
    for base, data in zip(bases, segments, strict=True):
        (directory / segment_name(base)).write_bytes(data)
    return directory


def told(directory: Path, limit: int, bases: tuple[int, ...] = BASES) -> rs.LocalReadAnswer:
    """What a broker says of it."""
    return rs.LocalReadAnswer(0, 0, str(directory), KAFKA_0_7, 0, limit, bases)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write(tmp_path / "t-0", SEGMENTS, BASES)


def open_files(below: Path) -> list[str]:
    """The segments there that this process has open, descriptors and maps."""
    links = (Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    found = [os.readlink(link) for link in links if os.path.lexists(link)]  # noqa: PTH115
    maps = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted(Path(name).name for name in {*found, *maps} if name.startswith(f"{below}/") and ".kafka" in name)


@pytest.fixture
def log(request: pytest.FixtureRequest, mapped: bool) -> Iterator[LocalLog]:
    made = LocalLog("t", 0, mapped=mapped)
    yield made
    made.close()


@MAPPED
def test_each_place_and_size(log: LocalLog, directory: Path, mapped: bool) -> None:
    """As much as is asked for, up to the limit and to the end of the segment; nothing at the limit or behind it."""
    ends = (10, 15, 26)
    for limit in range(len(LOG) + 1):
        fresh = LocalLog("t", 0, mapped=mapped)
        fresh.update(told(directory, limit))
        for offset in [*range(limit + 2), 3, 12, 0]:  # forwards, then back
            for size in (1, 2, 9, 10, 11, 100):
                end = min(offset + size, limit, next(end for end in ends if offset < end or end == 26))
                expected = LOG[offset:end] if offset < limit else b""
                assert bytes(fresh.piece(offset, size)) == expected, (limit, offset, size)
        fresh.close()


@MAPPED
def test_the_newest_segment_is_read_as_it_grows_and_rolls(log: LocalLog, directory: Path, mapped: bool) -> None:
    """The limit only grows, whoever says what; what the list does not name is asked for."""
    log.update(told(directory, 5, (0,)))
    assert bytes(log.piece(0, 100)) == b"abcde"
    log.update(told(directory, 3, (0,)))
    assert log.limit == 5 and bytes(log.piece(0, 100)) == b"abcde"
    log.limit = 12
    assert bytes(log.piece(8, 100)) == b"ij"
    with pytest.raises(SegmentsChangedError):
        log.piece(10, 1)
    log.update(told(directory, 12, (0, 10)))
    assert bytes(log.piece(10, 100)) == b"kl"
    newest = directory / segment_name(15)
    log.update(told(directory, 26))
    assert bytes(log.piece(15, 100)) == SEGMENTS[2]
    newest.write_bytes(SEGMENTS[2] + b"0123")
    log.limit = 30
    assert bytes(log.piece(24, 100)) == b"yz0123"
    assert bytes(log.piece(29, 1)) == b"3"
    assert bytes(log.piece(30, 1)) == b""


def replace(directory: Path, segments: list[bytes], bases: tuple[int, ...] = BASES) -> None:
    """The topic is deleted, and another one made under its name."""
    directory.rename(directory.with_name("gone"))
    write(directory, segments, bases)


@MAPPED
def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(log: LocalLog, directory: Path) -> None:
    """Also where their files look alike: the next segment has the same name, the old one holds more than was shown."""
    anew = [data.upper() for data in SEGMENTS]
    assert log.update(told(directory, 12)) is True
    assert bytes(log.piece(0, 100)) == SEGMENTS[0]
    replace(directory, anew)
    with pytest.raises(SegmentsChangedError):
        log.piece(10, 100)
    assert log.update(told(directory, 11)) is True
    assert bytes(log.piece(10, 100)) == b"K"
    assert log.update(told(directory, 26)) is False
    assert bytes(log.piece(10, 100)) == b"KLMNO"


@MAPPED
def test_an_open_file_of_a_deleted_topic_proves_nothing(log: LocalLog, directory: Path) -> None:
    """Its bytes may be those that the broker sends of the next one, and go on otherwise."""
    log.update(told(directory, 18))
    assert bytes(log.piece(15, 100)) == b"pqr"
    replace(directory, [*SEGMENTS[:2], b"pqrstu-"])
    log.limit = 22
    with pytest.raises(SegmentsChangedError):
        log.same_bytes(18, b"stu")
    assert log.update(told(directory, 22)) is True
    assert log.same_bytes(18, b"stu")
    assert bytes(log.piece(18, 100)) == b"stu-"


@MAPPED
def test_a_topic_that_was_made_anew_is_shown_as_far_as_it_goes(log: LocalLog, directory: Path) -> None:
    """The limit of the former one says nothing about what is flushed in this one."""
    log.update(told(directory, 26))
    assert bytes(log.piece(24, 100)) == b"yz"
    replace(directory, SEGMENTS)
    log.update(told(directory, 3, (0,)))
    assert log.limit == 3
    assert bytes(log.piece(0, 100)) == b"abc"


@MAPPED
def test_what_lies_before_the_first_segment_is_asked_for(log: LocalLog, directory: Path) -> None:
    log.update(told(directory, 26, (10, 15)))
    for offset in (0, 9):
        with pytest.raises(SegmentsChangedError):
            log.piece(offset, 1)
    assert bytes(log.piece(10, 1)) == b"k"


@MAPPED
def test_a_file_that_is_too_short_for_its_place_is_an_error(log: LocalLog, directory: Path) -> None:
    """Where a next segment says how long it was; the newest one may just have been rolled."""
    log.update(told(directory, 26))
    os.truncate(directory / segment_name(0), 7)
    assert bytes(log.piece(4, 100)) == b"efg"
    with pytest.raises(LogError, match=r"up to offset 26 path=.* position=7") as caught:
        log.piece(7, 1)
    assert (caught.value.path, caught.value.position) == (str(directory / segment_name(0)), 7)
    os.truncate(directory / segment_name(15), 4)
    assert bytes(log.piece(17, 100)) == b"rs"
    with pytest.raises(SegmentsChangedError):
        log.piece(19, 1)
    assert log.too_short(19).position == 4 and log.too_short(3).position == 0
    assert log.where(18) == {"path": str(directory / segment_name(15)), "position": 3}


@MAPPED
def test_bytes_are_compared_over_segments_whatever_the_limit(log: LocalLog, directory: Path) -> None:
    log.update(told(directory, 2))
    for offset in range(26):
        for end in range(offset + 1, 27):
            assert log.same_bytes(offset, LOG[offset:end]), (offset, end)
        wrong = bytearray(LOG[offset:])
        wrong[-1] ^= 1
        assert not log.same_bytes(offset, wrong)
        assert not log.same_bytes(offset, b"!" + LOG[offset + 1 :])
    with pytest.raises(SegmentsChangedError):
        log.same_bytes(20, LOG[20:] + b"more")
    os.truncate(directory / segment_name(10), 3)
    assert not log.same_bytes(8, LOG[8:16])
    assert log.same_bytes(8, LOG[8:13])
    assert log.limit == 2


@MAPPED
def test_a_directory_that_moved_is_read_on_where_it_is_told(log: LocalLog, directory: Path, tmp_path: Path) -> None:
    """What is open stays readable under its new name; the next segment is looked for where the broker says."""
    log.update(told(directory, 26))
    assert bytes(log.piece(0, 3)) == b"abc"
    moved = tmp_path / "new" / "t-0"
    moved.parent.mkdir()
    directory.rename(moved)
    assert bytes(log.piece(3, 100)) == b"defghij"
    with pytest.raises((SegmentsChangedError, NotLocalError)):
        log.piece(10, 1)
    log.update(told(moved, 26))
    assert bytes(log.piece(10, 100)) == b"klmno"
    assert log.where(10)["path"] == str(moved / segment_name(10))
    assert bytes(log.piece(4, 2)) == b"ef"
    assert open_files(tmp_path) == [segment_name(0)]


@MAPPED
def test_another_directory_closes_the_file_of_the_first(log: LocalLog, directory: Path, tmp_path: Path) -> None:
    """The same one does not, however often it is told."""
    other = write(tmp_path / "copy" / "t-0", [data.upper() for data in SEGMENTS], BASES)
    log.update(told(directory, 26))
    log.piece(0, 3)
    os.rename(directory / segment_name(0), directory / "away")  # noqa: PTH104
    log.update(told(directory, 26))
    assert bytes(log.piece(0, 3)) == b"abc"
    log.update(told(other, 26))
    assert open_files(directory) == []
    assert bytes(log.piece(0, 3)) == b"ABC"


@MAPPED
def test_what_cannot_be_the_files_is_refused(log: LocalLog, directory: Path) -> None:
    good = told(directory, 26)
    with pytest.raises(NotThereYetError):
        log.update(good._replace(directory="", format=""))
    for change, reason in (
        ({"directory": ""}, "no directory of t-0"),
        ({"format": ""}, "format ''"),
        ({"format": "kafka-0.8"}, "format 'kafka-0.8'"),
        ({"directory": "t-0"}, "no directory"),
        ({"directory": str(directory.parent / "t-1")}, "no directory"),
        ({"directory": f"{directory.parent}\0/t-0"}, "no directory"),
        ({"base_offsets": (0, 15, 10)}, "out of order"),
        ({"base_offsets": (0, 10, 10)}, "out of order"),
    ):
        with pytest.raises(NotLocalError, match=reason):
            log.update(good._replace(**change))  # type: ignore[arg-type]
        assert log.limit == 0
    log.update(good)
    assert bytes(log.piece(0, 1)) == b"a"


SPOILS: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.rename(path.with_name("real")) and path.symlink_to(path.with_name("real")),
    "a pipe": lambda path: path.unlink() or os.mkfifo(path),
    "a directory": lambda path: path.unlink() or path.mkdir(),
}


@MAPPED
@pytest.mark.parametrize("kind", list(SPOILS))
def test_what_is_no_file_is_not_read_and_not_left_open(log: LocalLog, directory: Path, kind: str) -> None:
    SPOILS[kind](directory / segment_name(10))
    log.update(told(directory, 26))
    for _ in range(3):
        with pytest.raises(NotLocalError):
            log.piece(10, 1)
        assert open_files(directory) == []
    assert bytes(log.piece(0, 1)) == b"a"


@MAPPED
def test_a_segment_under_a_name_of_another_width_and_one_that_is_gone(log: LocalLog, directory: Path) -> None:
    (directory / segment_name(10)).rename(directory / "010.kafka")
    log.update(told(directory, 26))
    assert bytes(log.piece(11, 1)) == b"l"
    assert log.where(11)["path"].endswith("010.kafka")
    (directory / segment_name(15)).unlink()
    with pytest.raises(SegmentsChangedError):
        log.piece(15, 1)
    assert open_files(directory) == []


# -- maps ------------------------------------------------------------------------------------------------------------


def test_a_file_is_mapped_again_only_where_it_has_grown(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = mmap.mmap

    def counting(descriptor: int, size: int, **options: Any) -> mmap.mmap:
        made.append(size)
        return real(descriptor, size, **options)

    monkeypatch.setattr(local_module.mmap, "mmap", counting)
    log = LocalLog("t", 0, mapped=True)
    log.update(told(directory, 26))
    for offset, size in ((0, 3), (3, 7), (0, 10), (9, 1)):
        assert bytes(log.piece(offset, size)) == LOG[offset : offset + size]
    assert made == [10]
    first = log.piece(15, 11)
    assert made == [10, 11]
    (directory / segment_name(15)).write_bytes(SEGMENTS[2] + b"0")
    log.limit = 27
    assert bytes(log.piece(25, 1)) == b"z" and made == [10, 11]
    assert bytes(log.piece(25, 2)) == b"z0" and made == [10, 11, 12]
    log.close()
    assert bytes(first) == SEGMENTS[2], "what was handed out stays"
    assert open_files(directory) == [segment_name(15)]
    del first
    assert open_files(directory) == []


def test_pages_are_read_before_they_are_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly those of the piece, from the start of its first page; a kernel that cannot do it is read from instead."""
    data = os.urandom(3 * mmap.PAGESIZE)
    directory = write(tmp_path / "t-0", [data], (0,))
    calls: list[tuple[int, int, int]] = []
    failure: list[int] = []

    class Watched(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:  # type: ignore[override]
            calls.append((option, start, length))
            if failure:
                raise OSError(failure[0], os.strerror(failure[0]))
            super().madvise(option, start, length)

    monkeypatch.setattr(local_module.mmap, "mmap", Watched)
    page = mmap.PAGESIZE
    log = LocalLog("t", 0, mapped=True)
    log.update(told(directory, len(data), (0,)))
    for offset, size, start in ((0, 10, 0), (page - 1, 2, 0), (page, 1, page), (page + 5, page, page)):
        assert bytes(log.piece(offset, size)) == data[offset : offset + size]
        assert calls.pop() == (22, start, offset + size - start)
    failure.append(errno.EIO)
    with pytest.raises(LogError, match="Input/output error"):
        log.piece(0, 1)
    assert log.mapped
    for number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        failure[:] = [number]
        log.mapped = True
        assert bytes(log.piece(5, 9)) == data[5:14]
        assert not log.mapped
    log.close()


def test_memory_is_taken_again_once_nobody_looks(directory: Path) -> None:
    log = LocalLog("t", 0, mapped=False)
    log.update(told(directory, 26))
    first = log.piece(0, 10)
    second = log.piece(0, 10)
    assert bytes(first) == bytes(second) == SEGMENTS[0] and first.obj is not second.obj
    kept = first.obj
    del first
    assert log.piece(2, 10).obj is kept
    pieces = [log.piece(0, 10) for _ in range(5)]
    assert len(log._buffers._kept) >= 5
    log.rest()
    assert len(log._buffers._kept) == 2 and len({id(piece.obj) for piece in pieces}) == 5
    log.close()


# -- with a broker ---------------------------------------------------------------------------------------------------

MESSAGES = [[b"%d-%d" % (segment, number) for number in range(10)] for segment in range(3)]
SETS = [pack(messages) for messages in MESSAGES]
STARTS = (0, len(SETS[0]), len(SETS[0]) * 2)


class Telling:
    """A broker that tells where its files are, as the test says."""

    def __init__(self, path: Path) -> None:
        self.path = write(path / "t-0", SETS, STARTS)
        self.told = str(self.path)
        self.number_off = 0
        self.asked = 0
        self.fake = FakeBroker(hook=self.hook)
        self.fake.logs["t", 0] = b"".join(SETS)

    def hook(self, request: rq.Request) -> bytes | None:
        """Answer what a fake broker does not know."""
        if not isinstance(request, rq.LocalReadRequest):
            return None
        self.asked += 1
        size = len(self.fake.logs["t", 0])
        answer = rs.LocalReadAnswer(
            request.correlation_id + self.number_off, 0, self.told, KAFKA_0_7, 0, size, tuple(STARTS)
        )
        return rs.encode_local_read(answer)


@pytest.fixture
def telling(tmp_path: Path) -> Iterator[Telling]:
    made = Telling(tmp_path)
    with made.fake:
        yield made


@pytest.mark.parametrize("local", ["read", "map"])
@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
def test_a_directory_that_moves_under_a_reader_costs_no_message(
    telling: Telling, tmp_path: Path, local: str, is_told: bool
) -> None:
    """It goes on in the new place, when the broker names it, else through the socket."""
    moved = tmp_path / "new" / "t-0"
    moved.parent.mkdir()
    with consumer_of(telling.fake, local=local) as consumer:
        running = consumer.messages("t", 0, 0, fetch_bytes=30)
        found = [next(running).payload for _ in range(3)]
        assert consumer.source_of("t", 0)[0] == local
        telling.path.rename(moved)
        if is_told:
            telling.told = str(moved)
        found += [message.payload for message in running]
        assert found == [payload for messages in MESSAGES for payload in messages]
        assert consumer.source_of("t", 0)[0] == (local if is_told else "socket")
        for segment, start in enumerate(STARTS):
            assert consumer.fetch("t", 0, start, 1000).payloads()[:10] == MESSAGES[segment]
            assert consumer.source_of("t", 0)[0] == (local if is_told else "socket")
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("local", ["read", "map"])
def test_where_the_files_are_is_not_taken_from_an_answer_to_somebody_else(telling: Telling, local: str) -> None:
    telling.number_off = 1
    with consumer_of(telling.fake, local=local) as consumer:
        for call in (
            lambda: consumer.fetch("t", 0, 0),
            lambda: next(consumer.messages("t", 0, 0)),
        ):
            with pytest.raises(ProtocolError, match="says it is for"):
                call()
        telling.number_off = 0
        assert consumer.fetch("t", 0, 0).payloads() == MESSAGES[0]
        assert consumer.source_of("t", 0) == (local, "")


@pytest.mark.parametrize("local", ["read", "map"])
def test_a_reader_of_files_goes_on_after_each_error(telling: Telling, local: str) -> None:
    """Bytes that cannot be read, damage, a file that is too short: mended, the same reader goes on."""
    middle = telling.path / segment_name(STARTS[1])
    whole = middle.read_bytes()
    with consumer_of(telling.fake, local=local) as consumer:
        assert consumer.fetch("t", 0, STARTS[1]).payloads() == MESSAGES[1]
        for spoilt in (b"", whole[:5], whole[:20], whole[:11] + b"\xff" * 8 + whole[19:]):
            middle.write_bytes(spoilt)
            with pytest.raises(FastlogError):
                consumer.fetch("t", 0, STARTS[1] + 13).payloads()
            middle.write_bytes(whole)
            assert consumer.fetch("t", 0, STARTS[1] + 13).payloads() == MESSAGES[1][1:]
            assert consumer.source_of("t", 0)[0] == local


def test_files_that_are_refused_are_closed(directory: Path) -> None:
    """By whoever reads on through the socket, not when nobody knows them any more."""
    local = LocalLog("t", 0, mapped=True)
    local.update(told(directory, len(LOG)))
    channel: Any = SimpleNamespace(owned=set())
    reader = Reader(channel, FetchOffer(True, True, True, 0, 1000), "t", 0, 0, 100, ahead=False, local=local)
    assert local.piece(0, 4) is not None and open_files(directory)
    assert channel.owned == {local}
    reader._refuse_local("for a reason")
    assert (reader.local, reader.local_refused, channel.owned) == (None, "for a reason", set())
    assert open_files(directory) == []


@pytest.mark.parametrize(
    ("held", "wait_ms", "pauses"), [(True, 500, False), (True, 0, True), (False, 500, True), (False, 0, True)]
)
def test_only_where_the_broker_does_not_wait_the_reader_pauses(
    held: bool, wait_ms: int, pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, found = [0.0], []

    def pass_by(seconds: float) -> None:
        found.append(seconds)
        now[0] += seconds

    def nothing(left: float) -> memoryview:
        now[0] += 0.25
        return memoryview(b"")

    monkeypatch.setattr(reader_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(reader_module, "pause", pass_by)
    channel: Any = SimpleNamespace(check=lambda: None)
    reader = Reader(channel, FetchOffer(True, held, False, wait_ms, 1000), "t", 0, 0, 100, ahead=False, local=None)
    monkeypatch.setattr(reader, "_obtain", nothing)
    assert reader.next(1.0) is None
    assert bool(found) is pauses
