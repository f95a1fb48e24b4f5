"""The families of ``/metrics`` that are one number each: of a counter, or of each partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastlog.log._arena import STATE_OFFLINE
from fastlog.log.formats import FORMATS, format_name
from fastlog.log.slots import SlotView
from fastlog.workers.exposition import labels


def appended_bytes(view: SlotView) -> int:
    """An offset that is a position goes on over restarts and reuse of slots; that of a dense format counts messages."""
    name = format_name(view.format)
    return view.log_end if name is None or FORMATS[name].is_dense else view.log_offset


# A family and its samples: the counters of the arena that all processes add up to, and their labels.
COUNTED: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("kafka_server_brokertopicmetrics_bytesout_total", "Message bytes put into answers.", {"": "bytes_out"}),
    (
        "kafka_server_brokertopicmetrics_totalproducerequests_total",
        "Requests that produce, of Kafka 0.7 and of fastlog.",
        {"": "produce_requests"},
    ),
    (
        "kafka_server_brokertopicmetrics_failedproducerequests_total",
        "Parts of produce requests that were refused or failed.",
        {"": "failed_produce_requests"},
    ),
    (
        "kafka_server_brokertopicmetrics_totalfetchrequests_total",
        "Requests FETCH and MULTIFETCH; long polls are in fastlog_requests_total, as own.",
        {"": "fetch_requests"},
    ),
    (
        "kafka_server_brokertopicmetrics_failedfetchrequests_total",
        "Parts of fetch requests that were refused or failed.",
        {"": "failed_fetch_requests"},
    ),
    (
        "fastlog_requests_total",
        "Requests begun; own are those of fastlog, kafka those of today's protocol. Produces, fetches and offsets among"
        " them are counted as such too.",
        {labels(kind=kind): f"{kind}_requests" for kind in ("produce", "fetch", "offsets", "own", "kafka")},
    ),
    (
        "fastlog_failed_requests_total",
        "Parts of requests that were refused or failed.",
        {labels(kind=kind): f"failed_{kind}_requests" for kind in ("produce", "fetch")},
    ),
    ("fastlog_invalid_requests_total", "Requests that are malformed.", {"": "invalid_requests"}),
    ("fastlog_unsupported_clients_total", "Clients of a protocol that is not served.", {"": "protocol_strangers"}),
    (
        "fastlog_refused_messages_total",
        "Message sets refused for what is in them.",
        {labels(reason="too_large"): "too_large_messages", labels(reason="invalid"): "invalid_messages"},
    ),
    (
        "fastlog_suspicious_messages_total",
        "Stored messages without a codec that begin like compressed data.",
        {"": "suspicious_messages"},
    ),
    ("fastlog_received_bytes_total", "Bytes received on sockets of clients.", {"": "received_bytes"}),
    ("fastlog_sent_bytes_total", "Bytes sent on sockets of clients.", {"": "sent_bytes"}),
    ("fastlog_accepted_connections_total", "Connections handed to processors.", {"": "handovers"}),
    (
        "fastlog_refused_connections_total",
        "Connections closed at once, at the limit or because nobody could take them.",
        {"": "refused_connections"},
    ),
    ("fastlog_accept_pauses_total", "Pauses of the acceptor for want of descriptors.", {"": "accept_pauses"}),
    (
        "fastlog_closed_connections_total",
        "Connections that the broker closed: idle ones, and those to which an answer could not be sent whole.",
        {labels(reason="idle"): "idle_closed", labels(reason="short_send"): "short_sends_closed"},
    ),
    (
        "fastlog_numbered_batches_total",
        "Batches of idempotent producers that were not appended: the log had them, or one before them is missing.",
        {labels(reason="duplicate"): "duplicate_batches", labels(reason="sequence"): "out_of_sequence_batches"},
    ),
    (
        "fastlog_producers_forgotten_early_total",
        "Idempotent producers whose state gave way to others within two minutes of their last batch, for want of room.",
        {"": "producers_forgotten_early"},
    ),
    ("fastlog_appends_total", "Calls that wrote something to a log.", {"": "appends"}),
    (
        "fastlog_append_waits_total",
        "Produces that waited: for the append lock, or because too much is not flushed.",
        {labels(reason="lock"): "lock_waits", labels(reason="unflushed"): "append_waits"},
    ),
    ("fastlog_over_budget_waits_total", "Reads put off for want of memory for requests.", {"": "over_budget_waits"}),
    ("fastlog_held_fetches_total", "Fetches held until there was something to answer.", {"": "held_fetches"}),
    (
        "fastlog_fetch_looks_total",
        "Looks of today's fetches at partitions: for the records that each asks for, and again when it has moved.",
        {"": "fetch_looks"},
    ),
    ("fastlog_reads_ahead_total", "Fetches whose first bytes were not in memory.", {"": "read_ahead"}),
    ("fastlog_read_failures_total", "Reads of a log that failed.", {"": "read_failures"}),
    (
        "fastlog_decompressed_off_loop_total",
        "Message sets given to the thread that decompresses.",
        {"": "inflated_off_loop"},
    ),
    ("fastlog_rolls_total", "Segments begun.", {"": "rolls"}),
    ("fastlog_repairs_total", "Append locks taken over from a process that died.", {"": "repairs"}),
    ("fastlog_flushed_bytes_total", "Bytes made durable.", {"": "flushed_bytes"}),
    ("fastlog_flush_failures_total", "Partitions that a failed flush put out of service.", {"": "flush_failures"}),
    (
        "fastlog_postponed_flushes_total",
        "Flushes put off: for want of room on a disk, of files or memory.",
        {labels(reason="room"): "flushes_without_room", labels(reason="files"): "flushes_without_files"},
    ),
    ("fastlog_rewritten_bytes_total", "Bytes written again after a flusher died.", {"": "rewritten_bytes"}),
)
ZOOKEEPER = (
    ("fastlog_zookeeper_sessions_total", "Sessions with ZooKeeper begun.", "zookeeper_sessions"),
    ("fastlog_zookeeper_registrations_total", "Times this broker's node was made.", "zookeeper_registrations"),
    ("fastlog_zookeeper_failures_total", "Tries that ZooKeeper refused or did not answer.", "zookeeper_failures"),
)

# A family for each partition, and what its sample is of.
OF_PARTITION: tuple[tuple[str, str, str, Callable[[SlotView, int, int], int]], ...] = (
    (
        "kafka_topic_partition_current_offset",
        "gauge",
        "Offset up to which consumers read.",
        lambda view, start, broker: view.visible_offset,
    ),
    (
        "kafka_topic_partition_oldest_offset",
        "gauge",
        "Oldest offset that is still held.",
        lambda view, start, broker: view.log_start,
    ),
    (
        "kafka_topic_partition_leader",
        "gauge",
        "Id of this broker; -1 while the partition is offline.",
        lambda view, start, broker: -1 if view.state & STATE_OFFLINE else broker,
    ),
    (
        "kafka_topic_partition_leader_is_preferred",
        "gauge",
        "1; 0 while the partition is offline.",
        lambda view, start, broker: 0 if view.state & STATE_OFFLINE else 1,
    ),
    ("kafka_topic_partition_replicas", "gauge", "1: there is one copy.", lambda view, start, broker: 1),
    ("kafka_topic_partition_in_sync_replica", "gauge", "1: there is one copy.", lambda view, start, broker: 1),
    (
        "kafka_topic_partition_under_replicated_partition",
        "gauge",
        "0: there is one copy.",
        lambda view, start, broker: 0,
    ),
    (
        "kafka_log_log_logstartoffset",
        "gauge",
        "Oldest offset that is still held.",
        lambda view, start, broker: view.log_start,
    ),
    (
        "kafka_log_log_logendoffset",
        "gauge",
        "Offset of the next message appended.",
        lambda view, start, broker: view.log_offset,
    ),
    (
        "kafka_log_log_size",
        "gauge",
        "Bytes in the segments of the partition.",
        lambda view, start, broker: max(0, view.log_end - start),
    ),
    (
        "kafka_log_log_numlogsegments",
        "gauge",
        "Segments of the partition.",
        lambda view, start, broker: view.table_tail - view.table_head,
    ),
    (
        "fastlog_partition_appended_messages_total",
        "counter",
        "Messages appended since the start, or since it came back into service.",
        lambda view, start, broker: view.appended_messages,
    ),
    (
        "fastlog_partition_appended_bytes_total",
        "counter",
        "Bytes appended, with those of earlier starts.",
        lambda view, start, broker: appended_bytes(view),
    ),
    (
        "fastlog_partition_unflushed_bytes",
        "gauge",
        "Bytes appended and not flushed.",
        lambda view, start, broker: view.log_end - view.flushed_end,
    ),
)
