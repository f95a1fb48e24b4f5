"""Puts requests to both and collects where their answers differ."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from fastlog.workers.kafka import kinds
from tests.compat.differential.cases import Case
from tests.compat.differential.target import Answer, Difference, Target, differences
from tests.harness import today

API = {key: api.name for key, api in (kinds.APIS | kinds.FORWARDED).items()}
WARM_SECONDS = 120.0
LATE_SECONDS = 1.0
"""Kafka shows a topic that a request has just made, or deleted, a little later."""
METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID, OFFSET_COMMIT = 3, 10, 22, 8


class Found(NamedTuple):
    """A difference, but for the version of the request."""

    request: str
    case: str
    field: str
    kafka: str
    ours: str


Findings = dict[Found, list[int]]
"""With the versions that have it."""


def warm(target: Target) -> None:
    """Return when groups and producer ids are answered: Kafka makes their topics at the first request."""
    until = time.monotonic() + WARM_SECONDS
    row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    commit = {"group_id": "warm", **member, "topics": [{"name": "full", "partitions": [row]}]}
    producer = {
        "transactional_id": None,
        "transaction_timeout": today.seconds(60),
        "producer_id": -1,
        "producer_epoch": -1,
    }
    while True:
        found = target.asked(FIND_COORDINATOR, 3, {"key": "warm", "key_type": 0}).error_code
        found = found or target.asked(OFFSET_COMMIT, 7, commit).topics[0].partitions[0].error_code
        found = found or target.asked(INIT_PRODUCER_ID, 4, producer).error_code
        if not found:
            return
        assert time.monotonic() < until, (target.name, found)
        time.sleep(0.1)


def compare(pair: tuple[Target, Target], cases: Iterable[Case]) -> tuple[int, Findings]:
    """How many requests were put to both, and what differs."""
    found: Findings = {}
    count = 0
    for case in cases:
        count += 1
        kafka, ours = (_answer(target, case) for target in pair)
        more = list(differences(kafka, ours))
        until = time.monotonic() + LATE_SECONDS
        while case.key == METADATA and any(one.field == "topics[]" for one in more) and time.monotonic() < until:
            time.sleep(0.1)
            kafka, ours = (target.answer(case.key, case.version, case.fields) for target in pair)
            more = list(differences(kafka, ours))
        note(found, case, more)
    return count, found


def note(found: Findings, case: Case, more: Iterable[Difference]) -> None:
    """Add what differs in the answers to one request."""
    for one in more:
        name = Found(API[case.key], case.label, one.field, str(one.kafka), str(one.ours))
        versions = found.setdefault(name, [])
        if case.version not in versions:
            versions.append(case.version)


def _answer(target: Target, case: Case) -> Answer:
    try:
        case.prepare(target)
    except (AssertionError, OSError, EOFError) as error:
        target.close()
        return {"answer": f"cannot be prepared: {type(error).__name__}"}
    return target.answer(case.key, case.version, case.fields)
