"""Power loss between any two file calls of the log of groups: no commit that was answered goes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.workers.coordinator.groups import groups as keeping
from tests.harness.calls import recorded_calls
from tests.harness.coordinated_groups import Asked
from tests.harness.power import Disk, after_power_loss, steps_of


@pytest.mark.slow
def test_no_answered_commit_goes_back(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a snapshot in several parts; and members that were told their assignment are members afterwards."""
    monkeypatch.setattr(keeping, "BATCH_BYTES", 100)
    root, after = memory / "log", memory / "after"
    answered: list[dict[int, int]] = []
    with Asked(root) as running:
        running.create("t", 3)
        member = running.alone()
        running.commit({("t", 0): 1}, group_id="h")
        running.turn_until("all is written", lambda: not running.loop.tasks)
        disk = Disk(root)
        held = {0: 1}
        with recorded_calls(memory) as calls:
            for number in range(2, 12):
                if number == 6:
                    shard = running.groups._shards[0]
                    shard.log.snapshot(shard.parts())
                assert running.commit({("t", number % 3): number}, group_id="h") == {("t", number % 3): Code.NONE}
                held[number % 3] = number
                answered.append(dict(held))
                _files.reach("group.kept")  # the moment of the answer
            running.turn_until("the snapshot is written", lambda: not running.loop.tasks)
    steps = steps_of([call for call in calls if call.path.suffix != ".txt"])
    moments = [number for number, step in enumerate(steps) if step.path.name == "group.kept"]
    assert len(moments) == len(answered)

    def promised(behind: int) -> int:
        return sum(moment < behind for moment in moments)

    states = list(after_power_loss(disk, steps, promised))
    assert sum(step.path.name == "log.snapshot" for step in steps) > 2
    assert {"all", "half", "zeros"} <= {left.choice.split()[0] for left in states} and len(states) > 40
    for left in states:
        left.put(after)
        count = promised(left.after)
        known = answered[count - 1] if count else {0: 1}
        with Asked(after) as again:
            found = {partition: offset for (_, partition), offset in again.committed("h").items()}
            assert all(found.get(partition, 0) >= offset for partition, offset in known.items()), left
            assert again.beat(member) == Code.NONE, left
            assert again.commit({("t", 0): 99}, group_id="h") == {("t", 0): Code.NONE}, left
