"""A mirror's place in the group of the target: joining, what is shared, and what is no share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastlog.client import kafka_fields
from fastlog.client.addresses import Address
from fastlog.client.coordinator import CoordinatorError
from fastlog.client.group_requests import Joined
from fastlog.errors import ProtocolError
from fastlog.kafka_codes import Code
from fastlog.mirror.records.place import GroupPlace, PlaceLostError, Share

JOIN, SYNC = 11, 14


class Told(GroupPlace):
    """Is answered as it was told; ``asked`` has the keys of the requests and the members that they came from."""

    def __init__(self, *answers: Any) -> None:
        super().__init__([Address("127.0.0.1", 1)], "g", session_ms=1000, timeout=1.0)
        self.answers = list(answers)
        self.asked: list[tuple[int, str]] = []
        self.bodies: list[bytes] = []

    def _posted(self, request: kafka_fields.Request, parse: Callable[..., Any]) -> Any:
        self.asked.append((request.key, self._who.member))
        self.bodies.append(request.body)
        return self.answers.pop(0)


def joined(code: int = 0, member: str = "m", leader: str = "other", members: tuple[str, ...] = ()) -> Joined:
    return Joined(code, 3, "share", leader, member, dict.fromkeys(members, b""))


def test_a_member_gets_an_id_first_and_the_leader_shares_out() -> None:
    place = Told(joined(Code.MEMBER_ID_REQUIRED), joined(leader="m", members=("z", "m", "a")), (0, b"1/3"))
    assert place.join() == Share(1, 3)
    assert place.asked == [(JOIN, ""), (JOIN, "m"), (SYNC, "m")]
    body = place.bodies[-1]
    assert [body.index(b"0/3") > body.index(b"a"), b"1/3" in body, b"2/3" in body] == [True] * 3


def test_an_id_that_the_coordinator_knows_no_more_is_given_up() -> None:
    """Also where it stands in the answer: a broker that was started anew has forgotten it for good."""
    place = Told(joined(Code.MEMBER_ID_REQUIRED), joined(Code.UNKNOWN_MEMBER_ID), joined(Code.MEMBER_ID_REQUIRED, "n"))
    place.answers += [joined(member="n"), (0, b"0/1")]
    assert place.join() == Share(0, 1)
    assert [member for _, member in place.asked] == ["", "m", "", "n", "n"]


def test_a_group_that_goes_on_meanwhile_is_joined_again() -> None:
    place = Told(
        joined(), (Code.REBALANCE_IN_PROGRESS, b""), joined(), (Code.ILLEGAL_GENERATION, b""), joined(), (0, b"0/2")
    )
    assert place.join() == Share(0, 2)
    assert len(place.asked) == 6


@pytest.mark.parametrize(
    ("code", "again"),
    [
        (Code.REBALANCE_IN_PROGRESS, "m"),
        (Code.ILLEGAL_GENERATION, "m"),
        (Code.UNKNOWN_MEMBER_ID, ""),
        (Code.FENCED_INSTANCE_ID, ""),
    ],
)
def test_who_joins_again_is_the_same_member_unless_it_is_none_any_more(
    monkeypatch: pytest.MonkeyPatch, code: int, again: str
) -> None:
    """As another one it would have the group wait for the one before until its session ends."""
    place = Told(joined(), (0, b"0/1"), joined(), (0, b"0/1"))
    assert place.join() == Share(0, 1)
    monkeypatch.setattr(place._member, "ask", lambda *_: code)
    with pytest.raises(PlaceLostError):
        place.beat()
    assert place.join() == Share(0, 1)
    assert place.asked[2] == (JOIN, again)


def test_one_that_is_interrupted_gets_none() -> None:
    assert Told(None).join() is None
    assert Told(joined(), None).join() is None


@pytest.mark.parametrize(
    ("answers", "kind", "words"),
    [
        ((joined(Code.INCONSISTENT_GROUP_PROTOCOL),), CoordinatorError, "has members that are no mirrors"),
        ((joined(Code.GROUP_MAX_SIZE_REACHED),), CoordinatorError, "the group is full"),
        ((joined(Code.FENCED_INSTANCE_ID),), PlaceLostError, "taken this member's place"),
        ((joined(Code.UNKNOWN_MEMBER_ID),), PlaceLostError, "none of them"),
        ((joined(), (Code.UNKNOWN_MEMBER_ID, b"")), PlaceLostError, "none of them"),
        ((joined(), (0, b"1/1")), ProtocolError, "no share of a mirror"),
        ((joined(), (0, b"1")), ProtocolError, "no share of a mirror"),
        ((joined(), (0, b"x/2")), ProtocolError, "no share of a mirror"),
        ((joined(), (0, b"")), ProtocolError, "no share of a mirror"),
    ],
)
def test_what_keeps_a_mirror_out(answers: tuple[Any, ...], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        Told(*answers).join()


def test_each_partition_is_one_members() -> None:
    shares = [Share(number, 3) for number in range(3)]
    places = [(topic, number) for topic in ("a", "b", "logs") for number in range(6)]
    for place in places:
        assert sum(share.has(place) for share in shares) == 1
    for share in shares:
        assert sum(share.has(place) for place in places) == 6
    assert all(Share(0, 1).has(place) for place in places)
