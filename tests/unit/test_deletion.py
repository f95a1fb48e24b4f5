"""A topic that is deleted goes as a whole, whatever fails and whoever is killed, and what was answered stays gone."""

from __future__ import annotations

import errno
import logging
import select
from pathlib import Path

import pytest

from fastlog.log import deletion
from fastlog.log._append import Appender, append_bytes, end_life
from fastlog.log._arena import STATE_OFFLINE
from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.deletion import (
    find_markers,
    find_put_away,
    is_deletions_own,
    is_marked,
    leave_marker,
    marker_name,
    put_away,
    put_away_wanted,
    remove_put_away,
)
from fastlog.log.discovery import scan_log_dirs
from fastlog.log.files import FileOps
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.log.slots import SlotSpec
from fastlog.segment_files import split_directory_name
from fastlog.wire import requests, responses
from fastlog.workers import deletions
from fastlog.workers.authorization import ANONYMOUS, Client
from fastlog.workers.kafka07.answers import Answers
from tests.harness import logs, raw_format
from tests.harness.deleted_site import COUNT, NEW, SEGMENT, SLOTS, Site, held
from tests.harness.shared_log import LIMITS
from tests.harness.stopped import stopped_at

pytestmark = pytest.mark.usefixtures("no_faults")


@pytest.fixture
def site(memory: Path) -> Site:
    return Site(memory)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a disk refused is tried again without a pause."""
    monkeypatch.setattr(deletions, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(deletions, "REMOVE_RETRY_SECONDS", 0.0)


# -- all goes well -----------------------------------------------------------------------------------------------------


def test_a_marked_topic_goes(site: Site) -> None:
    site.mark()
    site.run()
    site.expect_gone()


def test_who_asks_is_answered_once_it_is_gone(site: Site) -> None:
    """Each of two, whoever of them asked first; and asks anew for what is made anew."""
    answers = Answers(site.config, site.arena, site.manager(), [("h", 1)])

    def ask(connection: int) -> bytes | bool | None:
        client = Client(ANONYMOUS, "127.0.0.1", connection=connection)
        return answers.answer(requests.encode_delete_topic(7, "t")[4:], client)

    gone = responses.encode_delete_topic(responses.DeleteTopicAnswer(7, 0, COUNT))
    site.look()
    assert [ask(1), ask(2)] == [False, False]
    assert [is_marked("t", [place]) for place in site.roots] == [True, True]
    keeper, waited = site.keeper(), 0
    while keeper.turn() is not None:
        if is_marked("t", site.roots) or site.arena.leaving():
            assert ask(1) is False
            waited += 1
        site.look()
    assert waited
    site.mark()  # of a third one, which is for what comes after
    assert ask(1) is False
    while keeper.turn() is not None:
        site.look()
    assert [ask(1), ask(2)] == [gone, gone]
    site.expect_gone()
    assert ask(1) is False


def test_split_points_of_a_topic_that_was_made_anew(site: Site) -> None:
    """Where messages began in its former life says nothing of the next one, though it has the same slot."""
    manager = site.manager()
    answers = Answers(site.config, site.arena, manager, [("h", 1)])

    def points(message: bytes, start: int) -> list[int]:
        view = manager.slot("new", 0)
        assert view is not None
        for _ in range(4):
            assert append_bytes(site.appender, view.index, message, 1)[0] == 0
        assert flush_now(make_partition_flusher(site.arena, 4, view.directory, 0), view.index) == 0
        frame = requests.encode_cut_points(7, "new", 0, start, 4 * len(message), 1, 9)
        answer = answers.answer(frame[4:], Client(ANONYMOUS, "127.0.0.1"))
        assert isinstance(answer, bytes)
        return list(responses.decode_cut_points(answer[4:]).offsets)

    slot = manager.create_partition("new", 0)
    assert points(raw_format.entry(bytes(99_990)), 150_000) == [200_000, 300_000, 400_000]
    site.mark("new")
    site.run()
    assert manager.create_partition("new", 0) == slot
    assert points(raw_format.entry(bytes(69_990)), 205_000) == [210_000, 280_000]


def test_a_topic_that_is_marked_in_part_goes_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked hears of the failure, and does not meet the half of it later."""

    def leave_one(topic: str, directories: list[Path], files: FileOps) -> None:
        leave_marker(topic, directories[:1], files)
        raise OSError(errno.EIO, "not the other one")

    monkeypatch.setattr("fastlog.workers.kafka07.answers.leave_marker", leave_one)
    keeper = site.keeper()
    while keeper.turn() is not None:
        site.look()
    answers = Answers(site.config, site.arena, site.manager(), [("h", 1)])
    answer = answers.answer(requests.encode_delete_topic(7, "t")[4:], Client(ANONYMOUS, "127.0.0.1"))
    assert answer == responses.encode_own_error(7, 103)
    while keeper.turn() is not None:
        site.look()
    site.expect_gone()


