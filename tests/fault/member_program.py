"""A member of a group that writes down what it was given and what it has saved, before it goes on.

Each line of its diary is a JSON list, written at once: an interrupted one at the end was not written. Times are those
of CLOCK_BOOTTIME, the same in all processes; the first is from before the call, the second from after it:

- ``["given", asked, got, claim, partition, offset, payload]``, ``claim`` counting the times that it got a partition
- ``["saved", asked, done, partition, offset]``, by a commit of its own that changed something
- ``["seen", asked, done, partition, offset]``, what was committed by itself
- ``["refused", asked, done, error]``, for a commit
- ``["left", asked, done]``
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import random
import signal
import sys
import threading
from typing import Any

import fastlog
from fastlog.consumer._delivery import GroupMessage, Place
from fastlog.consumer.partitions import Lease, TopicPartition
from fastlog.errors import CoordinationError, OwnershipLostError
from tests.harness.groups import GROUP

CONNECT_MS = 60_000
"""A program that starts beside many others comes late to its first session, which is so short."""
COMMIT_SECONDS = 0.1
POLL_SECONDS = 0.02
_RETRY_SECONDS = 0.2


class Member:
    """One consumer, with its diary."""

    def __init__(self, told: dict[str, Any], is_leaving: threading.Event) -> None:
        self._is_leaving = is_leaving
        self._diary = os.open(told["diary"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._source = random.Random(told["seed"])
        self._commits_itself = bool(told["commits_itself"])
        if told["is_broker"]:
            where = {"brokers": told["connect"], "session_timeout_ms": told["session_ms"], "metadata_max_age_ms": 200}
        else:
            where = {"zk_connect": told["connect"], "zk_session_timeout_ms": told["session_ms"]}
        self._consumer = fastlog.Consumer(
            group_id=GROUP,
            consumer_id=told["name"],
            **where,
            zk_connection_timeout_ms=CONNECT_MS,
            zk_sync_time_ms=500,
            auto_commit=not self._commits_itself,
            auto_commit_interval_ms=int(COMMIT_SECONDS * 1000),
            fetcher_backoff_ms=int(_RETRY_SECONDS * 1000),
            local=told["local"],
        )
        self._pattern = told["topics"]
        self._claims: dict[Place, int] = {}
        self._seen: dict[TopicPartition, int] = {}

    def run(self) -> None:
        """Read and save until it is told to leave."""
        (stream,) = self._consumer.create_message_streams_by_filter(whitelist=self._pattern)
        commit_due = Lease.now()
        while not self._is_leaving.is_set():
            asked = Lease.now()
            message = stream.poll(POLL_SECONDS)
            got = Lease.now()
            if isinstance(message, GroupMessage):
                claim = self._claims.setdefault(message.place, len(self._claims))
                source = str(message.source)
                self._note("given", asked, got, claim, source, message.offset, message.payload.decode("latin-1"))
            if got >= commit_due:
                self._save()
                commit_due = Lease.now() + COMMIT_SECONDS
        asked = Lease.now()
        self._consumer.shutdown()
        self._note("left", asked, Lease.now())

    def _save(self) -> None:
        """Commit, or see what was committed by itself."""
        asked = Lease.now()
        if not self._commits_itself:
            for partition, offset in self._consumer.committed.items():
                if self._seen.get(partition) != offset:
                    self._seen[partition] = offset
                    self._note("seen", asked, Lease.now(), str(partition), offset)
            return
        found = self._consumer.offsets
        before = self._consumer.committed
        try:
            self._consumer.commit_offsets(found if self._source.random() < 0.5 else None)
        except (OwnershipLostError, CoordinationError) as error:
            self._note("refused", asked, Lease.now(), f"{type(error).__name__}: {error}")
            return  # some may be saved; that is not counted on
        for partition, offset in found.items():
            if before.get(partition) != offset:
                self._note("saved", asked, Lease.now(), str(partition), offset)

    def _note(self, *words: object) -> None:
        os.write(self._diary, json.dumps(words).encode() + b"\n")


def main() -> int:
    """Run the member that the first argument describes; SIGTERM lets it leave in order."""
    faulthandler.enable()
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    is_leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_leaving.set())  # before there is a diary: who has one leaves in order
    Member(json.loads(sys.argv[1]), is_leaving).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
