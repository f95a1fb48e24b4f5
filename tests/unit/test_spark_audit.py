"""What the audit makes of events and messages: the windows of both, their states at the limits, and the exit code.
Over rows that are dictionaries, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from fastlog.errors import ConfigError
from fastlog.spark.jobs import audit, command
from fastlog.spark.jobs.audit import EXTRA, MISSING, OK, OPEN, UNREPORTED, AuditSink
from fastlog.spark.jobs.streams import TableSink
from fastlog.spark.lake import Lake
from tests.harness import made_up_frames
from tests.harness.made_up_frames import Frame, Row, moment
from tests.harness.timing import PATIENCE

WINDOW_MS = 10_000


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_frames.use(monkeypatch)


def sent(seconds: float, n: int, topic: str = "t", producer: str = "p", seq: int = 0) -> Row:
    """An event, as ``sent_of`` gives it."""
    event = {"producer_id": producer, "seq": seq, "n": n}
    return {"topic": topic, "window_start": moment(seconds), "window_ms": WINDOW_MS, "event": event}


def message(seconds: float | None, topic: str = "t", identity: bytes | None = None) -> Row:
    at = None if seconds is None else moment(seconds)
    return {"topic": topic, "timestamp": at, "deduplicationId": identity}


def counted(rows: list[Row]) -> Any:
    frame: Any = Frame(rows, ["topic", "timestamp", "deduplicationId"])
    return audit.counted_rows(frame, "timestamp", WINDOW_MS)


def compared(events: list[Row], *stages: list[Row], topics: tuple[str, ...] = ("t", "u")) -> Any:
    told: Any = Frame(events, [*sent(0, 1)])
    names = ["arrived", "loaded"][: len(stages)]
    both = audit.together(told, dict(zip(names, map(counted, stages), strict=True)), topics)
    return audit.compared(both, names, WINDOW_MS)


def states(frame: Any) -> dict[tuple[str, float], str]:
    return {(row["topic"], (row["window_start"] - moment(0)).total_seconds()): row["state"] for row in frame.rows}


def test_a_message_is_counted_in_the_window_that_has_its_time() -> None:
    """From its first millisecond to before that of the next one, also before 1970."""
    rows = [message(at) for at in (0, 9.999, 10, -0.001, -10, -10.001, None)]
    assert [(row["window_start"] - moment(0)).total_seconds() for row in counted(rows).rows] == [
        0, 0, 10, -10, -10, -20,
    ]  # fmt: skip


@pytest.mark.parametrize(("arrived", "state"), [(4, MISSING), (5, OK), (6, EXTRA)])
def test_a_window_is_as_the_numbers_are(arrived: int, state: str) -> None:
    """An event that came twice counts once; of two producers both count."""
    events = [sent(0, 2), sent(0, 2), sent(0, 2, producer="q"), sent(0, 1, seq=1), sent(0, 9, topic="other")]
    (row,) = compared(events, [message(1)] * arrived).rows
    assert (row["sent"], row["arrived"], row["events"], row["state"]) == (5, arrived, 3, state)


def test_a_window_of_which_nobody_told() -> None:
    """And one from which nothing came, and one that was told of with nothing in it."""
    found = compared([sent(10, 3), sent(20, 0)], [message(1), message(1, "u"), message(21)])
    assert states(found) == {
        ("t", 0): UNREPORTED, ("u", 0): UNREPORTED, ("t", 10): MISSING, ("t", 20): EXTRA,
    }  # fmt: skip
    assert found.columns == ["topic", "window_start", "events", "sent", "arrived", "state"]


@pytest.mark.parametrize(
    ("arrived", "loaded", "state"),
    [(2, 2, OK), (2, 1, MISSING), (2, 3, EXTRA), (1, 2, MISSING), (3, 1, EXTRA), (3, 2, EXTRA), (1, 3, MISSING)],
)
def test_the_first_stage_that_differs_says_the_state(arrived: int, loaded: int, state: str) -> None:
    (row,) = compared([sent(0, 2)], [message(1)] * arrived, [message(1)] * loaded).rows
    assert (row["arrived"], row["loaded"], row["state"]) == (arrived, loaded, state)


@pytest.mark.parametrize("newest", [29.999, 30, 30.001])
def test_windows_that_may_still_grow(newest: float) -> None:
    """Those that begin less than the delay and a window before the newest; what is missing there is known already."""
    windows: Any = Frame(
        {
            "topic": "t",
            "window_start": moment(start),
            "sent": 2,
            "arrived": count,
            "state": MISSING if count < 2 else OK,
        }
        for start, count in ((0, 2), (15, 1), (15.001, 3), (20, 2), (newest, 1))
    )
    found: Any = audit.still_open(windows, 5.0, WINDOW_MS)
    limit = newest - 15
    expected = [
        state if start <= limit else (OPEN if count >= 2 else MISSING)
        for start, count, state in ((0, 2, OK), (15, 1, MISSING), (15.001, 3, OK), (20, 2, OK), (newest, 1, MISSING))
    ]
    assert [row["state"] for row in found.rows] == expected
    nothing: Any = Frame([], ["window_start", "sent", "arrived", "state"])
    assert audit.still_open(nothing, 5.0, WINDOW_MS).rows == []  # type: ignore[attr-defined]


def test_a_window_exactly_as_old_as_may_be_is_closed() -> None:
    for start, state in ((15, OK), (15.001, OPEN)):
        rows = [{"window_start": moment(at), "sent": 2, "arrived": 2, "state": OK} for at in (start, 30)]
        windows: Any = Frame(rows)
        assert audit.still_open(windows, 5.0, WINDOW_MS).rows[0]["state"] == state  # type: ignore[attr-defined]


def test_messages_with_one_id_are_one() -> None:
    """In each topic; those without an id are as many as there are, as all are where nobody asked for ids."""
    rows = [message(1, "t", b"a"), message(2, "t", b"a"), message(3, "u", b"a"), message(4), message(4)]
    frame: Any = Frame(rows)
    found: Any = audit.without_copies(frame)
    assert [row["timestamp"] for row in found.rows] == [moment(1), moment(3), moment(4), moment(4)]
    plain: Any = Frame([{"topic": "t"}] * 2)
    assert audit.without_copies(plain) is plain


def test_windows_have_one_length() -> None:
    frame: Any = Frame([sent(0, 1), sent(10, 1)])
    assert audit._window_ms(frame) == WINDOW_MS
    with pytest.raises(ConfigError, match=r"windows of several lengths: \[5, 10000\] ms"):
        audit._window_ms(Frame([sent(0, 1), {**sent(0, 1), "window_ms": 5}]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="holds no monitoring event"):
        audit._window_ms(Frame([], ["window_ms"]))  # type: ignore[arg-type]


# -- runs --------------------------------------------------------------------------------------------------------------


def test_states_are_counted_also_of_a_batch_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who started this run is to know of them; rows are held no longer than their batch."""
    brought: list[tuple[Any, int]] = []
    events: list[str] = []

    class Kept(Frame):
        def persist(self) -> Any:
            events.append("kept")
            return self

        def unpersist(self) -> Any:
            events.append("let go")
            return self

    monkeypatch.setattr(TableSink, "__call__", lambda self, frame, batch: brought.append((frame, batch)))
    sink = AuditSink(Lake(tmp_path / "table"), False)
    assert (sink.has_gap, sink._moments) == (False, ("window_start",))
    first: Any = Kept([{"state": OK}, {"state": OK}, {"state": EXTRA}])
    sink(first, 0)
    assert (sink.states, sink.has_gap) == ({OK: 2, EXTRA: 1}, False)
    sink(Kept([{"state": OK}, {"state": MISSING}]), 1)  # type: ignore[arg-type]
    assert (sink.states, sink.has_gap) == ({OK: 3, EXTRA: 1, MISSING: 1}, True)
    assert (brought[0], brought[1][1]) == ((first, 0), 1)
    assert events == ["kept", "let go"] * 2

    def fail(self: Any, frame: Any, batch: int) -> None:
        raise OSError("no")

    monkeypatch.setattr(TableSink, "__call__", fail)
    with pytest.raises(OSError, match="no"):
        sink(first, 2)
    assert events == ["kept", "let go"] * 3