def test_two_go_at_once(site: Site) -> None:
    site.mark("t")
    site.mark("u")
    site.run()
    assert site.names() == ["t-0-0"]
    assert site.arena.room == SLOTS - 1


def test_one_goes_after_the_other_by_one_keeper(site: Site) -> None:
    keeper = site.keeper()
    for topic in ("t", "u"):
        site.mark(topic)
        while keeper.turn() is not None:
            site.look()
    assert site.names() == ["t-0-0"]


def test_nothing_is_renamed_while_somebody_looks(site: Site) -> None:
    """The names of directories stay, and the marker; others are served."""
    site.look()
    site.mark()
    keeper = site.keeper()
    before = site.names()
    for _ in range(3):
        assert keeper.turn() == deletions.TURN_SECONDS
    assert site.names() == before
    assert site.manager().topics() == ["t-0", "u"]
    with pytest.raises(CreationBusyError):
        site.manager().create_partition("t", 0)
    site.look()
    assert keeper.turn() is None
    site.expect_gone()


def test_it_waits_for_who_creates(site: Site) -> None:
    """Whoever has the creation lock may be making another partition of the topic, which then goes, too."""
    keeper = site.keeper()
    manager = LogManager(site.config, site.arena, logs.QuickFiles())
    with stopped_at("create.segment", lambda: manager.create_partition("t", COUNT, count=COUNT + 1)) as creator:
        site.mark()
        assert keeper.turn() == deletions.TURN_SECONDS
        assert len(site.arena.views()) == COUNT + 3
        creator.go_on()
    while keeper.turn() is not None:
        site.look()
    site.expect_gone()


def test_it_waits_for_who_appends(site: Site) -> None:
    """The others of its partitions are gone meanwhile, and no directory has another name."""
    keeper = site.keeper()
    slot = site.manager().slot("t", 1)
    assert slot is not None
    writer = Appender(site.arena, SegmentFiles(site.arena, 4), FIRST_PROCESSOR)
    before = site.names()
    with stopped_at("append.after_lock", lambda: append_bytes(writer, slot.index, NEW, 1)) as late:
        site.mark()
        for _ in range(3):
            assert keeper.turn() == deletions.TURN_SECONDS
            site.look()
        assert [view.partition for view in site.arena.views() if view.topic == "t"] == [1]
        assert set(site.names()) - set(before) == {marker_name("t")}
        late.go_on()
    while keeper.turn() is not None:
        site.look()
    site.expect_gone()


def test_a_partition_out_of_service_goes_too(memory: Path) -> None:
    """Of what is damaged nobody wants to keep the rest when it is deleted."""
    site = Site(memory)
    assert site.arena.create_lock()
    (site.roots[0] / f"t-{COUNT}").mkdir()
    site.arena.add(
        SlotSpec(
            topic="t",
            partition=COUNT,
            directory=0,
            format=0,
            created_ms=1,
            segments=[(0, 1, 0)],
            log_end=0,
            state=STATE_OFFLINE,
            **LIMITS,  # type: ignore[arg-type]
        )
    )
    site.arena.create_unlock()
    site.mark()
    site.run()
    site.expect_gone()


