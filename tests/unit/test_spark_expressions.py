"""What a user's expressions are asked for and what is said of those that fail: the columns that are needed, reasons,
the ranges that a frame reads. Spark is made up."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from fastlog.spark.jobs import expressions
from fastlog.spark.jobs.expressions import REASON, Expressions, source_frame
from fastlog.spark.offsets import OffsetRange
from tests.harness import made_up_frames
from tests.harness.made_up_frames import Frame
from tests.harness.spark import partition_of

TRIED = "__fastlog_"
KEPT = ("broker", "offset", "timestamp", "value")


# -- reasons -----------------------------------------------------------------------------------------------------------


def refused_rows(count: int, **failed: list[bool]) -> pa.Table:
    """Messages as ``parted`` gives them; of each expression in which of them it fails."""
    columns: dict[str, Any] = {
        "topic": ["t"] * count, "broker": pa.array([0] * count, pa.int32()), "offset": list(range(count)),
        "value": [b"%d" % number for number in range(count)],
        "timestamp": pa.array([1_000 + number for number in range(count)], pa.timestamp("us", tz="UTC")),
        f"{TRIED}timestamp": pa.array([number for number in range(count)], pa.timestamp("us", tz="UTC")),
    }  # fmt: skip
    kind = pa.struct([("v", pa.int32())])
    for name, fails in failed.items():
        columns[f"{TRIED}{name}"] = pa.array([None if bad else {"v": 1} for bad in fails], kind)
    return pa.table(columns)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int, bool]]:
    """The expression, the offset, the time in us, and whether it is one of a time, of each question to Spark."""
    found: list[tuple[str, int, int, bool]] = []

    def why(session: Any, message: pa.Table, text: str, *, is_time: bool) -> str:
        assert message.num_rows == 1
        assert not any(name.startswith(TRIED) for name in message.column_names)
        at = message["timestamp"].cast(pa.int64())[0].as_py()
        found.append((text, message["offset"][0].as_py(), at, is_time))
        return f"no {text}"

    monkeypatch.setattr(expressions, "_why", why)
    return found


def test_each_message_says_which_expressions_fail_and_why(asked: list[tuple[str, int, int, bool]]) -> None:
    """Those that do not are not asked. The message is as the source has it, also where its time is computed."""
    made = Expressions("x", {"n": "a", "m": "b"}, KEPT)
    rows = refused_rows(3, time=[True, False, False], **{"0": [True, True, False], "1": [False, True, True]})
    session: Any = None
    found = made.refused(session, rows)
    assert found[REASON].to_pylist() == ["timestamp: no x; n: no a", "n: no a; m: no b", "m: no b"]
    assert found.column_names == ["topic", *KEPT, REASON]
    assert found["offset"].to_pylist() == [0, 1, 2]
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [0, 1, 2]
    # Columns see the time that --time gives; that one sees the source's.
    assert asked == [
        ("x", 0, 0, True), ("a", 0, 1000, False), ("a", 1, 1001, False), ("b", 1, 1001, False), ("b", 2, 1002, False),
    ]  # fmt: skip


def test_columns_see_the_time_of_the_source_where_none_is_given(asked: list[tuple[str, int, int, bool]]) -> None:
    session: Any = None
    Expressions(None, {"n": "a"}, KEPT).refused(session, refused_rows(1, **{"0": [True]}))
    assert asked == [("a", 0, 0, False)]


def test_so_many_messages_are_explained(
    asked: list[tuple[str, int, int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a moment; of the others it is said that they fail as well."""
    monkeypatch.setattr(expressions, "_MOST_EXPLAINED", 2)
    session: Any = None
    found = Expressions(None, {"n": "a"}, KEPT).refused(session, refused_rows(4, **{"0": [True] * 4}))
    assert found[REASON].to_pylist() == ["n: no a", "n: no a"] + ["n: fails as in others of this batch"] * 2
    assert len(asked) == 2
    assert expressions.Expressions(None, {"n": "a"}, KEPT).refused(session, refused_rows(0, **{"0": []})).num_rows == 0


# -- which columns -----------------------------------------------------------------------------------------------------


def test_what_is_computed_comes_behind_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time that is computed is the one that the columns see."""
    made_up_frames.use(monkeypatch)
    frame: Any = Frame([{"offset": 5, "timestamp": 1, "value": 2, "key": 3}])
    with_time = Expressions("value", {"n": "timestamp", "m": "key"}, KEPT)
    assert with_time.computed == ("timestamp", "n", "m")
    found: Any = with_time.of_offsets(frame)
    assert found.rows == [{"offset": 5, "timestamp": 2, "n": 2, "m": 3}]
    assert list(found.rows[0]) == ["offset", "timestamp", "n", "m"]
    without = Expressions(None, {"n": "timestamp"}, KEPT)
    assert without.computed == ("n",)
    again: Any = without.of_offsets(frame)
    assert again.rows == [{"offset": 5, "n": 1}]


class Sequence:
    """Of Scala's."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def length(self) -> int:
        return len(self._items)

    def apply(self, number: int) -> Any:
        return self._items[number]

    def nonEmpty(self) -> bool:
        return bool(self._items)

    def toSeq(self) -> Sequence:
        return self


