"""Which tests answer for which sources: a bug in an area must be caught by the area's own tests, not by luck far away.

Tests are patterns below ``tests/``, the quick ones first: most bugs die there, and the brokers of the others are not
started for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.harness.checkout import ROOT


@dataclass(frozen=True)
class Area:
    """Sources (files, or folders with a slash behind them) and the patterns of their tests."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]

    def owns(self, path: str) -> bool:
        """Whether the source file belongs here; ``path`` is relative to the checkout."""
        return any(path == source or (source.endswith("/") and path.startswith(source)) for source in self.sources)

    def test_files(self) -> list[str]:
        """The test files, in the order in which they are to run, each once.

        Raises:
            ValueError: a pattern fits no file, so the table is older than the tests.
        """
        found: dict[str, None] = {}
        for pattern in self.tests:
            paths = sorted((ROOT / "tests").glob(pattern))
            if not paths:
                raise ValueError(f"area {self.name}: no test fits {pattern}")
            found.update(dict.fromkeys(str(path.relative_to(ROOT)) for path in paths))
        return list(found)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _unit(names: str) -> tuple[str, ...]:
    return tuple(f"unit/test_{name}.py" for name in names.split())


def _integration(names: str) -> tuple[str, ...]:
    return tuple(f"integration/test_{name}.py" for name in names.split())


def _fault(names: str) -> tuple[str, ...]:
    return tuple(f"fault/test_{name}.py" for name in names.split())