def test_what_a_creation_left_half_made_goes_too(site: Site) -> None:
    """The next start would take it for a partition of a topic that was deleted."""
    (site.roots[1] / f"t-{COUNT}").mkdir()
    site.mark()
    site.run()
    site.expect_gone()


def test_a_marker_for_what_is_not_there_is_withdrawn(site: Site) -> None:
    """Two asked for one topic, and it was gone when the second one's marker stood."""
    before = site.names()
    site.mark("never")
    site.run()
    assert site.names() == before


def test_who_waits_for_a_name_is_woken_once_a_marker_is_withdrawn(site: Site) -> None:
    """It stood for a topic that was gone already: nothing else frees the name."""
    keeper = site.keeper()
    keeper.turn()
    site.mark("never")
    site.arena.wake_taken(FIRST_PROCESSOR)
    site.arena.wait_for_creation(FIRST_PROCESSOR)
    keeper.turn()
    assert not deletion.is_marked("never", site.roots)
    assert select.select([site.arena.eventfd(FIRST_PROCESSOR)], [], [], 0)[0]


def test_a_topic_that_is_being_recovered_goes_afterwards(site: Site) -> None:
    """Its files are looked at meanwhile, under their names."""
    manager = site.manager()
    view = manager.slot("t", 0)
    assert view is not None
    assert end_life(site.appender, view.index, True)
    site.mark()
    keeper = site.keeper()
    for _ in range(5):
        keeper.turn()
        site.look()
    assert {f"t-{number}" for number in range(COUNT)} <= set(site.names())
    assert site.arena.create_lock()
    site.arena.revive(view.index)
    site.arena.create_unlock()
    site.run()
    site.expect_gone()


def test_the_former_place_of_a_partition_is_free_once_nobody_looks_there(site: Site) -> None:
    """It lives elsewhere; a processor that has not seen that may still read from it."""
    view = site.manager().slot("u", 0)
    assert view is not None
    site.look()
    assert end_life(site.appender, view.index)
    keeper = site.keeper()
    for _ in range(5):
        keeper.turn()
    assert [row.index for row in site.arena.leaving()] == [view.index]
    site.look()
    keeper.turn()
    assert site.arena.leaving() == []
    assert "u-0" in site.names()


def test_new_names_are_durable_before_a_marker_goes_whoever_gave_them(site: Site) -> None:
    """A keeper was killed between the renames and their sync: the next one finds nothing to rename."""
    calls: list[tuple[str, Path | None]] = []

    class Noting(logs.QuickFiles):
        def _begin(self, kind: str, path: Path | None) -> bool:
            calls.append((kind, path))
            return False

    leave_marker("t", site.roots, logs.QuickFiles())
    for root in site.roots:
        for found in sorted(root.glob("t-[0-9]")):
            put_away(found, logs.QuickFiles())
    deletion.put_away_topics([marker_name("t")], site.roots, Noting())
    assert [path for kind, path in calls if kind == "fsync_dir"] == site.roots


def test_a_marker_that_nobody_reported_counts(site: Site) -> None:
    """Whoever left it was killed before it could say so: the next keeper finds it."""
    leave_marker("t", site.roots[:1], logs.QuickFiles())
    site.run()
    site.expect_gone()


@pytest.mark.parametrize("topic", ["x" * 250, "ä" * 125, "日" * 83 + "x"])
def test_a_long_name_has_room_for_the_other_one(topic: str, memory: Path) -> None:
    """As a directory's name has at most 255 bytes, in whole letters."""
    path = memory / f"{topic}-0"
    path.mkdir()
    (path / SEGMENT).write_bytes(b"x")
    leave_marker(topic, [memory], FileOps())
    assert put_away_wanted([memory], FileOps()) == [topic]
    (item,) = find_put_away([memory], FileOps())
    assert is_deletions_own(item.name) and split_directory_name(item.name) is None
    assert item.name.encode("utf-8", "strict")
    assert remove_put_away(item, FileOps(), lambda: False)
    assert list(memory.iterdir()) == []


