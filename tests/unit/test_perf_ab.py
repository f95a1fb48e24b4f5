"""Two checkouts in turns: which goes first, what is kept, what counts as slower, what a count is made of."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perf.ab import command, instructions
from perf.ab.checkouts import Checkout, CheckoutError, checkout
from perf.ab.command import ab, judged, speed_ratio
from perf.ab.steps import STEPS, Step
from perf.command import EXIT_FAILED, EXIT_INTERRUPTED
from perf.figures.results import Run, load

RATE = Step(name="rate", title="r", section="producer")
TIME = Step(name="time", title="t", section="latency", unit="ms", better="lower", takes=("a", "b"))


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the command with steps that only say what they were asked; gives exit code, output, turns and result."""
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(command, "STEPS", (RATE, TIME))
    monkeypatch.setattr(command, "checkout", lambda text, scratch: Checkout(tmp_path / text, text * 40, changed=False))
    monkeypatch.setattr(command.machine, "describe", lambda path: {})

    def run(values, *arguments: str):
        def measured(step: Step, side: Checkout, messages: int, scratch: Path) -> Run:
            asked.append((step.name, side.path.name))
            return Run(value=values(step.name, side.path.name, len(asked)))

        monkeypatch.setattr(Step, "run", measured)
        out = tmp_path / "out.json"
        found = CliRunner().invoke(
            ab, ["a", "b", "--scratch", str(tmp_path), "--out", str(out), *arguments], standalone_mode=False
        )
        if found.exception is not None:
            raise found.exception
        return found.return_value, found.output, asked, load(out)

    return run


def test_sides_take_turns_and_all_runs_are_kept(turns) -> None:
    """A B, B A, A B …; run i of a series is that of pair i."""
    code, _, asked, result = turns(lambda step, side, n: float(n), "--pairs", "3", "--no-instructions")
    assert code == 0
    assert [side for step, side in asked if step == "rate"] == ["a", "b", "b", "a", "a", "b"]
    assert [series.values for series in result.series if series.scenario == "rate"] == [(1, 6, 9), (2, 5, 10)]
    assert (result.settings["a"], result.settings["b"]) == ("a" * 10, "b" * 10)


@pytest.mark.parametrize(("step", "worse"), [("rate", 0.96), ("time", 1 / 0.96)])
@pytest.mark.parametrize(("pairs", "code"), [(14, 0), (15, EXIT_FAILED)])
def test_slower_is_said_of_enough_pairs_alone(turns, step: str, worse: float, pairs: int, code: int) -> None:
    """Whatever the unit; fewer pairs say it, and change no exit code."""
    found, output, *_ = turns(
        lambda name, side, n: worse if (name, side) == (step, "b") else 1.0, "--pairs", str(pairs), "--no-instructions"
    )
    assert found == code
    assert ("slower" in output) and (("if 15 pairs say so" in output) == (pairs == 14))


def test_the_interval_decides_and_not_the_median() -> None:
    """0.97 itself is no loss; one good pair of many does not hide one."""
    assert judged(speed_ratio(RATE, [100.0] * 15, [97.0] * 15)) == ""
    assert judged(speed_ratio(RATE, [100.0] * 15, [96.9] * 15)) == command.SLOWER
    assert judged(speed_ratio(RATE, [100.0] * 15, [96.0] * 8 + [104.0] * 7)) == ""
    assert judged(speed_ratio(TIME, [1.0] * 15, [2.0] * 15)) == command.SLOWER
    assert judged(speed_ratio(TIME, [2.0] * 15, [1.0] * 15)) == ""


@pytest.mark.parametrize(
    ("of_b", "code"), [((103.0, 0.5), 0), ((103.2, 0.5), EXIT_FAILED), ((100.0, 1.4), 0), ((100.0, 1.6), EXIT_FAILED)]
)
def test_more_instructions_are_a_cost(turns, monkeypatch: pytest.MonkeyPatch, of_b, code: int) -> None:
    """More than 1.03 times as many, in either process; below one instruction a message there is nothing to compare."""
    monkeypatch.setattr(instructions, "missing", lambda: None)
    monkeypatch.setattr(instructions, "counted_steps", lambda: [RATE])
    counts = {"a": instructions.Counts(100.0, 0.5), "b": instructions.Counts(*of_b)}
    monkeypatch.setattr(instructions, "count", lambda step, side, scratch: counts[side.path.name])
    found, output, _, result = turns(lambda *_: 1.0, "--pairs", "1")
    assert found == code
    assert ("costs more" in output) == bool(code)
    assert result.series[1].parameters["instructions_per_message"]["processors"] == of_b[0]


def test_an_interrupt_keeps_what_was_measured(turns) -> None:
    """The result says that it is not all."""

    def values(step: str, side: str, n: int) -> float:
        if n == 6:
            raise KeyboardInterrupt
        return 1.0

    code, _, _, result = turns(values, "--pairs", "9", "--no-instructions")
    assert code == EXIT_INTERRUPTED
    assert result.notes == ("stopped by a signal before everything was measured",)
    assert [len(series.runs) for series in result.series] == [1, 2, 1, 1]


def test_a_count_is_what_twice_the_messages_cost_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So starting and stopping fall out; threads of one process are added up."""
    totals = {10: (1_000, 500), 20: (1_700, 530)}
    monkeypatch.setattr(instructions, "_totals", lambda step, side, scratch, messages: totals[messages])
    assert instructions.count(RATE, Checkout(tmp_path, "c", changed=False), tmp_path, 10) == instructions.Counts(70, 3)
    counts = tmp_path / "1.counts"
    counts.write_text("==1== # Thread 1\n==1== #   Total instructions: 40\n==1== #   Total instructions: 2\n")
    assert instructions._total(counts, "flusher") == 42
    counts.write_text("==1== killed\n")
    for path in (counts, tmp_path / "none"):
        with pytest.raises(CheckoutError, match="nothing of the flusher"):
            instructions._total(path, "flusher")


def test_commands_are_those_that_a_checkout_declares(tmp_path: Path) -> None:
    """Modules may move; names stay."""
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\nfastlog-broker = "there.is:main"\n')
    side = Checkout(tmp_path, "c", changed=False)
    assert "from there.is import main" in side.command("fastlog-broker")[2]
    with pytest.raises(CheckoutError, match="no command producer-perf"):
        side.command("producer-perf")


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    """Neither a directory without a project nor a word that is no commit; an option is no commit either."""
    for text in (str(tmp_path), "no-such-commit", "--all"):
        with pytest.raises(CheckoutError, match="neither a checkout nor a commit"):
            checkout(text, tmp_path)


def test_the_steps_can_be_told_apart_and_fit_their_batches() -> None:
    """Names are unique; whole batches, one at least."""
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert {step.name for step in instructions.counted_steps()} == set(instructions.COUNTED)
    assert (RATE.messages(1), RATE.messages(149), RATE.messages(150)) == (50, 100, 150)