AREAS = (
    Area(
        "log",
        _words("fastlog/log/ fastlog/segment_files.py"),
        _unit("append arena producers producer_snapshots c_memory clean_marker creators deletion flush flush_marks"
              " flushed_mark formats fsck hostile_links manager meta_properties named_points offsets parallel recovery"
              " recovery_many retention segment_files segments quarantine side_file* file_errors flusher_directories"
              " keeper lives log_*"
              " record_batch_log record_batch_deep batches_power_loss recoveries")
        + _integration("toy_format")
        + _fault("flush_failures disk_errors every_call descriptors damage backpressure shared_log kills deletions"
                 " returns delete_records"),
    ),
    Area(
        "workers",
        _words("fastlog/workers/"),
        _unit("answers producer_states log_starts log_entry_starts answer_memory services unreadable health"
              " http_server keeper workers_boundaries stalls loop logs given_back wakeups request_bytes counts"
              " worker_limits wait_order queues turns offsets_answers"
              " flusher_directories worker_start kernel_words life_after_errors authorization handover deletion lives"
              " second_protocol metrics group_metrics group_report internal_log recoveries slot_waits c_memory forward"
              " coordinator* kafka_* kafka07_records answers_like_kafka")
        + _integration("wire wire_answers wire_bad_input wire_flush wire_needs wire_own wire_streams connections"
                       " greedy_clients broker_log fuzz_requests monitor metrics access handover advertised"
                       " delete kafka_clients kafka_old_topics kafka_java foreign_formats batch_lookup coordinator"
                       " kafka_groups kafka_listeners idempotent_clients")
        + _fault("backpressure disk_errors every_call flush_failures descriptors memory refused_memory"
                 " idle_cost lock_holder kills stop connects deletions returns batch_kills coordinators idempotent day"
                 " today_requests coordinator_groups group_members delete_records bridge"),
    ),
    Area(
        "moving",
        _words("fastlog/moving/ fastlog/tools/import_kafka.py fastlog/tools/export_kafka.py"
               " fastlog/tools/moving_report.py"),
        _unit("moving_*") + _integration("moving_house"),
    ),
    Area(
        "processes",
        _words("fastlog/supervisor.py fastlog/acceptor.py fastlog/broker.py fastlog/binding.py fastlog/listening.py"
               " fastlog/service_manager.py"),
        _unit("acceptor service_manager supervisor* broker_start worker_start binding config setting_limits stalls")
        + _integration("connections access logging")
        + _fault("kills stop stop_in_trouble lock_holder idle_cost every_call stalls returns"),
    ),
    Area(
        "settings",
        _words("fastlog/config.py fastlog/broker_settings.py fastlog/settings.py fastlog/_broker_main.py"
               " fastlog/clock.py fastlog/durability.py"
               " fastlog/installation.py fastlog/topics.py fastlog/logs.py fastlog/escaping.py fastlog/retry.py"
               " fastlog/limited_log.py"),
        _unit("config setting_limits topics logs standard_error escaping installation") + _integration("testing"),
    ),
    Area(
        "wire",
        _words("fastlog/wire/ fastlog/zkpaths.py fastlog/_segment.pyx fastlog/_segment.pxd fastlog/_batch.pyx"
               " fastlog/_batch.pxd fastlog/_crc.pyx fastlog/_crc32c.pyx fastlog/_crc_fold.h fastlog/message.py"
               " fastlog/codecs.py fastlog/_envelope.pyx fastlog/_envelope.pxd fastlog/envelope.py"),
        _unit("wire_requests wire_responses wire_limits zkpaths segment segment_cuts batch crc crc32c message"
              " message_spans codecs envelope"),
    ),
    Area(
        "batches",
        _words("fastlog/_records.pyx fastlog/_records.pxd fastlog/_frames.pyx fastlog/_deep_batch.pyx"
               " fastlog/_record_batch.pyx fastlog/_record_batch.pxd fastlog/_upconvert.pyx"
               " fastlog/batch_codecs.py fastlog/record_batches.py"),
        _unit("records record_batch_reader record_batches batch_codecs deep_batch batches_of_clients c_memory"
              " upconvert")
        + _integration("batch_bombs") + _fault("batches"),
    ),
    Area(
        "producer",
        _words("fastlog/producer/ fastlog/loghandler.py fastlog/metrics/ fastlog/tracing.py"),
        _unit("produc* publisher tracing loghandler client_metrics partitioners stamp sync_producer* errors arguments"
              " wall_clock")
        + _integration("producer* record_producers record_sending loghandler client_metrics")
        + _fault("exits interrupts overload"),
    ),
    Area(
        "consumer",
        _words("fastlog/consumer/ fastlog/scanning/"),
        _unit("assignment arguments broker_groups* consumer* delivery fetching* group* simple_consumer* stream_client"
              " driving patterns scan_columns")
        + _integration("simple_consumer record_consumers local_read group group_reading group_outages group_shared"
                       " broker_groups scan*")
        + _fault("groups broker_groups exactly_once"),
    ),
    Area(
        "aio",
        _words("fastlog/aio/"),
        _unit("aio* producer_record_calls") + _integration("aio"),
    ),
    Area(
        "coordination",
        _words("fastlog/coordination/"),
        _unit("coordination* fake_session group group_sessions") + _integration("zookeeper"),
    ),
    Area(
        "client",
        _words("fastlog/client/ fastlog/registry.py"),
        _unit("buffers client_* group_requests inbox record_topics record_fetching slices registry* fetching* topics")
        + _integration("registration advertised broker_groups record_commands") + _fault("registration hostile_broker"),
    ),
    Area(
        "mirror",
        _words("fastlog/mirror/"),
        _unit("mirror*")
        + _integration("mirror record_mirror record_mirror_leaders record_mirror_kafka sequence_wrap")
        + _fault("mirrors record_mirrors"),
    ),
    Area(
        "audit",
        _words("fastlog/audit/"),
        _unit("audit* tally c_memory producer_audit") + _integration("audit") + _fault("audit"),
    ),
    Area(
        "spark",
        _words("fastlog/spark/"),
        _unit("spark*")
        + _integration("spark_records spark_batch spark_planning spark_load spark_sink spark_stream spark_jobs")
        + _integration("spark_record_sink spark_record_queries spark_object_store spark_store_faults"
                       " spark_load_columns spark_late")
        + _fault("upkeep"),
    ),
    Area(
        "doctor",
        _words("fastlog/tools/doctor.py fastlog/tools/doctor_machine.py fastlog/tools/doctor_network.py"
               " fastlog/tools/findings.py"),
        _integration("doctor"),
    ),
    Area(
        "tools",
        _words("fastlog/tools/"),
        _unit("tools* record_forms record_appending dump_log fsck group_view forget_broker produce_consume config"
              " mirror_config")
        + _integration("cli dump_load dump_records tail_replay replay_topics group_tools tools_plain tools_of_0_7"
                       " consume_groups broker_group_tools record_commands commands_zookeeper zookeeper_command audit"
                       " selftest logging top"),
    ),
    Area(
        "perf",
        _words("fastlog/perf/ perf/figures/ perf/compare/ perf/report/ perf/beside_kafka/"),
        _unit("perf* beside_kafka tools_unacknowledged")
        + _integration("beside_kafka beside_kafka_paced perf_tools replay"),
    ),
    Area(
        "testing",
        _words("fastlog/testing/ fastlog/pytest_plugin.py fastlog/zkserver/"),
        _unit("java") + _integration("testing testing_page zookeeper"),
    ),
    Area(
        "ground",
        _words("fastlog/arguments.py fastlog/broker_settings.py fastlog/clock.py fastlog/config.py"
               " fastlog/counts.py fastlog/durability.py fastlog/errors.py fastlog/escaping.py fastlog/installation.py"
               " fastlog/java.py fastlog/limited_log.py fastlog/logs.py"
               " fastlog/retry.py fastlog/settings.py fastlog/topics.py"),
        _unit("arguments config errors escaping installation java logs retry topics producer_config consumer_config"
              " group_timing"),
    ),
)  # fmt: skip


