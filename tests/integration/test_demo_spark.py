"""The demo of the pipeline keeps its promise on little, its checks notice what is wrong, and its page shows it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest

from scripts.demo_spark import page
from scripts.demo_spark.evidence import Commit, Verdict, Windows, judged, miscounted, share_of, windows_of
from scripts.demo_spark.kills import Hit, Hurt, Killer, Victim
from scripts.demo_spark.lines import TICK, WINDOW_MS, Sent, place_of, read_diary, value_of
from scripts.demo_spark.pipeline import DemoOptions, lines_of, run
from scripts.demo_spark.processes import Program, kill_all
from scripts.demo_text import CheckFailed, DemoFailed
from tests.harness.broker import wait_until
from tests.harness.lake import run_job
from tests.harness.timing import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = [b"one", b"two", b"three words here"]


class InThisProcess:
    """A job in the session that is there: it does its work in the end, and nobody can kill it."""

    def __init__(self, name: str, given: Sequence[str], directory: Path) -> None:
        self.name = name
        self.summary: dict[str, Any] = {}
        self._given = given

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
    def start(self) -> None: ...
    def check(self) -> None: ...

    def kill(self) -> int:
        raise AssertionError("it was never ready for that")

    def said(self, pattern: str) -> int:
        return 0

    def catch_up(self) -> None:
        self.summary = run_job(self.name, *self._given, "--no-progress")

    def stop(self) -> dict[str, Any]:
        return self.summary


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_passes(spark: SparkSession, tmp_path: Path) -> None:
    """Datacenters, mirror, store and kills as always; the jobs in the session that is there."""
    said: list[str] = []
    options = DemoOptions(seconds=3, rate=300, page=tmp_path / "page.html")
    run(options, tmp_path, said.append, InThisProcess)
    assert [line.split()[0] for line in said] == [
        "text", "started", "hurt", "sent", "latency", "counted", "page", "checked",
    ]  # fmt: skip
    (acknowledged, rows) = map(int, re.findall(r"(\d+) (?:acknowledged|rows)", said[-1].replace(",", "")))
    assert "0 lost, 0 doubled" in said[-1]
    assert rows >= acknowledged > 300
    hits = int(said[2].split()[1])
    assert hits > 0
    text = options.page.read_text()
    assert "0 lost, 0 doubled" in text and "verdict right" in text
    assert text.count("<tr>") == hits


# -- what is checked ---------------------------------------------------------------------------------------------------


def diary(*batches: tuple[int, int, bool], time_ms: int = 1000) -> list[Sent]:
    return [Sent(first, count, time_ms, 5 if told else 0) for first, count, told in batches]


def commit(*places: tuple[str, int], at_ms: int = 2000, time_ms: int = 1000) -> Commit:
    return Commit(at_ms, [value_of(*place, LINES) for place in places], [time_ms] * len(places))


def of_table(*commits: Commit, diaries: dict[str, list[Sent]] | None = None) -> Verdict:
    sent = diaries or {"dc1": diary((0, 2, True), (2, 1, False)), "dc2": diary((0, 1, True))}
    return judged(sent, LINES, commits, Windows())


def test_rows_that_are_wrong_are_noticed() -> None:
    """Too few, too many, of nobody, changed. What was not acknowledged may be there, once, or not."""
    first, second = commit(("dc1", 0), ("dc1", 1)), commit(("dc2", 0))
    right = of_table(first, second)
    assert right.is_right
    assert (right.acknowledged, right.rows) == (3, 3)
    assert str(right) == "0 lost, 0 doubled: 3 acknowledged, 3 rows"
    assert of_table(first, second, commit(("dc1", 2))).is_right
    for commits, lost, doubled, foreign in (
        ((first,), 1, 0, 0),
        ((), 3, 0, 0),
        ((first, second, second), 0, 1, 0),
        ((first, first, first, second), 0, 4, 0),
        ((first, second, commit(("dc1", 2), ("dc1", 2))), 0, 1, 0),
        ((first, second, commit(("dc1", 3))), 0, 0, 1),
        ((first, second, commit(("dc3", 0))), 0, 0, 1),
        ((first, Commit(5, [b"dc2 0 onE"], [1])), 1, 0, 1),
        ((first, Commit(5, [b"dc2 zero one", b""], [1, 1])), 1, 0, 2),
    ):
        found = of_table(*commits)
        assert (found.lost, found.doubled, found.foreign) == (lost, doubled, foreign)
        assert not found.is_right
        assert str(found).startswith(f"{lost} lost, {doubled} doubled")


def test_windows_that_differ_are_noticed() -> None:
    """Counted and late together are the rows; what was told is what was acknowledged and arrived. Ticks are of none."""
    sent = diary((0, 2, True), time_ms=WINDOW_MS) + diary((2, 1, False), time_ms=WINDOW_MS)
    commits = [commit(("dc1", 0), ("dc1", 1), time_ms=WINDOW_MS + 1), commit((TICK, 0), time_ms=10**9)]
    counts, late = [{"window_start": WINDOW_MS, "n": 1}], [{"time": WINDOW_MS + 5}]
    audit = [{"window_start": WINDOW_MS, "sent": 2, "arrived": 2, "state": "OK"}]
    right = windows_of(sent, commits, counts, late, audit)
    assert (right.acknowledged, right.rows) == ({WINDOW_MS: 2}, {WINDOW_MS: 2})
    assert (right.counted, right.late, right.states) == ({WINDOW_MS: 1}, {WINDOW_MS: 1}, {"OK": 1})
    assert miscounted(right) == []
    nothing: list[dict[str, Any]] = []
    for given in ((counts, nothing, audit), (nothing, late, audit), (counts, late, nothing), (counts, late * 2, audit)):
        assert miscounted(windows_of(sent, commits, *given)) == [WINDOW_MS]
    for wrong in ({"sent": 3}, {"arrived": 1}, {"sent": 1}):
        assert miscounted(windows_of(sent, commits, counts, late, [{**audit[0], **wrong}])) == [WINDOW_MS]
    assert miscounted(windows_of(sent, commits, counts, late, [{**audit[0], "arrived": 3}])) == []  # of no answer


def test_how_long_rows_took() -> None:
    """Not those that only end windows."""
    commits = [commit(("dc1", 0), (TICK, 0)), commit(("dc1", 1), at_ms=9000)]
    assert commits[0].latencies_ms == [1000]
    assert of_table(*commits).latency_ms == {"p50": 8000, "p99": 8000}
    assert [share_of(range(100), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 99]
    assert share_of([], 0.5) == 0


def test_rows_are_known_again_and_diaries_end_where_a_line_does(tmp_path: Path) -> None:
    assert value_of("dc1", 5, LINES) == b"dc1 5 three words here"
    assert place_of(value_of("dc1", 5, LINES)) == ("dc1", 5)
    for value in (b"", b"dc1", b"dc1 x y", b"dc1 -5 x"):
        assert place_of(value) is None
    path = tmp_path / "diary"
    assert read_diary(path) == []
    path.write_text("0 50 7 9\n50 50 8 0\n100 5")
    assert read_diary(path) == [Sent(0, 50, 7, 9), Sent(50, 50, 8, 0)]


def test_lines_are_those_of_a_file_or_made_up(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"a b\r\nc\n")
    assert lines_of(path)[1] == [b"a b ", b"c"]
    source, lines = lines_of(None)
    assert len(set(lines)) > 9000 and "made up" in source.name
    path.write_bytes(b"")
    with pytest.raises(DemoFailed, match="no lines"):
        lines_of(path)


# -- kills -------------------------------------------------------------------------------------------------------------


def hits_of(seed: int, *victims: Victim, count: int = 12) -> list[str]:
    """What is hurt first, without pauses."""
    killer = Killer(victims, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scripts.demo_spark.kills.PAUSE_SECONDS", (0.0, 0.001))
        killer.run(lambda: len(killer.hits) >= count)
        assert killer.hurt == {hit.what.split()[0] for hit in killer.hits}
        return [hit.what for hit in killer.hits]


def victim(name: str, **given: Any) -> Victim:
    return Victim(name, lambda chance: Hurt("job", f"{name} {chance.random():.3f}"), **given)


def test_a_seed_chooses_who_is_hurt() -> None:
    """Everybody once in each round; who is not ready, or was hurt often enough, is passed over."""
    three = [victim(name) for name in "abc"]
    first = hits_of(1, *three)
    assert hits_of(1, *three) == first
    assert hits_of(2, *three) != first
    names = [what.split()[0] for what in first]
    assert all(sorted(names[start : start + 3]) == ["a", "b", "c"] for start in range(0, 12, 3))
    some = hits_of(1, victim("a"), victim("b", is_ready=lambda: False), victim("c", most=2))
    assert Counter(what.split()[0] for what in some) == {"a": 10, "c": 2}


def test_a_program_is_killed_with_all_that_it_started() -> None:
    """Also what is in a group of its own, as Spark's workers are."""
    starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE) as job:
        family = psutil.Process(job.pid)
        wait_until("it has started another", lambda: bool(family.children()), PATIENCE)
        (other,) = family.children()
        assert kill_all(job) == 2
        assert job.returncode == -signal.SIGKILL
    wait_until("the other one is gone", lambda: not other.is_running(), PATIENCE)


