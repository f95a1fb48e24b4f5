"""The ``fastlog`` command: names its subcommands and imports one only when it is called."""

from __future__ import annotations

import click

from fastlog import __version__
from fastlog.tools.options import CommandGroup
from fastlog.tools.report import run

COMMANDS = {
    "produce": ("fastlog.tools.produce", "produce_command", "Send lines of files or stdin as messages."),
    "consume": ("fastlog.tools.consume", "consume_command", "Print messages of a topic."),
    "tail": ("fastlog.tools.tail", "tail_command", "Follow the end of topics."),
    "replay": ("fastlog.tools.replay", "replay_command", "Produce a topic again, at its own pace or faster."),
    "dump": ("fastlog.tools.dump", "dump_command", "Write a topic with all its partitions to a file."),
    "load": ("fastlog.tools.load", "load_command", "Load such a file into a topic, to the byte."),
    "import": ("fastlog.tools.import_kafka", "import_command", "Make a log directory of an Apache Kafka's."),
    "export": ("fastlog.tools.export_kafka", "export_command", "Put topics into an Apache Kafka's log directory."),
    "topics": ("fastlog.tools.topics", "topics_command", "List, describe and create topics; look up offsets."),
    "top": ("fastlog.tools.top", "top_command", "Watch a broker: topics, rates, groups and processes."),
    "groups": ("fastlog.tools.groups", "groups_command", "List consumer groups, their members and what they own."),
    "lag": ("fastlog.tools.lag", "lag_command", "Show how far a group is behind."),
    "offsets": ("fastlog.tools.offsets", "offsets_command", "Show, reset, export and import a group's offsets."),
    "verify-rebalance": (
        "fastlog.tools.groups",
        "verify_rebalance_command",
        "Check that every partition has an owner.",
    ),
    "mirror": ("fastlog.tools.mirror", "mirror_command", "Forward topics of other clusters into one."),
    "dump-log": ("fastlog.tools.dump_log", "dump_log_command", "Show what is in segment files."),
    "audit": ("fastlog.tools.audit", "audit_command", "Compare what was sent with what is there."),
    "zookeeper": ("fastlog.tools.zookeeper_command", "zookeeper_command", "Run a ZooKeeper, or look into one."),
    "spark": ("fastlog.spark.jobs.package", "spark_command", "Package fastlog for a cluster of Spark."),
    "perf": ("fastlog.tools.perf_command", "perf_command", "Moved: python -m perf compare, report."),
    "metrics": ("fastlog.tools.metrics", "metrics_command", "Print a dashboard for Grafana, or alerts."),
    "logging": ("fastlog.tools.logging_command", "logging_command", "Change what a running broker writes to its log."),
    "info": ("fastlog.tools.info", "info_command", "Show what is installed and which code paths are taken."),
    "doctor": ("fastlog.tools.doctor", "doctor_command", "Look for what is wrong with a broker and its machine."),
    "selftest": ("fastlog.tools.selftest", "selftest_command", "See whether it works here, with a broker of its own."),
    "fsck": ("fastlog.tools.fsck", "fsck_command", "Check log directories; repair only on request."),
}


@click.group(
    cls=CommandGroup,
    lazy=COMMANDS,
    examples=(
        "fastlog produce --brokers localhost:9092 --topic logs access.log",
        "fastlog consume --brokers localhost:9092 --topic logs --exit-at-end",
    ),
)
@click.version_option(__version__, prog_name="fastlog")
def fastlog() -> None:
    """A client for fastlog and Kafka 0.7 brokers. The broker itself is fastlog-broker.

    \b
    Coming from kcat: -P is produce, -C consume, -L topics list, and
    -Q topics offsets. From Kafka: kafka-topics is topics,
    kafka-dump-log is dump-log, and
    kafka-consumer-groups is groups, lag and offsets.
    docs/coming-from-kafka.md has the options.
    """


def main() -> None:
    """Run the console script ``fastlog``; never returns."""
    run(fastlog, "fastlog")
