"""A coordinator and clients of its groups: what they ask, by the fields of their requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastlog import record_batches
from fastlog.log.internal_logs import whole_batches
from fastlog.record_batches import Record
from fastlog.workers.coordinator.groups.groups import TOPIC
from tests.harness.coordinated import Coordinated

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, OFFSET_DELETE = (
    8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47,
)  # fmt: skip
SECOND = 1000


class Asked(Coordinated):
    """A coordinator and clients of groups."""

    def __init__(self, directory: Path, **given: Any) -> None:
        super().__init__(directory, **({"group_initial_rebalance_delay_ms": 0} | given))

    def begin_to_join(self, member: str = "", version: int = 9, group: str = "g", **more: Any) -> list[Any]:
        fields = {
            "group_id": group, "session_timeout": 10 * SECOND, "rebalance_timeout": 60 * SECOND, "member_id": member,
            "group_instance_id": None, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscribed("t")}], "reason": None,
        }  # fmt: skip
        return self.begin_to_ask(JOIN, version, **(fields | more))

    def answer(self, asked: list[Any]) -> Any:
        self.turn_until("an answer", lambda: bool(asked))
        return asked[0]

    def join(self, member: str = "", version: int = 9, **more: Any) -> Any:
        return self.answer(self.begin_to_join(member, version, **more))

    def begin_to_sync(self, member: str, generation: int, given: dict[str, bytes], version: int = 5) -> list[Any]:
        rows = [{"member_id": each, "assignment": data} for each, data in given.items()]
        more = {"group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range"}
        return self.begin_to_ask(
            SYNC, version, group_id="g", generation_id=generation, member_id=member, assignments=rows, **more
        )

    def alone(self, group: str = "g") -> str:
        """The id of a group's one member, which is in generation 1."""
        member: str = self.join(self.join(group=group).member_id, group=group).member_id
        more = {"group_instance_id": None, "protocol_type": None, "protocol_name": None}
        rows = [{"member_id": member, "assignment": b"all"}]
        found = self.ask(SYNC, 5, group_id=group, generation_id=1, member_id=member, assignments=rows, **more)
        assert (found.error_code, found.assignment) == (0, b"all")
        return member

    def beat(self, member: str, generation: int = 1, group: str = "g", version: int = 4) -> int:
        fields = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None}
        return int(self.ask(HEARTBEAT, version, **fields).error_code)

    def begin_to_commit(self, rows: dict[tuple[str, int], int], version: int = 9, **more: Any) -> list[Any]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in rows.items():
            row = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 3}
            topics.setdefault(topic, []).append(row | {"committed_metadata": more.get("text", "m")})
        fields = {
            "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "retention_time": -1, "topics": [{"name": name, "partitions": found} for name, found in topics.items()],
        }  # fmt: skip
        return self.begin_to_ask(COMMIT, version, **(fields | more))

    def commit(self, rows: dict[tuple[str, int], int], version: int = 9, **more: Any) -> dict[tuple[str, int], int]:
        found = self.answer(self.begin_to_commit(rows, version, **more))
        return {(t.name, p.partition_index): int(p.error_code) for t in found.topics for p in t.partitions}

    def committed(self, group: str = "g") -> dict[tuple[str, int], int]:
        asked = [{"group_id": group, "topics": None}]
        (found,) = self.ask(FETCH, 8, groups=asked, require_stable=False).groups
        assert found.error_code == 0
        return {(t.name, p.partition_index): p.committed_offset for t in found.topics for p in t.partitions}

    def again(self) -> None:
        """The coordinator is killed, and its successor takes over."""
        self.loop.close()
        self.begin()
        self.turn_until("it is ready", lambda: self.groups.is_ready)

    def state(self, group: str = "g") -> Any:
        (found,) = self.ask(DESCRIBE, 5, groups=[group], include_authorized_operations=False).groups
        return found

    def stored(self) -> list[Record]:
        """All records of the log, as they stand there."""
        found = []
        for path in sorted((self.directory / f"{TOPIC}-0").glob("*.log")):
            for batch in whole_batches(path.read_bytes()):
                found += list(record_batches.records(batch))
        return found


def subscribed(*topics: str) -> bytes:
    """What a consumer says of itself: version 1, its topics, no more."""
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + bytes(8)
