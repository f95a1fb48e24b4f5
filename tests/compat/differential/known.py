"""Where fastlog's answers are meant to be others than Apache Kafka's, and why; ``docs/kafka.md`` has the same reasons.

A pattern has ``*`` for anything and ``|`` between alternatives. A field is named by its place in the answer, with
``[]`` for any element of a list.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Pattern(NamedTuple):
    """Differences: of which requests, in which case, at which field, and what each of the two says."""

    request: str
    case: str
    field: str = "*"
    kafka: str = "*"
    ours: str = "*"

    def fits(self, *found: str) -> bool:
        """Whether a difference, as the same five words, is one of these."""
        return all(_fits(pattern, text) for pattern, text in zip(self, found, strict=True))


class Known(NamedTuple):
    """Differences that are meant, for one reason; ``about`` is what the documentation calls them."""

    about: str
    reason: str
    patterns: tuple[Pattern, ...]


def _fits(pattern: str, text: str) -> bool:
    parts = [re.escape(each).replace(r"\*", ".*") for each in pattern.split("|")]
    return re.fullmatch("|".join(parts), text, re.DOTALL) is not None


KNOWN = (
    Known(
        "ApiVersions: fewer requests, lower versions, no features",
        "what is not served is not offered: transactions, sessions of the new group protocol, share groups,"
        " and versions that"
        " bring these",
        (Pattern("ApiVersions", "good|recorded*", "api_keys[]|api_keys[].max_version|*_features[]"),),
    ),
    Known(
        "ApiVersions: a client's name that is empty or has other signs than Kafka allows",
        "nothing is done with it here, so that it is no reason to turn a client away (42 in Kafka)",
        (Pattern("ApiVersions", "client_software_*", "*", "is not there|42*"),),
    ),
    Known(
        "every request: the same topic or partition twice",
        "each is answered as often as it is named; Kafka answers once, or with 42. No client does it",
        (Pattern("*", "*twice"),),
    ),
    Known(
        "Produce, Fetch, ListOffsets, OffsetCommit, OffsetDelete, DeleteRecords: a topic without partitions",
        "it is in the answer, without partitions; Kafka leaves it out",
        (Pattern("*", "*partitions: none|*partition_data: none", "*[]", "is not there"),),
    ),
    Known(
        "Produce, Fetch, ListOffsets: a name that no topic can have",
        "error 17, as Metadata says; Kafka says 3, which clients try again",
        (
            Pattern(
                "Produce|Fetch|ListOffsets",
                "*name: *|*topic: *",
                "*error_code",
                "3 unknown*",
                "17 invalid_topic_exception",
            ),
        ),
    ),
    Known(
        "Fetch: aborted transactions beside an error",
        "null, as there are none; Kafka has an empty list, of which clients make the same",
        (Pattern("Fetch", "*", "*aborted_transactions", "is there*|[]|{}", "None"),),
    ),
    Known(
        "Fetch, ListOffsets: an isolation level that does not exist",
        "taken for read uncommitted; Kafka has no answer but error -1",
        (Pattern("Fetch|ListOffsets", "isolation_level: *"),),
    ),
    Known(
        "Fetch: limits below 0",
        "taken for 0, which is one batch as a whole; Kafka has no answer but error -1",
        (Pattern("Fetch", "max_bytes: -1|*partition_max_bytes: -1"),),
    ),
    Known(
        "Fetch: sessions",
        "none is made: [session 0](#fetching) each time, a request with any other gets 70, and the epoch of"
        " a session is not"
        " looked at",
        (Pattern("Fetch", "session_*"), Pattern("Fetch", "recorded*", "session_id", "an id", "0")),
    ),
    Known(
        "Fetch: a request of a replica",
        "there are no replicas; it is answered as one of a client. Kafka says 6 to a replica that it does not have",
        (Pattern("Fetch", "replica_id: *|replica_state.replica_id: *"),),
    ),
    Known(
        "Fetch: an epoch of the last record beyond the current one",
        "not looked at: consumers leave it at -1; it is for replicas that have to cut their log",
        (Pattern("Fetch", "*last_fetched_epoch: *"),),
    ),
    Known(
        "ListOffsets: what stands for a time, before the version that brought it, or unknown",
        "-3, -4 and -5 are answered in each version, and what is none gets 42; Kafka says 35 to both",
        (Pattern("ListOffsets", "*timestamp: -*", "*", "35*|-1", "*"),),
    ),
    Known(
        "ListOffsets: the leader epoch of the earliest offset",
        "-1, which is what older logs have in Kafka too: it would have to be read from a file, and clients"
        " only compare it"
        " where it is known",
        (Pattern("ListOffsets", "*timestamp: -2|*timestamp: -4|recorded*", "*leader_epoch", "0", "-1"),),
    ),
    Known(
        "ListOffsets: a current leader epoch below -1",
        "taken for none given, as -1 is; Kafka says 74",
        (Pattern("ListOffsets", "*current_leader_epoch: -2"),),
    ),
    Known(
        "Metadata: a topic that is made because it is asked for",
        "there when the answer comes; Kafka says 3 or 5 first, and clients ask again",
        (Pattern("Metadata", "topics.name: 'absent'", "*", "3 unknown*|is not there"),),
    ),
    Known(
        "Metadata: ids before version 12, and names and ids in one request",
        "each topic is answered by itself, with 35 where ids are not known yet; Kafka refuses the request as"
        " a whole with 42",
        (Pattern("Metadata", "topics.name: None|topics.topic_id: *"),),
    ),
    Known(
        "Metadata, DescribeCluster, DescribeGroups: allowed operations",
        "those that exist here; not the ones between brokers (512), and of groups not those on settings of groups"
        " (1024, 2048)",
        (Pattern("Metadata|DescribeCluster|DescribeGroups", "include_*", "*operations", "8096|3400", "7584|328"),),
    ),
    Known(
        "Produce: acks of -2",
        "[batches of another log](#records-of-another-log); Kafka knows no such acks (21)",
        (Pattern("Produce", "acks: -2", "*base_offset|*error_code|*log_start_offset"),),
    ),
    Known(
        "Produce: a transactional id, or a transactional batch",
        "there are no transactions: 53, and 87 for the batch. FindCoordinator and InitProducerId say 53 too",
        (
            Pattern("Produce", "transactional_id: *|*a transactional batch"),
            Pattern("FindCoordinator", "key_type: 1", "*", "*", "53*|is*|-1||None"),
            Pattern("InitProducerId", "transactional_id: 'an-id'"),
        ),
    ),
    Known(
        "Produce: a base offset in a batch",
        "replaced, whatever it is; Kafka refuses one that is not 0 with 87",
        (Pattern("Produce", "*records: a base offset"),),
    ),
    Known(
        "Produce: bytes behind a batch, a part of a batch",
        "error 2, which is tried again, as for other damage on the way; Kafka stores the first, and says 87"
        " to the second",
        (Pattern("Produce", "*records: a byte behind|*records: a part of a batch|*records: half a head"),),
    ),
    Known(
        "Produce: negative times, log append times, producers below -1 or without epoch or number",
        "refused (32, 87), as no client sends them and readers differ in what they make of them; Kafka"
        " stores what is there",
        (
            Pattern("Produce", "*records: a negative time|*records: log append time"),
            Pattern("Produce", "*records: a producer*"),
        ),
    ),
    Known(
        "Produce: a codec that does not exist, compressed bytes that are none, another magic",
        "87, which no client tries again; Kafka says -1 or 2",
        (Pattern("Produce", "*records: codec 5|*records: * that is none|*records: magic 3"),),
    ),
    Known(
        "Produce: the log start beside an error",
        "-1; Kafka has it beside some errors, and no client looks at it there",
        (Pattern("Produce", "*records: *", "*log_start_offset", "0", "-1"),),
    ),
    Known(
        "OffsetCommit 9: a generation of a group that is not there",
        "22 as in the versions before; Kafka says 69, which clients of the new group protocol are for",
        (Pattern("OffsetCommit", "group_id: *", "*error_code", "69*", "22*"),),
    ),
    Known(
        "OffsetDelete: an empty group name",
        "69, as there is no such group; Kafka says 24",
        (Pattern("OffsetDelete", "group_id: ''", "error_code", "24*", "69*"),),
    ),
    Known(
        "JoinGroup: what a consumer says of itself is no subscription, or a protocol is named twice",
        "what members say is theirs, and is not read; Kafka reads it of consumers and says -1, or never"
        " answers a new member",
        (Pattern("JoinGroup", "*metadata: b'no subscription'"),),
    ),
    Known(
        "JoinGroup: a protocol without a name",
        "the answer has the empty name; Kafka has null",
        (Pattern("JoinGroup", "protocols.name: ''", "protocol_name", "None", ""),),
    ),
    Known(
        "CreateTopics: names that begin with `__`",
        "they are the broker's own: 17",
        (Pattern("CreateTopics", "topics.name: '__*'", "topics[].*", "*", "17*|is*|-1|None"),),
    ),
    Known(
        "CreateTopics: the id of a topic that is only validated",
        "none, as it is not made; Kafka has one that no topic ever gets",
        (Pattern("CreateTopics", "validate_only: True", "topics[].topic_id", "an id", "None"),),
    ),
    Known(
        "CreateTopics, DescribeConfigs: which settings a topic has, and their defaults",
        "[the table](#settings-of-a-topic): those of tiered storage, replication and compression levels are"
        " not there, and"
        " `flush.messages` and `flush.ms` are the broker's, which flushes",
        (
            Pattern(
                "CreateTopics", "*", "topics[].configs[]|topics[].configs[].value|topics[].configs[].config_source"
            ),
            Pattern(
                "DescribeConfigs",
                "*configuration_keys: *",
                "results[].configs[]|results[].configs[].value|*config_source",
            ),
        ),
    ),
    Known(
        "DescribeConfigs: synonyms",
        "one, the value that holds; Kafka names the broker's setting too, which has another name here",
        (Pattern("DescribeConfigs", "include_synonyms: True", "*synonyms[]*"),),
    ),
    Known(
        "DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of groups and of client metrics",
        "there are none: 42",
        (Pattern("DescribeConfigs|*AlterConfigs", "*resource_type: 16|*resource_type: 32"),),
    ),
    Known(
        "IncrementalAlterConfigs: an operation that does not exist",
        "42; Kafka says -1, or never answers",
        (Pattern("IncrementalAlterConfigs", "*config_operation: *"),),
    ),
    Known(
        "CreatePartitions: 2³¹ − 1 partitions",
        "37; Kafka's controller runs out of memory for them, and says -1",
        (Pattern("CreatePartitions", "*count: 2147483647"),),
    ),
)


def rows() -> list[str]:
    """The table of ``docs/kafka.md``."""
    return [f"| {known.about} | {known.reason} |" for known in KNOWN]