def test_a_program_and_what_it_said(tmp_path: Path) -> None:
    """Since it was started, and in the end; one that ends by itself is noticed, and one that was killed is no news."""
    program = Program("clock", ["timeit", "-n", "1", "-r", "1", "input()"], tmp_path)
    with program:
        program.start()
        with pytest.raises(DemoFailed, match="clock ended with 1: EOFError"):
            wait_until("it has ended", lambda: bool(program.check()), PATIENCE)
        assert program.said("EOFError") == 1
        assert program.kill() >= 0
        program.check()
    server = Program("server", ["http.server", "--bind", "127.0.0.1", "0"], tmp_path)
    with server:
        server.start()
        assert server.said("EOFError") == 0
        assert server.stop() == {}
        server.start()
        assert server.kill() >= 1
        assert server.kill() == 0


# -- the page ----------------------------------------------------------------------------------------------------------


def shown(verdict: Verdict) -> str:
    began = 1_700_000_000.0
    now_ms = int(began * 1000)
    diaries = {"dc1": diary((0, 2, True)), "dc2": diary((0, 1, False)), TICK: diary((0, 1, True))}
    commits = [commit(("dc1", 0), ("dc1", 1), at_ms=now_ms + 3000, time_ms=now_ms)]
    window = now_ms // WINDOW_MS * WINDOW_MS
    windows = Windows(told=Counter({window: 2}), counted=Counter({window: 1}), states=Counter({"OK": 1}))
    hits = [Hit(began + 1, began + 2.5, kind, f"<{kind}>") for kind in ("broker", "process", "mirror", "job", "store")]
    mirrored = [(began, 0), (began + 1, 2)]
    return page.page_of(page.Run(began, began + 5, diaries, mirrored, commits, windows, hits, verdict, ["said & done"]))


