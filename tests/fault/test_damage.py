"""Damaged bytes and files: what is whole is kept, a torn tail is cut, nothing is deleted, nothing is invented."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fastlog.log.files import FileOps
from fastlog.log.recovery import recover_all, recover_partition
from fastlog.segment_files import walk
from tests.fault import __main__ as command
from tests.fault import damage, foreign_files, registry
from tests.fault.foreign_files import CASES, Case
from tests.harness import logs, raw_format

SEED = 20110612
OWN = sorted(
    name
    for name, item in registry.load().items()
    if item.run.__module__ in (damage.__name__, foreign_files.__name__) and name != "foreign-files"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_scenario_at_the_smallest_tier(name: str, tmp_path: Path) -> None:
    """T-4, T-9, T-12, T-13, T-14: no fault of the scenario breaks a promise."""
    item = registry.SCENARIOS[name]
    outcome = item.run(item.counts["S"], SEED, tmp_path)
    assert outcome.runs > 0
    assert outcome.violations == [], f"seed {SEED}"


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_foreign_files(one: Case, tmp_path: Path) -> None:
    """T-15, Z-6: each is served, or refused with one line that names it; nothing is deleted."""
    outcome, _ = foreign_files.play(one, tmp_path)
    assert outcome.violations == []


def test_a_broken_promise_gives_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command counts violations, names the seed that repeats them, and fails."""

    def broken(count: int, seed: int, directory: Path) -> registry.Outcome:
        assert directory.is_dir()
        return registry.Outcome(count, [f"broken at {seed}"])

    kept = registry.Scenario("kept", "nothing", {"S": 3, "N": 4, "R": 5}, lambda count, *_: registry.Outcome(count))
    monkeypatch.setattr(
        registry, "SCENARIOS", {"kept": kept, "broken": registry.Scenario("broken", "all", kept.counts, broken)}
    )
    assert command.main(["--tier", "N", "--seed", "11", "--only", "kept"]) == 0
    assert command.main(["--tier", "N", "--seed", "11"]) == 1
    table = capsys.readouterr().out.splitlines()
    assert table[-1] == "broken --seed 11: broken at 11"
    assert any(line.split()[:3] == ["broken", "4", "1"] for line in table)


def test_a_scenario_that_cannot_go_on_ends_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"S": 3, "N": 4, "R": 5}

    def failing(*_: object) -> registry.Outcome:
        raise AssertionError("the broker did not start")

    scenarios = {
        "failing": registry.Scenario("failing", "all", counts, failing),
        "kept": registry.Scenario("kept", "nothing", counts, lambda count, *_: registry.Outcome(count)),
    }
    monkeypatch.setattr(registry, "SCENARIOS", scenarios)
    assert command.main(["--seed", "11"]) == 1
    said = capsys.readouterr().out
    assert [line.split()[:3] for line in said.splitlines()[2:4]] == [["failing", "0", "1"], ["kept", "3", "0"]]
    assert "failing --seed 11: could not go on: Traceback" in said
    assert "the broker did not start" in said


