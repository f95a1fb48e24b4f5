"""What a session has read is read again only when its watch has fired; what nobody looks at any more wakes nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastlog.coordination.watched import Watched
from fastlog.errors import CoordinationError
from tests.harness.fake_session import FakeSession, FakeZooKeeper


class Looking:
    """Something watched in a tree of its own."""

    def __init__(self) -> None:
        self.tree = FakeZooKeeper()
        self.session = self.tree.open()
        self.notes = 0
        self.watched = Watched(self.session, self.note)

    def note(self) -> None:
        self.notes += 1

    def calls(self) -> list[tuple[str, str]]:
        """Those since the last look."""
        found = [(name, path) for _, name, path in self.tree.calls]
        self.tree.calls.clear()
        return found


@pytest.fixture
def looking() -> Looking:
    return Looking()


def test_each_thing_is_read_once_until_it_changes(looking: Looking) -> None:
    tree, watched = looking.tree, looking.watched
    tree.write("/a", b"1")
    for _ in range(3):
        assert watched.get("/a").data == b"1"  # type: ignore[union-attr]
        assert watched.children("/a") == []
        assert watched.get("/none") is None
    assert looking.calls() == [("get", "/a"), ("children", "/a"), ("get", "/none")]
    assert not watched.is_stale and looking.notes == 0
    first = watched.children("/a")
    assert watched.children("/a") is first
    tree.write("/a/b", b"")
    assert watched.is_stale and looking.notes == 1
    assert watched.children("/a") == ["b"] and watched.children("/a") is not first
    assert looking.calls() == [("children", "/a")]
    assert not watched.is_stale
    tree.write("/none", b"2")
    assert watched.is_stale and looking.notes == 2
    assert watched.get("/none").data == b"2"  # type: ignore[union-attr]
    assert not watched.is_stale
    assert looking.calls() == [("get", "/none")]


def test_a_change_while_it_is_read_is_read_again(looking: Looking) -> None:
    """The watch may fire before the value is kept; what came with it is old then."""
    looking.tree.write("/a", b"1")

    def change(path: str) -> None:
        looking.tree.after_read = lambda path: None
        looking.tree.write("/a", b"2")

    looking.tree.after_read = change
    assert looking.watched.get("/a").data == b"1"  # type: ignore[union-attr]
    assert looking.watched.is_stale and looking.notes == 1
    assert looking.watched.get("/a").data == b"2"  # type: ignore[union-attr]
    assert not looking.watched.is_stale


@pytest.mark.parametrize("kind", ["get", "children"])
def test_an_error_of_reading_keeps_nothing(looking: Looking, kind: str) -> None:
    """What failed is asked again, also where something older was known; the change is not forgotten."""
    tree, read = looking.tree, getattr(looking.watched, kind)
    tree.write("/a", b"1")
    tree.refused.add("/a")
    with pytest.raises(CoordinationError):
        read("/a")
    tree.refused.clear()
    assert read("/a") is not None
    tree.write("/a", b"2")
    tree.write("/a/b", b"2")
    tree.refused.add("/a")
    for _ in range(2):
        with pytest.raises(CoordinationError):
            read("/a")
        assert looking.watched.is_stale
    tree.refused.clear()
    read("/a")
    assert not looking.watched.is_stale


def test_what_nobody_looks_at_wakes_nobody(looking: Looking) -> None:
    """Forgotten by name, or not looked at for a whole round; the rest of the round's things stays."""
    tree, watched = looking.tree, looking.watched
    for path in ("/a", "/b", "/c"):
        tree.write(path, b"1")
        watched.get(path)
    watched.forget("/a")
    watched.forget("/not there")
    tree.write("/a", b"2")
    assert looking.notes == 0 and not watched.is_stale
    watched.end_round()  # both were looked at in it
    watched.get("/b")
    looking.calls()
    watched.end_round()  # this time only one was
    tree.write("/c", b"2")
    assert looking.notes == 0 and not watched.is_stale
    tree.write("/b", b"2")
    assert looking.notes == 1 and watched.is_stale
    assert watched.get("/c").data == b"2"  # type: ignore[union-attr]
    assert looking.calls() == [("get", "/c")]
    watched.get("/a")
    watched.end_round()
    assert looking.calls() == [("get", "/a")]
    watched.end_round()
    assert not watched.is_stale, "what was stale and not looked at again is gone too"


def test_forgetting_a_value_leaves_what_is_below(looking: Looking) -> None:
    looking.tree.write("/a", b"1")
    looking.watched.get("/a")
    looking.watched.children("/a")
    looking.watched.forget("/a")
    looking.tree.write("/a/b", b"1")
    assert looking.notes == 1 and looking.watched.is_stale


CHANGES: dict[str, Callable[[FakeZooKeeper], None]] = {
    "another value": lambda tree: tree.write("/a", b"2"),
    "the same value written again": lambda tree: tree.write("/a", b"1"),
    "another owner": lambda tree: tree.write("/a", b"1", 7),
    "a node made": lambda tree: tree.write("/none", b""),
    "a node gone": lambda tree: tree.remove("/a/x"),
    "a child": lambda tree: tree.write("/a/z", b""),
}


@pytest.mark.parametrize("change", [*CHANGES, "nothing", "another order"])
def test_an_audit_finds_what_no_watch_has_told(looking: Looking, change: str) -> None:
    """Once: what it has found is then read as after a watch. Its own reading leaves no watch behind."""
    tree, watched = looking.tree, looking.watched
    tree.write("/a", b"1")
    for name in ("x", "y"):
        tree.write(f"/a/{name}", b"")

    def look() -> None:
        watched.get("/a"), watched.get("/none"), watched.children("/a")

    look()
    tree._watches.clear()  # lost
    if change in CHANGES:
        CHANGES[change](tree)
    elif change == "another order":
        names = tree.names
        tree.names = lambda path: names(path)[::-1]  # type: ignore[method-assign]
    looking.calls()
    assert watched.audit() is (change in CHANGES)
    assert watched.is_stale is (change in CHANGES)
    assert len(looking.calls()) == 3 and tree.watch_count() == 0 and looking.notes == 0
    assert watched.audit() is False, "what is known to be stale is not news"
    look()
    assert not watched.is_stale
    assert watched.get("/a").data == tree.shown()["/a"]  # type: ignore[union-attr]


def test_an_audit_that_a_watch_overtakes_is_no_missed_one(looking: Looking) -> None:
    looking.tree.write("/a", b"1")
    looking.watched.get("/a")

    def change(session: FakeSession, name: str, path: str) -> None:
        looking.tree.before_call = lambda session, name, path: None
        looking.tree.write("/a", b"2")

    looking.tree.before_call = change
    assert looking.watched.audit() is False
    assert looking.watched.is_stale and looking.notes == 1
