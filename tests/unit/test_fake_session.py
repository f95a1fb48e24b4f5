"""The fake that takes ZooKeeper's place behaves as it does; ``integration/test_zookeeper.py`` has the same cases."""

from __future__ import annotations

import pytest

from fastlog.coordination.session import session_name
from fastlog.errors import CoordinationError
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.session_cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_holds_for_every_session(case: Case) -> None:
    tree = FakeZooKeeper()
    case(tree.open, tree.expire)


def test_a_silent_fake_refuses_and_forgets_nothing() -> None:
    tree = FakeZooKeeper()
    session = tree.open()
    session.create("/mine", ephemeral=True)
    tree.is_silent = True
    for call in (lambda: session.get("/mine"), tree.open):
        with pytest.raises(CoordinationError):
            call()
    tree.is_silent = False
    assert session.get("/mine") is not None


def test_a_session_is_named_as_zookeeper_names_it() -> None:
    """Its id is a number of 64 bits with a sign, and half of them are negative."""
    assert session_name(0x1000_2A3B) == "0x10002a3b"
    assert session_name(-0x5D00_0000_0000_0000) == "0xa300000000000000"
