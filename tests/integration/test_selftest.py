"""``fastlog selftest``: it passes where fastlog works, and whatever is lost, made up or out of order fails it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastlog.errors import TransportError
from fastlog.testing import RunningBroker
from fastlog.tools import selftest
from tests.harness.command_line import Commands, Ran

NUMBERS = [b"%012d" % number for number in range(10)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "COUNT", 1000)
    monkeypatch.setattr(selftest, "WRITE_SECONDS", 0.2)


def run(capture: pytest.CaptureFixture[str], directory: Path) -> Ran:
    return Commands(capture)("selftest", "--directory", str(directory), "--json")


@pytest.mark.slow
def test_it_passes_and_leaves_nothing(
    small: None,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of the directory that it is called in is run, as in a checkout that is not the one installed."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "fastlog.py").write_text("raise SystemExit('another fastlog')")
    monkeypatch.chdir(elsewhere)
    ran = run(capfd, tmp_path)
    assert ran.code == 0, ran
    assert [row["step"] for row in ran.rows] == [
        "start",
        "write Kafka 0.7",
        "read Kafka 0.7",
        "write today's Kafka (confluent-kafka)",
        "read today's Kafka (confluent-kafka)",
        "kill a process",
        "kill the broker",
        "stop",
        "fsck",
    ]
    assert all(row["passed"] for row in ran.rows)
    assert ran.err.startswith("everything works (") and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_with_kafka_python(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where confluent-kafka is not there. It leaves sockets open when its broker is killed, so that is not tried."""
    imported = selftest.importlib.import_module

    def without_confluent(name: str) -> Any:
        if name == "confluent_kafka":
            raise ImportError(name)
        return imported(name)

    pytest.importorskip("kafka", reason="kafka-python is installed")
    monkeypatch.setattr(selftest.importlib, "import_module", without_confluent)
    running = RunningBroker(directory=tmp_path)
    try:
        steps = dict(selftest.SelfTest(running).steps())
        names = ["start", "write today's Kafka (kafka-python)", "read today's Kafka (kafka-python)"]
        said = [steps[name]() for name in names]
    finally:
        running.close()
    assert said[2].startswith("1000 messages as they were sent")


class Liar(selftest.Kafka07Client):
    """Says of each batch before the last that it is stored, and sends the others."""

    def write(self, address: str, numbers: range, acknowledged: Callable[[int], object]) -> None:
        super().write(address, numbers[: -selftest.BATCH], acknowledged)
        acknowledged(numbers[-1])


class Silent(selftest.Kafka07Client):
    """Is never answered once the first messages are there."""

    def write(self, address: str, numbers: range, acknowledged: Callable[[int], object]) -> None:
        if len(numbers) <= selftest.COUNT:
            super().write(address, numbers, acknowledged)


class Broken(selftest.Kafka07Client):
    """Gives up when the broker is killed."""

    def write(self, address: str, numbers: range, acknowledged: Callable[[int], object]) -> None:
        if len(numbers) <= selftest.COUNT:
            super().write(address, numbers, acknowledged)
        else:
            super().write(address, numbers[: selftest.BATCH], acknowledged)
            raise TransportError("gone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "step", "says"),
    [
        (Liar, "read Kafka 0.7", "1000 messages were acknowledged, and 800 are there"),
        (Silent, "kill the broker", "nothing was acknowledged"),
        (Broken, "kill the broker", "Kafka 0.7 did not go on after the kill: gone"),
    ],
)
def test_it_fails_and_keeps_the_files(
    small: None,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    client: type[selftest.Kafka07Client],
    step: str,
    says: str,
) -> None:
    monkeypatch.setattr(selftest, "Kafka07Client", client)
    if client is Silent:
        monkeypatch.setattr(selftest, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(selftest, "today_client", lambda: [])
    ran = run(capfd, tmp_path)
    assert ran.code == 1
    *passed, failed = ran.rows
    assert all(row["passed"] for row in passed) and not failed["passed"]
    assert (failed["step"], says in failed["said"]) == (step, True)
    assert step == "read Kafka 0.7" or "pip install confluent-kafka" in passed[3]["said"]
    (kept,) = tmp_path.iterdir()
    assert (kept / "data" / "selftest-0").is_dir() and str(kept) in ran.refused()[2]
    assert "fastlog-broker: ready" in ran.err  # the end of the broker's log


@pytest.mark.parametrize(
    ("found", "acknowledged", "sent", "repeats", "says"),
    [
        (NUMBERS, 10, 10, False, ""),
        (NUMBERS, 9, 10, False, ""),
        (NUMBERS, 11, 11, False, "11 messages were acknowledged, and 10 are there"),
        (NUMBERS, 9, 9, False, "message 9 is number 9, and 9 was to come"),
        ([*NUMBERS[:3], *NUMBERS[4:]], 1, 10, True, "message 3 is number 4, and 3 was to come"),
        ([*NUMBERS, *NUMBERS[5:]], 10, 10, True, ""),
        ([*NUMBERS, *NUMBERS[5:]], 10, 10, False, "message 10 is number 5"),
        ([*NUMBERS[:5], b"x" * 12], 5, 10, True, "message 5 is b'xxxxxxxxxxxx', which nobody sent"),
        ([*NUMBERS[:5], b"5"], 5, 10, True, "which nobody sent"),
        ([], 0, 10, False, ""),
        ([], 1, 10, True, "1 message was acknowledged, and 0 are there"),
    ],
)
def test_what_is_read_is_judged(found: list[bytes], acknowledged: int, sent: int, repeats: bool, says: str) -> None:
    if not says:
        selftest.check(found, acknowledged, sent, repeats=repeats)
        return
    with pytest.raises(selftest.SelfTestError, match=says.replace("'", ".")):
        selftest.check(found, acknowledged, sent, repeats=repeats)


def test_batches_are_whole_and_end_where_the_numbers_do() -> None:
    found = list(selftest.batches(range(5, 2 * selftest.BATCH + 6)))
    assert [len(batch) for batch in found] == [selftest.BATCH, selftest.BATCH, 1]
    assert [int(message) for batch in found for message in batch] == list(range(5, 2 * selftest.BATCH + 6))
