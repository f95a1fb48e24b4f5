"""The requests of today's protocol, at which versions they are served, and what each that a processor answers needs.

| request | operation | on each topic it names |
|---|---|---|
| API_VERSIONS | none | it names none |
| PRODUCE | WRITE | |
| FETCH | READ | |
| LIST_OFFSETS | DESCRIBE | |
| METADATA | DESCRIBE | and CREATE, where the topic is to be made; of all, what may not be described is left out |

Source: the schemas of Apache Kafka 4.2 for versions and for the first one of each with tagged fields ("flexible").
Later versions than these bring behaviour that is not served.
"""

from __future__ import annotations

from typing import NamedTuple

from fastlog.workers.authorization import Operation


class Api(NamedTuple):
    """One request kind: the versions that ApiVersions lists, the first one served, and the first flexible one."""

    name: str
    first: int
    served: int
    last: int
    flexible: int
    operation: Operation | None


PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18

APIS: dict[int, Api] = {
    # listed from 0 on: else librdkafka before 2.11.1 takes it that the broker knows no compression, and uses none
    PRODUCE: Api("Produce", 0, 3, 11, 9, Operation.WRITE),
    FETCH: Api("Fetch", 4, 4, 16, 12, Operation.READ),
    LIST_OFFSETS: Api("ListOffsets", 1, 1, 9, 6, Operation.DESCRIBE),
    METADATA: Api("Metadata", 0, 0, 12, 9, Operation.DESCRIBE),
    API_VERSIONS: Api("ApiVersions", 0, 0, 4, 3, None),
}
"""By api key. The connection closes on a key, or a version, that is not here; but for API_VERSIONS, which says so."""


FORWARDED: dict[int, Api] = {
    8: Api("OffsetCommit", 2, 2, 9, 8, None),
    9: Api("OffsetFetch", 1, 1, 8, 6, None),
    10: Api("FindCoordinator", 0, 0, 4, 3, None),
    11: Api("JoinGroup", 0, 0, 9, 6, None),
    12: Api("Heartbeat", 0, 0, 4, 4, None),
    13: Api("LeaveGroup", 0, 0, 5, 4, None),
    14: Api("SyncGroup", 0, 0, 5, 4, None),
    15: Api("DescribeGroups", 0, 0, 5, 5, None),
    16: Api("ListGroups", 0, 0, 4, 3, None),
    19: Api("CreateTopics", 2, 2, 7, 5, None),
    20: Api("DeleteTopics", 1, 1, 6, 4, None),
    21: Api("DeleteRecords", 0, 0, 2, 2, None),
    22: Api("InitProducerId", 0, 0, 4, 2, None),
    23: Api("OffsetForLeaderEpoch", 2, 2, 4, 4, None),
    32: Api("DescribeConfigs", 1, 1, 4, 4, None),
    33: Api("AlterConfigs", 0, 0, 2, 2, None),
    35: Api("DescribeLogDirs", 1, 1, 4, 2, None),
    37: Api("CreatePartitions", 0, 0, 3, 2, None),
    42: Api("DeleteGroups", 0, 0, 2, 2, None),
    44: Api("IncrementalAlterConfigs", 0, 0, 1, 1, None),
    47: Api("OffsetDelete", 0, 0, 0, 127, None),
    60: Api("DescribeCluster", 0, 0, 1, 0, None),
}
"""What the coordinator answers, which looks up the operation itself: by api key. No key is in both tables."""


def offered() -> dict[int, tuple[int, int]]:
    """The versions that ApiVersions lists, by api key."""
    return {key: (api.first, api.last) for key, api in sorted((APIS | FORWARDED).items())}
