"""Three brokers, a real ZooKeeper and two groups, of which a broker and a consumer are killed; and the demo's check."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from scripts import demo_cluster
from scripts.demo_cluster import Got, check_group, check_stored
from scripts.demo_text import CheckFailed
from tests.harness import raw_client as raw
from tests.harness.data import access_log_lines

LINES = 2000
SECONDS = 3.0
RATE = 1500


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(400)
def test_every_line_comes_once_to_each_group(tmp_path: Path) -> None:
    """In the order of each client, whatever is killed. Looked at a second time here, by other code than the demo's."""
    log = tmp_path / "access.log"
    lines = list(access_log_lines()[:LINES])
    log.write_bytes(b"\n".join(lines))
    work = tmp_path / "work"
    work.mkdir()
    said: list[str] = []
    shown = demo_cluster.run(log, SECONDS, RATE, work, said.append)

    assert [(row.group, row.consumers) for row in shown.rows] == [("one", 1), ("three", 3)]
    assert shown.lines >= SECONDS * RATE
    assert any("kill -9" in line for line in said)
    stored: Counter[bytes] = Counter()
    for path in work.glob("broker-*/data/access-*/*.kafka"):
        stored.update(raw.deep_payloads(path.read_bytes()))
    assert stored.total() - len(stored) == shown.stored_twice <= shown.possible_duplicates
    for row in shown.rows:
        with contextlib.closing(sqlite3.connect(work / f"{row.group}.db")) as database:
            rows = database.execute("SELECT number, client, text, broker_partition FROM line ORDER BY rowid")
            found = rows.fetchall()
        got = Counter(b"%d\t%s" % (number, text) for number, _, text, _ in found)
        assert got == stored
        assert {number for number, *_ in found} == set(range(shown.lines))
        assert all(text == lines[number % len(lines)] for number, _, text, _ in found)
        first: dict[int, tuple[str, str]] = {}
        for number, client, _, partition in found:
            first.setdefault(number, (client, partition))
        by_client: dict[str, list[int]] = {}
        for number, (client, _) in first.items():
            by_client.setdefault(client, []).append(number)
        assert all(numbers == sorted(numbers) for numbers in by_client.values())
        assert len(set(first.values())) == len(by_client)  # one partition each
    assert shown.rows[0].handovers == 0
    assert shown.rows[1].handovers > 0  # the killed one's share went to others


STORED = {"0-0": [b"0\ta x", b"2\ta y"], "1-0": [b"1\tb x"]}
SENT = [b"0\ta x", b"1\tb x", b"2\ta y"]


def test_what_is_stored_as_it_was_sent_passes() -> None:
    assert check_stored(STORED, SENT) == 0
    assert check_stored({**STORED, "0-0": [b"0\ta x", b"0\ta x", b"2\ta y"]}, SENT) == 1


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"1-0": []}, "1 lines are not stored"),
        ({"1-0": [b"1\tb x", b"7\tb x"]}, "1 lines are stored that nobody sent"),
        ({"0-0": [b"2\ta y", b"0\ta x"]}, "line 0 of b'a' follows line 2"),
        ({"0-0": [b"0\ta x"], "1-0": [b"1\tb x", b"2\ta y"]}, "lie in 0-0 and 1-0"),
    ],
)
def test_a_log_that_is_not_what_was_sent_is_noticed(changed: dict[str, list[bytes]], complaint: str) -> None:
    with pytest.raises(CheckFailed, match=complaint):
        check_stored({**STORED, **changed}, SENT)


def test_what_a_group_got() -> None:
    """A line that came twice, not at all, out of order, or of nowhere is noticed; consumers may take turns."""
    got = [Got(SENT[0], "0-0", "a", 1.0), Got(SENT[1], "1-0", "b", 1.5), Got(SENT[2], "0-0", "b", 4.0)]
    assert check_group("g", got, STORED) == ("g", 3, 0, 2, 1, 3.0)
    for wrong in ([*got, got[1]], got[:2], got[::-1], [*got, Got(b"1\tb x", "2-0", "b", 1.0)]):
        with pytest.raises(CheckFailed, match="group g"):
            check_group("g", wrong, STORED)