class Item:
    """A column of a plan: its id, and those that it is made of."""

    def __init__(self, name: str, number: int, *of: Item) -> None:
        self._name, self._number, self._of = name, number, of

    def name(self) -> str:
        return self._name

    def exprId(self) -> Item:
        return self

    def id(self) -> int:
        return self._number

    def references(self) -> Sequence:
        return Sequence(list(self._of))


class Step:
    """A node of a plan: a projection of ``items`` over what is below it, or something else."""

    def __init__(self, name: str, items: list[Item], *below: Step) -> None:
        self._name, self._items, self._below = name, items, below

    def nodeName(self) -> str:
        return self._name

    def output(self) -> Sequence:
        return Sequence(self._items)

    projectList = output

    def child(self) -> Step:
        return self._below[0]

    def children(self) -> Sequence:
        return Sequence(list(self._below))


def needed(monkeypatch: pytest.MonkeyPatch, plan: Step) -> tuple[str, ...] | None:
    class Java:
        def queryExecution(self) -> Java:
            return self

        def analyzed(self) -> Step:
            return plan

    class Planned:
        _jdf = Java()

    monkeypatch.setattr(Expressions, "of_offsets", lambda self, frame: Planned())
    nothing: Any = None
    return Expressions(None, {}, KEPT).needed(nothing)


def test_the_columns_that_expressions_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through what is made of what; those that nobody uses in the end are not needed, nor is the offset."""
    offset, value, key, time = (Item(name, at) for at, name in enumerate(("offset", "value", "key", "timestamp")))
    source = Step("RelationV2", [offset, value, key, time])
    computed = Item("timestamp", 10, value)
    unused = Item("x", 11, key)
    inner = Step("Project", [offset, key, computed, unused], source)
    used = Item("n", 12, computed)
    whole = Step("Project", [Item("offset", 0, offset), used], inner)
    # An attribute that is passed on refers to itself.
    for item in (offset, value, key, time):
        item._of = (item,)
    assert needed(monkeypatch, whole) == ("value",)
    assert needed(monkeypatch, Step("Project", [offset, key, time], source)) == ("key", "timestamp")
    assert needed(monkeypatch, Step("Project", [offset], source)) == ()


def test_what_does_not_give_one_row_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    offset = Item("offset", 0)
    source = Step("RelationV2", [offset])
    for name in ("Generate", "Window"):
        assert needed(monkeypatch, Step("Project", [offset], Step(name, [offset], source))) is None
        assert needed(monkeypatch, Step(name, [offset], source)) is None


# -- frames ------------------------------------------------------------------------------------------------------------


class Session:
    """Notes the options of a source, and has settings."""

    def __init__(self, **settings: str) -> None:
        self.read = self.conf = self
        self.settings: dict[str, str] = dict(settings)
        self.given: dict[str, str] = {}

    def format(self, name: str) -> Session:
        assert name == "fastlog"
        return self

    def options(self, **given: str) -> Session:
        self.given = given
        return self

    def load(self) -> str:
        return "frame"

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        del self.settings[name]


def test_a_frame_reads_ranges_and_nothing_else() -> None:
    """Of the partitions that are named, whatever the topics were called before; a loss there is an error."""
    session: Any = Session()
    source = {"Subscribe": "t", "subscribePattern": "x", "brokers": "h:1", "failOnDataLoss": "false"}
    ranges = {
        partition_of("t/0-1"): OffsetRange(5, 9), partition_of("t/0-0"): OffsetRange(0, 7),
        partition_of("u/2-0"): OffsetRange(1, 2),
    }  # fmt: skip
    assert source_frame(session, source, ranges) == "frame"
    given = dict(session.given)
    assert json.loads(given.pop("assign")) == {"t": ["0-0", "0-1"], "u": ["2-0"]}
    assert json.loads(given.pop("startingOffsets")) == {"t": {"0-0": 0, "0-1": 5}, "u": {"2-0": 1}}
    assert json.loads(given.pop("endingOffsets")) == {"t": {"0-0": 7, "0-1": 9}, "u": {"2-0": 2}}
    assert given == {"brokers": "h:1", "failOnDataLoss": "true"}
    source_frame(session, source, {})
    assert session.given == source


@pytest.mark.parametrize("before", [None, "true"])
def test_a_setting_is_put_back(before: str | None) -> None:
    """Also where what it was for has failed."""
    session: Any = Session(**({} if before is None else {"a": before}))
    settings = dict(session.settings)
    with pytest.raises(OSError, match="no"), expressions._set(session, "a", "false"):
        assert session.settings["a"] == "false"
        raise OSError("no")
    assert session.settings == settings