def test_the_names_of_deletions_are_nobody_elses(memory: Path) -> None:
    """The start and fsck pass them over without a line, and what only looks like them is told of."""
    (memory / "t-0").mkdir()
    put_away(memory / "t-0", FileOps())
    leave_marker("t", [memory], FileOps())
    assert scan_log_dirs([memory]) == ([], [])
    for name in ("t.0123456789abcdef0123456789abcdeg-delete", ".fastlog-deleting-0123", "t-delete"):
        (memory / name).mkdir()
    found, warnings = scan_log_dirs([memory])
    assert found == [] and len(warnings) == 3
    assert len(find_put_away([memory], FileOps())) == 1
    assert find_markers([memory], FileOps()) == {marker_name("t")}


# -- what must not be followed, and what cannot be removed -------------------------------------------------------------


def test_of_a_partition_that_is_a_link_the_link_goes(site: Site, memory: Path) -> None:
    """What it leads to lies elsewhere, and stays for a person: nobody who can make a link chooses what we remove."""
    moved = memory / "moved"
    (site.roots[0] / "t-0").rename(moved)
    (site.roots[0] / "t-0").symlink_to(moved)
    planted = memory / "planted"
    planted.mkdir()
    (planted / "precious").touch()
    (site.roots[1] / f"x.{'0' * 32}-delete").symlink_to(planted)
    site.mark()
    site.run()
    site.expect_gone()
    assert (moved / SEGMENT).read_bytes() == held("t", 0)
    assert (planted / "precious").exists()


@pytest.mark.parametrize("is_start", [False, True])
def test_a_file_with_a_partitions_name_stays(is_start: bool, site: Site) -> None:
    (site.roots[0] / f"t-{COUNT + 5}").write_bytes(b"somebody's")
    site.mark()
    if is_start:
        put_away_wanted(site.roots, FileOps())
    else:
        site.run()
    assert (site.roots[0] / f"t-{COUNT + 5}").read_bytes() == b"somebody's"


def test_what_cannot_be_removed_holds_up_nothing_else(
    site: Site, at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that somebody made in a partition is for a person to remove."""
    (site.roots[1] / "t-1" / "theirs").mkdir()
    site.mark()
    keeper = site.keeper()
    for _ in range(8):
        keeper.turn()
        site.look()
    left = [name for name in site.names() if name.endswith("-delete")]
    assert len(left) == 1 and left[0].startswith("t-1.")
    site.mark("u")
    for _ in range(8):
        keeper.turn()
        site.look()
    assert site.names() == ["t-0-0", *left]
    assert any(record.levelno == logging.ERROR and "theirs" in record.getMessage() for record in caplog.records)


def test_what_cannot_be_removed_delays_no_deletion(site: Site) -> None:
    """It is tried again later, and a marker at once."""
    (site.roots[1] / "t-1" / "theirs").mkdir()
    site.mark()
    keeper = site.keeper()
    for _ in range(3):
        pause = keeper.turn()
        site.look()
    assert pause is not None and 5 < pause <= deletions.REMOVE_RETRY_SECONDS
    site.mark("u")
    keeper.turn()
    assert "u" not in {view.topic for view in site.arena.views()}


def test_files_are_removed_for_a_while_and_the_rest_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is other work: a turn goes on where the one before ended."""
    monkeypatch.setattr(deletions, "REMOVE_SECONDS", -1.0)
    site.mark()
    keeper = site.keeper()
    pauses = [keeper.turn() for _ in range(60)]
    assert pauses.count(0.0) > COUNT
    assert pauses[-1] is None
    site.expect_gone()