OF_NO_AREA = (
    _unit("build ceiling ceiling_batches compiled_docs demo_command docs harness_* layers mutants* packaging peers"
          " public_names scripts typing")
    + _integration("access_log cluster demo demo_spark examples kafka07* kafka_files kafka_group_tools kafka_tools"
                   " perf_ab readme real_input spark_access_log spark_ceiling spark_hdfs spark_kafka_connector"
                   " spark_load_kills spark_connect spark_lakes spark_submit spark_zookeeper walkthrough")
)  # fmt: skip
"""Tests that answer for no source: of what is beside the package, and of the whole, too long for each mutant."""


NEAR = {
    "fastlog/consumer/fetchers.py": _unit("fetching fetching_trouble"),
    "fastlog/consumer/record_lookup.py": _unit("group_record_topics"),
    "fastlog/mirror/records/cluster.py": _integration("record_mirror record_mirror_leaders"),
    "fastlog/mirror/records/gaps.py": _unit("mirror_batches"),
    "fastlog/mirror/records/lane.py": _unit("mirror_record_lane"),
    "fastlog/mirror/records/mirror.py": _unit("mirror_record_sources") + _integration("record_mirror"),
    "fastlog/mirror/records/worker.py": _unit("mirror_worker") + _integration("record_mirror record_mirror_leaders"),
    "fastlog/producer/_send.pyx": _unit("producer_keys producer_rows producer_compiled"),
    "fastlog/producer/batching.py": _unit("producer_hooks"),
    "fastlog/producer/publisher.py": _unit("loghandler"),
    "fastlog/scanning/columns.py": _unit("scan_columns") + _integration("scan scan_records"),
    "fastlog/tools/append_dump.py": _unit("tools_dumps tools_files") + _integration("dump_load dump_records"),
    "fastlog/tools/copy_topic.py": _integration("replay_topics record_commands"),
    "fastlog/tools/deliveries.py": _unit("tools_parts tools_produce") + _integration("record_commands"),
    "fastlog/tools/dump_file.py": _unit("tools_files"),
    "fastlog/tools/keys.py": _unit("tools_parts"),
    "fastlog/tools/replay.py": _integration("replay_topics record_commands"),
    "fastlog/tools/replay_times.py": _integration("tail_replay replay_topics record_commands"),
    "fastlog/tools/write_dump.py": _unit("tools_dumps") + _integration("dump_load dump_records"),
    "fastlog/workers/_bridge.pyx": _unit("kafka_bridge kafka_bridge_memory") + _fault("bridge"),
    "fastlog/workers/_partitions.pyx": _unit("workers_boundaries lives kafka_requests")
    + _integration("wire_bad_input"),
    "fastlog/workers/_reads.pyx": _unit("workers_boundaries loop lives turns slot_waits") + _integration("wire_flush"),
    "fastlog/workers/_writes.pyx": _unit("workers_boundaries loop lives life_after_errors")
    + _integration("wire_flush"),
    "fastlog/workers/coordinator/requests/delete_topics.py": _unit("coordinator_topics"),
    "fastlog/workers/coordinator/requests/find_coordinator.py": _unit("coordinator_groups coordinator_requests"),
    "fastlog/workers/kafka07/_own.pyx": _unit("answer_memory") + _integration("wire_own"),
    "fastlog/workers/kafka07/_to_records.pyx": _unit("kafka07_records"),
    "fastlog/workers/net/_sockets.pyx": _unit("loop wakeups turns") + _integration("connections"),
}
"""Tests that catch the bugs of a source whose name they do not have: those that are tried first, and by ``--near``."""


def area_of(path: str) -> Area | None:
    """The area that answers for a source file, None where none does."""
    return next((area for area in AREAS if area.owns(path)), None)


def forgotten_tests() -> list[str]:
    """Test files that are of no area, and are not said to be of none: their bugs would count as survivors."""
    below = ROOT / "tests"
    known = {name for area in AREAS for name in area.test_files()}
    known |= {str(path.relative_to(ROOT)) for pattern in OF_NO_AREA for path in below.glob(pattern)}
    written = [path for folder in ("unit", "integration", "fault") for path in (below / folder).glob("test_*.py")]
    return sorted({str(path.relative_to(ROOT)) for path in written} - known)


def sources_of(paths: list[Path]) -> list[Path]:
    """What is asked for, or everything that an area answers for."""
    return paths or [ROOT / source for area in AREAS for source in area.sources]