class Spark:
    """Topics with these rows, by their names."""

    def __init__(self, **topics: list[Row]) -> None:
        self.read = self
        self._topics = topics
        self._asked = ""
        self.session = self
        self.given: list[dict[str, str]] = []

    def __enter__(self) -> Spark:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def format(self, name: str) -> Spark:
        assert name == "fastlog"
        return self

    def options(self, **given: str) -> Spark:
        self.given.append(given)
        return self

    def load(self) -> Frame:
        return Frame(self._topics[self.given[-1]["subscribe"]])


def run(*given: object) -> Any:
    done = CliRunner().invoke(
        audit.audit_command, ["--brokers", "h:1", "--topic", "t", "--events", "e", *map(str, given)],
        standalone_mode=False,
    )  # fmt: skip
    if done.exception is not None:
        raise done.exception
    return done


@pytest.mark.parametrize(("arrived", "code"), [(1, 1), (2, 0), (3, 0)])
def test_all_that_there_is(monkeypatch: pytest.MonkeyPatch, arrived: int, code: int) -> None:
    """A line for each window that differs, in their order, and the exit code says whether something is missing."""
    rows = [message(1)] * arrived + [message(100)]
    spark = Spark(e=[sent(0, 2), sent(100, 1), sent(5000, 1)], t=[*rows, message(5000)])
    monkeypatch.setattr(command, "LazySpark", lambda *_: spark)
    monkeypatch.setattr(audit, "sent_of", lambda frame: frame)
    done = run("--late", "60s")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    summary = lines.pop()
    assert done.return_value == code
    state = {1: MISSING, 2: OK, 3: EXTRA}[arrived]
    assert [(line["window_start"], line["state"], line["arrived"]) for line in lines] == (
        [] if arrived == 2 else [("1970-01-01T00:00:00+00:00", state, arrived)]
    )
    expected = {OK: 1, OPEN: 1}
    expected[state] = expected.get(state, 0) + 1
    assert (summary["job"], summary["windows"], summary["window_ms"]) == ("audit", expected, WINDOW_MS)
    assert 0 <= summary["seconds"] < PATIENCE
    assert [given["subscribe"] for given in spark.given] == ["e", "t"]


