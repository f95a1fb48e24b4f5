"""An access log through every kind of producer and reader while processors are killed.

The demo checks most of what is promised; what is stored is compared with the log a second time here, by other code.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from scripts import demo_clients
from scripts.demo_clients_work import MODES, PARTITIONS
from scripts.demo_text import DemoFailed
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.data import access_log_lines

LINES = 2000
SHORT = (3.0, 3000)
"""For how many seconds lines are sent at least, and how many in each of them by each producer."""
WHOLE = (10.0, 15_000)


@scenario("access-log", "kill -9 of processors under every kind of client", small=1, nightly=10, release=100)
def all_clients(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` runs: a single one is short and of a part of the log; several take all of it, at full speed."""
    outcome = Outcome()
    lines = list(access_log_lines()[: LINES if count == 1 else None])
    log = directory / "access.log"
    log.write_bytes(b"\n".join(lines))
    for number in range(count):
        work = directory / str(number)
        work.mkdir()
        said: list[str] = []
        try:
            shown = demo_clients.run(log, *(SHORT if count == 1 else WHOLE), work, said.append)
        except DemoFailed as error:
            outcome.violations += [f"run {number}: {error}", *said]
        else:
            _check_kills(shown, outcome)
            _check_producers(shown, lines, work / "data", outcome)
            _check_readers(shown, outcome)
            rows = sum(line.startswith(("sync ", "async ", "gzip ", "snappy ", *MODES)) for line in said)
            outcome.expect(rows == 9, f"{rows} rows in the tables")
        outcome.runs += 1
    return outcome


def _check_kills(shown: demo_clients.Shown, outcome: Outcome) -> None:
    """There were some, and they hit something: otherwise nothing was shown."""
    least = demo_clients.LEAST_PUBLISHING_KILLS
    outcome.expect(shown.kills >= least + demo_clients.LEAST_READING_KILLS, f"only {shown.kills} kills")
    outcome.expect(all(row.kills >= least for row in shown.producers), "too few kills while lines were sent")
    outcome.expect(all(row.kills >= 2 and row.passes >= 2 for row in shown.readers), "too few kills while reading")
    outcome.expect(sum(row.retries for row in shown.producers) >= 2, "next to no retries")
    outcome.expect(sum(row.possible_duplicates for row in shown.producers) > 0, "nothing was sent again")


def _check_producers(shown: demo_clients.Shown, lines: list[bytes], data: Path, outcome: Outcome) -> None:
    """Every line is stored as often as it was sent and as the producer counted, each key in one partition."""
    names = [row.name for row in shown.producers]
    outcome.expect(names == ["sync", "async", "gzip", "snappy"], f"producers {names}")
    for row in shown.producers:
        outcome.expect(row.lines >= len(lines), f"{row.name} sent only {row.lines} lines")
        outcome.expect(row.duplicates <= row.possible_duplicates, f"{row.name}: more duplicates than were counted")
        sent = Counter(lines[number % len(lines)] for number in range(row.lines))
        stored: Counter[bytes] = Counter()
        partitions_of: dict[bytes, set[int]] = {}
        for partition in range(PARTITIONS):
            files = sorted((data / f"lines-{row.name}-{partition}").glob("*.kafka"))
            for payload in raw.deep_payloads(b"".join(path.read_bytes() for path in files)):
                stored[payload] += 1
                partitions_of.setdefault(payload.split(b" ")[0], set()).add(partition)
        outcome.expect(not sent - stored, f"{row.name}: {(sent - stored).total()} lines are lost")
        twice = (stored - sent).total()
        outcome.expect(twice == row.duplicates, f"{row.name}: {twice} stored twice, {row.duplicates} reported")
        outcome.expect(set(map(len, partitions_of.values())) == {1}, f"{row.name}: a key in several partitions")


def _check_readers(shown: demo_clients.Shown, outcome: Outcome) -> None:
    """All five have found the same, which is everything."""
    everything = sum(row.lines + row.duplicates for row in shown.producers)
    modes = [row.mode for row in shown.readers]
    outcome.expect(modes == ["messages", "lists", "numpy", "arrow", "local"], f"readers {modes}")
    for row in shown.readers:
        outcome.expect(row.equal and row.lines == everything, f"{row.mode} found {row.lines} lines of {everything}")