def test_what_broken_promises_leave_behind_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of scenarios that kept theirs nothing stays; neither does anything without a place for it."""
    places: list[Path] = []

    def scenario(is_broken: bool) -> registry.Scenario:
        def run(_count: int, _seed: int, directory: Path) -> registry.Outcome:
            (directory / "diary").write_text("what was seen")
            places.append(directory)
            return registry.Outcome(1, ["broken"] if is_broken else [])

        return registry.Scenario("", "", dict.fromkeys(registry.TIERS, 1), run)

    monkeypatch.setattr(registry, "load", lambda: {"kept": scenario(False), "broken": scenario(True)})
    keep = tmp_path / "not" / "there"
    for _ in range(2):
        assert command.main(["--seed", "11", "--keep", str(keep)]) == 1
    assert sorted(keep.iterdir()) == sorted(places[1::2])
    assert {path.name.rpartition("-")[0] for path in places[1::2]} == {"broken-11"}
    assert [(path / "diary").read_text() for path in places[1::2]] == ["what was seen"] * 2
    assert command.main(["--seed", "11"]) == 1
    assert not any(path.exists() for path in places[4:]) and len(list(keep.iterdir())) == 2


def test_log_directories_hold_all_sorts_of_things(tmp_path: Path) -> None:
    """Z-7, T-15, S1: only names that follow the rule are logs, split at the last dash; others are named."""
    data = tmp_path / "data"
    for name in ("t-0", "t-x-1", "t--2", "-dash-3", "a-2147483647", "ü-4", "lost+found", "plain", "-0", "t-", "t-01"):
        (data / name).mkdir(parents=True)
    for name in ("t--1x", "t-2147483648", "..-0", "t-9999999999999", "with\nnewline-0", "t-٣"):
        (data / name).mkdir()
    (data / b"\xff-0".decode("utf-8", "surrogateescape")).mkdir()
    (data / "file-0").touch()
    (data / ".lock").touch()
    (data / ".kafka_cleanshutdown").touch()
    (data / "loop-0").symlink_to(data / "loop-0")
    (data / "nowhere-0").symlink_to(tmp_path / "nowhere")
    (data / "again-0").symlink_to(data / "t-0")
    (tmp_path / "elsewhere").mkdir()
    (data / "linked-0").symlink_to(tmp_path / "elsewhere")
    found, warnings = recover_all([data], [{}], FileOps())
    names = sorted((one.topic, one.partition, one.state) for _, one in found)
    assert names == [
        ("-dash", 3, "ok"),
        ("a", 2147483647, "ok"),
        ("linked", 0, "ok"),
        ("t", 0, "ok"),
        ("t-", 2, "ok"),
        ("t-x", 1, "ok"),
        ("ü", 4, "ok"),
    ]
    passed_over = ["lost+found", "plain", "-0", "t-", "t-01", "t--1x", "t-2147483648", "..-0", "t-9999999999999", "t-٣"]
    passed_over += ["with\\nnewline-0", "\\xff-0", "file-0", "loop-0", "nowhere-0", "again-0"]
    assert sorted(line.split(": ")[0] for line in warnings) == sorted(f"skipped path={data}/{n}" for n in passed_over)
    assert all("\n" not in line for line in warnings)


def test_a_partition_that_cannot_be_looked_at_is_not_one_that_is_not_there(tmp_path: Path) -> None:
    """It is offline, with the reason. Passed over, it was empty to consumers, and a sync in doubt was settled."""
    data = tmp_path / "data"
    logs.write_segments(data / "sound-0", [foreign_files.PARTS[0]])
    (data / "t-0").symlink_to("n" * 300)  # a name that no file can have: asked for what it is, the kernel refuses
    found, warnings = recover_all([data], [{}], FileOps(), in_doubt=True)
    states = {one.topic: (one.state, one.reason) for _, one in found}
    assert states["sound"] == ("ok", "")
    assert states["t"][0] == "offline"
    assert str(data / "t-0") in states["t"][1] and "File name too long" in states["t"][1]
    assert warnings == []


def test_a_partition_in_two_log_directories(tmp_path: Path) -> None:
    """Which one is right is not guessed: offline, both directories named, nothing touched; others are served."""
    for name in ("a", "b"):
        logs.write_segments(tmp_path / name / "t-0", [foreign_files.PARTS[0] + foreign_files.TORN])
        logs.write_segments(tmp_path / name / f"{name}-0", [foreign_files.PARTS[0]])
    found, warnings = recover_all([tmp_path / "a", tmp_path / "b"], [{}, {}], FileOps())
    states = {(index, one.topic): (one.state, one.reason) for index, one in found}
    assert states[0, "a"] == states[1, "b"] == ("ok", "")
    state, reason = states[0, "t"]
    assert (state, len(found), warnings) == ("offline", 3, [])
    assert str(tmp_path / "a/t-0") in reason
    assert str(tmp_path / "b/t-0") in reason
    assert len(logs.contents(tmp_path / "a/t-0")) == len(logs.contents(tmp_path / "b/t-0")) == 1


def test_one_bad_partition_keeps_no_other_from_being_served(tmp_path: Path) -> None:
    """9.1: a size gap takes down one partition, not the broker."""
    logs.write_segments(tmp_path / "good-0", foreign_files.PARTS)
    bases = logs.write_segments(tmp_path / "bad-0", foreign_files.PARTS)
    logs.segment_path(tmp_path / "bad-0", bases[0]).unlink()
    logs.segment_path(tmp_path / "bad-0", bases[1]).write_bytes(b"")
    found, _ = recover_all([tmp_path], [{}], FileOps())
    assert {one.topic: one.state for _, one in found} == {"good": "ok", "bad": "offline"}


def test_partitions_on_disk_are_found_whatever_is_configured(tmp_path: Path) -> None:
    """Z-23: a smaller num.partitions hides no data; recovery finds what is on disk."""
    for partition in range(4):
        logs.write_segments(tmp_path / f"t-{partition}", [foreign_files.PARTS[0]])
    found, _ = recover_all([tmp_path], [{"t-3": len(foreign_files.PARTS[0])}], FileOps())
    assert [(one.partition, one.log_end) for _, one in found] == [(n, len(foreign_files.PARTS[0])) for n in range(4)]


@pytest.mark.parametrize("zeros", [0, 2, 4, 5, 6])
def test_zero_bytes_at_the_end(zeros: int, tmp_path: Path) -> None:
    """Conformance 9: zeros of a partial write are not read as messages, and exactly they are removed."""
    data = foreign_files.PARTS[0]
    logs.write_segments(tmp_path / "t-0", [data + bytes(zeros)])
    path = logs.segment_path(tmp_path / "t-0", 0)
    assert [entry.next_offset for entry in walk(path, 0)][-1] == len(data)
    result = recover_partition(tmp_path / "t-0", "t", 0, clean_end=None, files=FileOps())
    assert (result.log_end, result.truncated_bytes) == (len(data), zeros)
    assert path.read_bytes() == data


def test_the_golden_log_of_0_7(tmp_path: Path) -> None:
    """Conformance 20, T-40, S3: Kafka's own log of 100 magic-0 messages is read byte for byte.

    Source: Kafka 0.7.2 (BackwardsCompatibilityTest); the file is made again here and known by its SHA-256.
    """
    data = raw_format.entry(b"x" * 100, magic=0) * 100
    golden = "0db77e65c9cbe560e47d45e6dd43b8e61adf0c0e39c6ed9fe16890ef8d109625"
    assert hashlib.sha256(data).hexdigest() == golden
    logs.write_segments(tmp_path / "MagicByte0-0", [data])
    found, _ = recover_all([tmp_path], [{}], FileOps())
    ((_, result),) = found
    assert (result.topic, result.state, result.log_end, result.truncated_bytes) == ("MagicByte0", "ok", 10900, 0)
    entries = list(walk(logs.segment_path(tmp_path / "MagicByte0-0", 0), 0))
    assert [(entry.offset, entry.magic, entry.payload) for entry in entries] == [
        (109 * n, 0, b"x" * 100) for n in range(100)
    ]
