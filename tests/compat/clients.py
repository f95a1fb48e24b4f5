"""Clients that pip does not have, against a broker: each tries what it can, and a table says what came of it.

    python -m tests.compat.clients [CLIENT...]          sarama, franz-go, kafkajs, platformatic, librdkafka;
                                                        all by default

They are fetched and built first, at the versions of go.mod, package-lock.json and Cargo.toml, in a temporary
directory, or where ``FASTLOG_CLIENTS`` says. The exit code is 1 when a check has failed, and 3 when something could not
be run, which the table names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from tests.compat import librdkafka
from tests.harness import foreign_clients
from tests.harness.broker import Broker, wait_until
from tests.harness.today_members import Members, produce
from tests.harness.today_static import static_members_come_back
from tests.integration.test_kafka_clients import CODECS, Confluent, messages

SOURCES = Path(__file__).parent
PARTITIONS = 4
SETTINGS = {"num.partitions": PARTITIONS, "group.initial.rebalance.delay.ms": 0}
SECONDS = 600
GO = ("sarama", "franz-go")
LIBRDKAFKA = "librdkafka"
STATIC = ("sarama", "franz-go", "platformatic")
"""kafkajs has no static members."""
FAILED, NOT_RUN = 1, 3


class Row(NamedTuple):
    """What came of a check: ok, none (the library has not got it), FAILED or NOT RUN."""

    client: str
    check: str
    result: str
    reason: str = ""


def build(directory: Path, names: Collection[str]) -> dict[str, str]:
    """Make the clients' programs; why not, by client, of those that could not be made."""
    missing = {}
    directory.mkdir(parents=True, exist_ok=True)
    for name in set(GO) & set(names):
        reason = _run(["go", "build", "-buildvcs=false", "-o", str(directory / name), f"./{name}"], SOURCES / "go")
        if reason:
            missing[name] = reason
    shutil.copy(SOURCES / "javascript" / "checks.js", directory)
    for name in set(foreign_clients.JAVASCRIPT) & set(names):
        place = directory / name
        shutil.copytree(SOURCES / "javascript" / name, place, dirs_exist_ok=True)
        reason = _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], place)
        if reason:
            missing[name] = reason
    if LIBRDKAFKA in names:
        reason = librdkafka.build(directory)
        if reason:
            missing[LIBRDKAFKA] = reason
    return missing


def _run(command: list[str], directory: Path) -> str:
    """Why a command did not work; nothing where it did."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is missing: install it"
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False)
    return " ".join((done.stdout + done.stderr).split())[-300:] if done.returncode else ""


def single(name: str, address: str) -> list[Row]:
    """What the client's program tries by itself."""
    for codec in CODECS:
        Confluent().produce(address, f"{name}-others-{codec}", codec, messages(), "1")
    command = [*foreign_clients.command(name), "check", address, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    rows = []
    for line in done.stdout.splitlines():
        result, _, rest = line.partition(" ")
        check, _, reason = rest.partition(": ") if result == "FAILED" else (rest, "", "")
        rows.append(Row(name, check, result, reason))
    if done.returncode not in (0, 1) or not rows:
        rows.append(Row(name, "its program", "FAILED", f"exit code {done.returncode}: {done.stderr[-300:]}"))
    own = [row for row in rows if row.result == "ok" and row.check.endswith("written and read to the end")]
    for row in own:
        codec = row.check.partition(":")[0]
        rows.append(_tried(name, f"{codec}: read by another client", lambda codec=codec: _read(address, name, codec)))  # type: ignore[misc]
    return rows


def _read(address: str, name: str, codec: str) -> None:
    assert Confluent().read(address, f"{name}-{codec}", 0) == messages()


def groups(name: str, address: str, directory: Path) -> list[Row]:
    """What takes several processes."""
    rows = []
    for kind, (program, strategy) in foreign_clients.MEMBERS.items():
        if program == name:
            check = f"a group of three, one killed ({strategy})"
            rows.append(_tried(name, check, lambda kind=kind: _killed(address, kind, directory)))  # type: ignore[misc]
    if name in STATIC:
        place = directory / f"{name}-static"
        rows.append(_tried(name, "static members", lambda: static_members_come_back(address, name, place)))
    else:
        rows.append(Row(name, "static members", "none"))
    return rows


def performance(program: Path, address: str) -> list[Row]:
    """What ``rdkafka_performance`` is tried with."""
    return [_tried(LIBRDKAFKA, check, body) for check, body in librdkafka.checks(program, address)]


def _killed(address: str, kind: str, directory: Path) -> None:
    topic = f"{kind}-killed"
    produce(address, topic, PARTITIONS, 200)
    with Members(address, kind, topic, directory / topic, group=topic) as members:
        first, *others = [members.start() for _ in range(3)]
        wait_until("all is read", lambda: members.seen() == all_of(200))
        wait_until("each has a part", lambda: all(members.diaries()))
        members.kill(first)
        produce(address, topic, PARTITIONS, 200)
        wait_until("all is read by the others", lambda: members.seen() == all_of(400))
        codes = [members.end(member) for member in others]
        assert codes == [0, 0], f"exit codes {codes}: {members.errors()[-500:]}"
        wrong = members.wrong()
        assert wrong == [], f"{len(wrong)} wrong: {wrong[:3]}"


def all_of(count: int) -> set[tuple[int, int]]:
    """The first records of each partition."""
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(count)}


def _tried(name: str, check: str, body: Callable[[], None]) -> Row:
    try:
        body()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        return Row(name, check, "FAILED", " ".join(str(error).split())[:300])
    return Row(name, check, "ok")


def main(names: list[str]) -> int:
    """Run the clients that are named, print the table, and return the exit code."""
    known = [*dict.fromkeys(program for program, _ in foreign_clients.MEMBERS.values()), LIBRDKAFKA]
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"no client is called {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="fastlog-clients-") as made:
        directory = Path(made)
        os.environ.setdefault(foreign_clients.VARIABLE, str(directory / "programs"))
        place = Path(os.environ[foreign_clients.VARIABLE])
        missing = build(place, names or known)
        for name in names or known:
            if name in missing:
                rows.append(Row(name, "everything", "NOT RUN", missing[name]))
                continue
            with Broker(directory / name, processors=2, settings=SETTINGS) as broker:
                address = f"127.0.0.1:{broker.port}"
                if name == LIBRDKAFKA:
                    rows += performance(place / librdkafka.NAME, address)
                    continue
                rows += single(name, address) + groups(name, address, directory / f"{name}-members")
    return told(rows)


def told(rows: list[Row]) -> int:
    """Print the table; the exit code."""
    for row in rows:
        print(f"{row.client:<12} {row.check:<52} {row.result:<8} {row.reason}".rstrip())
    results = {row.result for row in rows}
    if results - {"ok", "none", "NOT RUN"} or not rows:
        return FAILED
    return NOT_RUN if "NOT RUN" in results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
