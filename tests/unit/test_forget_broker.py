"""``fastlog zookeeper forget-broker``: for one that is gone for good, and for no other."""

from __future__ import annotations

import contextlib

import pytest
from click.testing import CliRunner

from fastlog.tools import groups_access
from fastlog.tools.report import CommandError
from fastlog.tools.zookeeper_look import forget_broker_command
from fastlog.zkpaths import broker_path, holdings_path
from tests.harness.fake_session import FakeZooKeeper


def test_what_a_broker_had_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = FakeZooKeeper()
    monkeypatch.setattr(groups_access, "session_at", lambda *_: contextlib.closing(tree.open()))
    for broker in (3, 4):
        tree.write(holdings_path(broker), b'{"logs":2}')
    tree.write(broker_path(4), b"c:h:1")
    assert CliRunner().invoke(forget_broker_command, ["3"]).exit_code == 0
    assert holdings_path(3) not in tree.shown()
    for broker, said in (("3", "there is no node"), ("4", "broker 4 is registered")):
        done = CliRunner().invoke(forget_broker_command, [broker])
        assert isinstance(done.exception, CommandError) and said in str(done.exception)
    assert holdings_path(4) in tree.shown(), "one that lives writes it down again"
