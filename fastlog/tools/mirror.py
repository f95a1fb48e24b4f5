"""``fastlog mirror``: several clusters into one, as 0.7's MirrorMaker."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fastlog import logs, settings
from fastlog.tools import options
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED, note
from fastlog.tools.signals import Interrupted

if TYPE_CHECKING:
    from fastlog.mirror import MirrorConfig
    from fastlog.mirror.making import AnyMirror, AnyReport


_STOP_SECONDS = 5.0


def _describe() -> list[settings.Setting]:
    from fastlog.mirror import MirrorSettings  # only for --list-settings

    return MirrorSettings.describe()


@click.command(
    cls=options.Command,
    name="mirror",
    examples=(
        "fastlog mirror --consumer-config dc1.properties --consumer-config \\\n"
        "      dc2.properties --producer-config target.properties --whitelist 'logs.*'",
        "fastlog mirror --consumer-config kafka.properties --producer-config fastlog.properties --whitelist '.*'",
        "fastlog mirror --config mirror.properties --json",
    ),
    exit_codes=(
        ("0", "stopped by SIGTERM or SIGINT, everything acknowledged and committed"),
        ("1", "stopped, and something was not; it is forwarded again. Or messages were left out"),
        ("2", "wrong usage, a setting that cannot be used, or a source that is the target itself"),
        ("130, 143", "stopped by a second signal, without waiting"),
    ),
)
@options.option(
    "--consumer-config",
    "--consumer.config",
    "consumer_configs",
    group="Connection",
    multiple=True,
    metavar="FILE",
    type=click.Path(),
    help="Properties of a source's consumer (zk.connect, groupid, …); once for each source cluster.",
)
@options.option(
    "--producer-config",
    "--producer.config",
    "producer_config",
    group="Connection",
    metavar="FILE",
    type=click.Path(),
    help="Properties of the target's producer (zk.connect or broker.list, acks, …).",
)
@options.option(
    "--config",
    "config_file",
    group="Connection",
    metavar="FILE",
    type=click.Path(),
    help="A properties file with mirror.consumer.config and so on. A flag goes before it.",
)
@options.option(
    "--whitelist", group="Selection", metavar="REGEX", help="Topics to mirror; new ones join by themselves."
)
@options.option("--blacklist", group="Selection", metavar="REGEX", help="All topics but these.")
@options.option(
    "--num-streams",
    "--num.streams",
    "streams",
    group="Limits",
    metavar="N",
    help="Streams of each source; partitions are shared among them. Default: 1.",
)
@options.option(
    "--num-producers",
    "--num.producers",
    "producers",
    group="Limits",
    metavar="N",
    help="Connections to each broker of the target; partitions are shared among them. Default: 1.",
)
@options.option(
    "--bad-messages",
    group="Limits",
    metavar="stop|skip",
    help="What a message does that the target refuses: its partition waits there and is tried again, or it is left out,"
    " counted and named. Default: stop.",
)
@options.option(
    "--uncommitted-bytes",
    group="Limits",
    metavar="SIZE",
    help="How far each partition may be ahead of what is committed, and so come twice after kill -9. Default: 64MiB.",
)
@options.option(
    "--audit-stage",
    group="Limits",
    metavar="NAME",
    help="Tell the audit topic of the target, under this name, which messages were forwarded.",
)
@options.option(
    "--existing-records",
    group="Limits",
    metavar="refuse|append",
    help="Of record batches: what a partition does that has records in the target when its mirroring begins. It waits,"
    " or what comes goes behind them. Default: refuse.",
)
@options.option("--audit-topic", group="Limits", metavar="TOPIC", help="The audit topic. Default: audit.")
@options.option("--progress", group="Format", metavar="TIME", help="How often to say how far it is. Default: 5s.")
@options.option(
    "--json", "as_json", group="Format", is_flag=True, help="Say it as an object a line for each source, on stdout."
)
@options.list_settings_option(_describe)
def mirror_command(
    consumer_configs: tuple[str, ...],
    producer_config: str | None,
    config_file: str | None,
    whitelist: str | None,
    blacklist: str | None,
    streams: str | None,
    producers: str | None,
    bad_messages: str | None,
    uncommitted_bytes: str | None,
    audit_stage: str | None,
    existing_records: str | None,
    audit_topic: str | None,
    progress: str | None,
    as_json: bool,
) -> int:
    """Forward topics of one or several clusters into another one until SIGTERM or SIGINT.

    A source with zk.connect has topics of Kafka 0.7: bytes are forwarded as they are, compressed sets closed, and what
    a source has committed, the target has acknowledged. One with bootstrap.servers has topics of record batches, of
    fastlog or Apache Kafka: each record comes once, in order, with key, headers, timestamp and codec, whatever is
    killed.
    """
    flags = {
        "mirror.topics.whitelist": whitelist,
        "mirror.topics.blacklist": blacklist,
        "mirror.consumer.numthreads": streams,
        "mirror.producer.numthreads": producers,
        "mirror.bad.messages": bad_messages,
        "mirror.uncommitted.bytes": uncommitted_bytes,
        "mirror.existing.records": existing_records,
        "mirror.audit.stage": audit_stage,
        "mirror.audit.topic": audit_topic,
        "mirror.progress.ms": progress,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    config = made_config(given, config_file, consumer_configs, producer_config)
    from fastlog.mirror.making import made, notes

    _log_to_stderr()
    for line in notes(config):
        note(line)
    return run_mirror(*made(config), as_json=as_json)


def made_config(
    flags: dict[str, str], config_file: str | None, consumers: tuple[str, ...], producer: str | None
) -> MirrorConfig:
    """What holds: flags, by the names of properties, before the file; of files that are named here, before those there.

    Raises:
        ConfigError: something cannot be used, or a file cannot be read.
    """
    from fastlog.mirror import MirrorConfig, MirrorSettings

    properties = settings.load_properties(config_file) if config_file is not None else {}
    beside = Path(config_file).parent if config_file is not None else Path()
    if "mirror.topics.whitelist" in flags or "mirror.topics.blacklist" in flags:
        properties.pop("mirror.topics.whitelist", None)
        properties.pop("mirror.topics.blacklist", None)
    given = MirrorSettings.from_properties({**properties, **flags})
    # what the command line names is relative to where it was typed, and may hold commas
    here = Path.cwd()
    if consumers:
        given = dataclasses.replace(given, consumer_configs=tuple(str(here / path) for path in consumers))
    if producer is not None:
        given = dataclasses.replace(given, producer_config=str(here / producer))
    return MirrorConfig.from_settings(given, beside)


def run_mirror(mirror: AnyMirror, report: AnyReport, *, as_json: bool = False) -> int:
    """Run it until a signal comes; the exit code. Raises what ends it otherwise."""
    mirror.start()
    pause = mirror.config.settings.progress_ms / 1000
    try:
        while True:
            mirror.wait(pause)
            if as_json:
                for found in report.objects():
                    print(json.dumps(found), flush=True)
            else:
                for line in report.lines():
                    note(line)
    except Interrupted:
        note("stopping: waiting for what is under way")
    except BaseException:
        mirror.stop(0.0)
        raise
    left = mirror.stop(_STOP_SECONDS)
    for line in [*report.summary(), *left]:
        note(line)
    is_whole = not left and not any(source.totals.left_out for source in mirror.sources)
    return EXIT_DONE if is_whole else EXIT_FAILED


def _log_to_stderr() -> None:
    logs.set_up("mirror")
    for name in ("kazoo", "fastlog.consumer"):
        logging.getLogger(name).setLevel(logging.WARNING)