@pytest.mark.parametrize(
    ("given", "said"),
    [(("--every", "5"), "--every needs a --table"),
     (("--table", "t", "--loaded", "l"), "--loaded is for a comparison without --table")],
)  # fmt: skip
def test_an_audit_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "l").mkdir()
    with pytest.raises(click.UsageError, match=said):
        run(*given)


@pytest.mark.parametrize(
    ("code", "missing", "expected"), [(0, False, 0), (0, True, 1), (143, True, 143), (130, False, 130)]
)
def test_a_stream_says_that_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, missing: bool, expected: int
) -> None:
    """Unless a signal has ended it."""

    def fill(name: str, job: Any, conf: Any, sink: AuditSink, make: Any) -> tuple[int, dict[str, Any]]:
        sink.states = {MISSING: 1} if missing else {OK: 1}
        return code, {"job": name}

    monkeypatch.setattr(audit, "fill_table", fill)
    done = run("--table", tmp_path / "t")
    assert done.return_value == expected
    assert json.loads(done.stdout) == {"job": "audit", "windows": {MISSING: 1} if missing else {OK: 1}}


def test_what_is_read_of_a_table_in_a_store(tmp_path: Path) -> None:
    """Each column that is asked for is fetched."""
    names = ("value", "timestamp", "topic", "deduplicationId")
    Lake(tmp_path / "t").create(pa.schema([(name, pa.string()) for name in names]), [])
    place: Any = SimpleNamespace(directory=tmp_path / "t")
    assert audit._read_columns(Lake(tmp_path / "t").location) == ["timestamp", "topic", "deduplicationId"]
    assert place.directory.exists()


def test_windows_are_as_long_as_those_that_were_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their table has what comes next beside them, which goes by that length."""
    kept: list[AuditSink] = []

    def fill(name: str, job: Any, conf: Any, sink: AuditSink, make: Any) -> tuple[int, dict[str, Any]]:
        make(MagicMock())
        kept.append(sink)
        return 0, {"job": name}

    monkeypatch.setattr(audit, "fill_table", fill)
    monkeypatch.setattr(audit, "_window_ms", lambda frame: 12_345)
    for name in ("sent_of", "counted_rows", "together", "compared"):
        monkeypatch.setattr(audit, name, MagicMock())
    run("--table", tmp_path / "t")
    assert kept[0].span_ms == 12_345