def test_the_page_says_how_it_went() -> None:
    """The verdict, a plot for each question, each kill; everything in one file, and nothing of it taken for markup."""
    right = shown(Verdict(2, 2, 0, 0, 0, 0, {"p50": 3000, "p99": 3000}))
    assert "verdict right" in right and "0 lost, 0 doubled: 2 acknowledged, 2 rows" in right
    assert right.count("<svg") == 4
    assert "&lt;mirror&gt;" in right and "said &amp; done" in right
    assert right.count("back after 1.5 s") == 5
    assert "half within 3.0 s" in right and "1 OK" in right
    assert not re.search(r"(?:src|href)=\"(?!#)", right)
    wrong = shown(Verdict(2, 3, 1, 2, 3, 4, {"p50": 3000, "p99": 3000}))
    assert "verdict wrong" in wrong and "1 lost, 2 doubled" in wrong
    assert "3 rows that nobody sent" in wrong and "4 windows with wrong counts" in wrong


def test_rates_are_what_came_in_each_time() -> None:
    assert page.increases([(1.0, 0), (2.0, 5), (4.0, 5)]) == [(2.0, 5), (4.0, 0)]
    found = page.rates([(100.0, 4), (101.9, 6), (103.0, 8)], 100.0, 105.0)
    assert found == [(1.0, 5.0), (3.0, 4.0), (5.0, 0.0)]


def test_a_broken_promise_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is there all the same."""
    from scripts.demo_spark import pipeline

    class Nothing(pipeline.Pipeline):
        """A pipeline of which nothing is left."""

        began = time.time()

        def __enter__(self) -> Self:
            self.watch = type("Watch", (), {"totals": []})()
            return self

        def victims(self) -> list[Victim]:
            return []

        def run_for(self, *_: object) -> None: ...
        def come_to_the_end(self) -> None: ...
        def place(self, table: str) -> Any: ...

        def rows(self, table: str) -> list[dict[str, Any]]:
            return []

        def stop(self) -> dict[str, dict[str, Any]]:
            return {}

        @property
        def diaries(self) -> dict[str, list[Sent]]:
            return {"dc1": diary((0, 5, True)), "dc2": []}

    monkeypatch.setattr(pipeline, "Pipeline", Nothing)
    monkeypatch.setattr(pipeline, "read_commits", lambda place: [])
    with pytest.raises(CheckFailed, match="5 lost, 0 doubled"):
        run(DemoOptions(page=tmp_path / "page.html"), tmp_path, lambda text: None)
    assert "verdict wrong" in (tmp_path / "page.html").read_text()
