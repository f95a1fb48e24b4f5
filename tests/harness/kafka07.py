"""A consumer as Kafka 0.7.2 has it, written anew on a bare ZooKeeper client: what it writes to the byte, step by step.

Nothing here imports fastlog: a group that it shares with fastlog's members agrees with them by what lies in ZooKeeper
alone. It reads no messages; ``positions`` stands for how far it has come. Where 0.7 gives up after four attempts, it
goes on trying.

Source: Kafka 0.7.2 (ZookeeperConsumerConnector, TopicCount, ZkUtils, TopicFilter).
"""

from __future__ import annotations

import json
import re
import socket
import threading
from typing import Self

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

_LOOK_SECONDS = 0.02
_BACKOFF_SECONDS = 0.1


class Kafka07Consumer:
    """A member of ``group`` with ``subscription`` as its own node has it: ``{ "t": 1 }``, ``*1*t.*`` or ``!1!u``."""

    def __init__(self, connect: str, group: str, name: str, subscription: str, session_seconds: float) -> None:
        self.id = f"{group}_{name}"
        self.positions: dict[tuple[str, str], int] = {}
        """By topic and ``<broker>-<partition>``: what it owns, and how far it has come."""
        self.begun: list[tuple[str, str, int]] = []
        """Topic, partition and offset each time it began to read one."""
        self.attempts = 0
        self.failed_attempts = 0
        self._root = f"/consumers/{group}"
        self._subscription = subscription
        hosts, slash, path = connect.partition("/")
        self._client = KazooClient(hosts + slash + path, timeout=session_seconds)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._client.start(timeout=20)
        self._client.create(f"{self._root}/ids/{self.id}", self._subscription.encode(), ephemeral=True, makepath=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """In 0.7's order: commit, then close the session."""
        self._over.set()
        self._thread.join(20)
        self.commit()
        self._client.stop()
        self._client.close()

    def vanish(self) -> None:
        """As with kill -9: nothing is committed, and the nodes stay until the session ends."""
        self._over.set()
        self._thread.join(20)
        self._client._stopped.set()
        self._client._connection._socket.shutdown(socket.SHUT_RDWR)
        self.positions.clear()

    def consume(self, topic: str, partition: str, offset: int) -> None:
        """Note that it has consumed up to an offset."""
        with self._lock:
            assert (topic, partition) in self.positions
            self.positions[topic, partition] = offset

    def commit(self) -> None:
        """Write every position, changed or not."""
        with self._lock:
            for (topic, partition), offset in self.positions.items():
                path = f"{self._root}/offsets/{topic}/{partition}"
                try:
                    self._client.set(path, str(offset).encode())
                except NoNodeError:
                    self._client.create(path, str(offset).encode(), makepath=True)

    # --- the one thread that rebalances ---

    def _work(self) -> None:
        before: object = None
        while not self._over.wait(_LOOK_SECONDS):
            seen = self._cluster()
            if seen == before:
                continue
            self.attempts += 1
            if self._rebalance(*seen):
                before = seen
            else:
                self.failed_attempts += 1
                before = None
                self._over.wait(_BACKOFF_SECONDS)

    def _cluster(self) -> tuple[dict[str, str], dict[str, list[str]]]:
        members = {}
        for name in self._children(f"{self._root}/ids"):
            data = self._data(f"{self._root}/ids/{name}")
            if data is not None:
                members[name] = data
        topics = {}
        for topic in self._children("/brokers/topics"):
            counts = {
                broker: self._data(f"/brokers/topics/{topic}/{broker}")
                for broker in self._children(f"/brokers/topics/{topic}")
            }
            # Sorted as strings: "0-10" comes before "0-2".
            topics[topic] = sorted(
                f"{broker}-{number}" for broker, count in counts.items() for number in range(int(count or 0))
            )
        return members, topics

    def _rebalance(self, members: dict[str, str], topics: dict[str, list[str]]) -> bool:
        """One attempt: stop reading, commit, free everything, then take what the formula gives."""
        self.commit()
        with self._lock:
            for topic, partition in list(self.positions):
                self._delete(self._owner(topic, partition))
            self.positions.clear()
        made = []
        for topic, partitions in topics.items():
            threads = sorted(
                f"{member}-{number}"
                for member, text in members.items()
                for number in range(streams_of(text, list(topics)).get(topic, 0))
            )
            for thread in threads:
                if thread.rpartition("-")[0] != self.id:
                    continue
                place, share, extra = threads.index(thread), *divmod(len(partitions), len(threads))
                start = share * place + min(place, extra)
                for partition in partitions[start : start + share + (1 if place < extra else 0)]:
                    offset = self._data(f"{self._root}/offsets/{topic}/{partition}")
                    made.append((topic, partition, thread, int(offset or 0)))
        for number, (topic, partition, thread, _) in enumerate(made):
            try:
                self._client.create(self._owner(topic, partition), thread.encode(), ephemeral=True, makepath=True)
            except NodeExistsError:  # its owner has not let go yet
                for taken in made[:number]:
                    self._delete(self._owner(taken[0], taken[1]))
                return False
        with self._lock:
            for topic, partition, _, offset in made:
                self.positions[topic, partition] = offset
                self.begun.append((topic, partition, offset))
        return True

    def _owner(self, topic: str, partition: str) -> str:
        return f"{self._root}/owners/{topic}/{partition}"

    def _children(self, path: str) -> list[str]:
        try:
            return list(self._client.get_children(path))
        except NoNodeError:
            return []

    def _data(self, path: str) -> str | None:
        try:
            return str(self._client.get(path)[0].decode())
        except NoNodeError:
            return None

    def _delete(self, path: str) -> None:
        try:
            self._client.delete(path)
        except NoNodeError:
            return


def streams_of(text: str, topics: list[str]) -> dict[str, int]:
    """How many streams a member has of each topic, by what its node says."""
    wildcard = re.fullmatch(r"([*!])(\d+)\1(.*)", text)
    if wildcard is None:
        return {topic: int(count) for topic, count in json.loads(text).items()}
    mark, count, pattern = wildcard.groups()
    return {topic: int(count) for topic in topics if (re.fullmatch(pattern, topic) is not None) == (mark == "*")}
