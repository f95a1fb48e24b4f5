"""``fastlog-broker``: settings from flags, ``--set``, a file and defaults, in that order; then the broker runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fastlog import __version__
from fastlog.config import BrokerConfig, load_properties
from fastlog.errors import ConfigError
from fastlog.segment_files import LOCK_NAME
from fastlog.tools import options, signals
from fastlog.tools.report import EXIT_DONE, run


@click.command(
    cls=options.Command,
    exit_codes=(
        ("0", "stopped by SIGTERM or SIGINT, everything flushed; --daemon: ready; --stop: stopped"),
        ("1", "could not start, or could not flush everything before leaving"),
        ("2", "wrong usage, or a setting that cannot be used"),
    ),
    examples=(
        "fastlog-broker --log-dir /data/fastlog --zookeeper zk1:2181,zk2:2181/logs",
        "fastlog-broker --daemon --set num.partitions=4; fastlog-broker --stop",
    ),
)
@options.option("--host", group="Connection", metavar="HOST", help="Address to listen on. Default: 127.0.0.1.")
@options.option("--port", group="Connection", metavar="PORT", help="Port; 0 picks one and prints it. Default: 9092.")
@options.option(
    "--insecure", group="Connection", is_flag=True, help="Allow other addresses than loopback; there is no login."
)
@options.option(
    "--zookeeper",
    group="Connection",
    metavar="H:P[,H:P][/PATH]",
    help="Register in this ZooKeeper, so that clients find this broker.",
)
@options.option(
    "--advertise",
    group="Connection",
    metavar="HOST[:PORT]",
    help="The address that clients are to connect to. Default: the address that is listened on.",
)
@options.option(
    "--mirror",
    group="Connection",
    metavar="FILE",
    type=click.Path(),
    help="Mirror topics of other clusters into this broker, as this properties file says.",
)
@options.option(
    "--monitor",
    group="Connection",
    metavar="HOST:PORT",
    help="Answer /live, /ready, /health and /metrics over HTTP here; port 0 picks one and prints it. Default: off.",
)
@options.option(
    "--monitor-token-file",
    group="Connection",
    metavar="FILE",
    type=click.Path(),
    help="A file with the secret that such requests must show; needed on other addresses than loopback.",
)
@options.option("--processors", group="Limits", metavar="N", help="Processes that serve. Default: the number of CPUs.")
@options.option(
    "--log-dir",
    "log_dirs",
    group="Selection",
    multiple=True,
    metavar="DIR",
    type=click.Path(),
    help="Directory for the logs; may be repeated. Default: ./fastlog-data.",
)
@options.option("--broker-id", group="Selection", metavar="N", help="Number of this broker. Default: 0.")
@options.option(
    "--config",
    "config_file",
    group="Selection",
    metavar="FILE",
    type=click.Path(),
    help="A properties file with the names of Kafka 0.7.",
)
@options.option(
    "--set",
    "settings_given",
    group="Selection",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting by its name; may be repeated.",
)
@options.option(
    "--daemon",
    group="Other",
    is_flag=True,
    help="Run in the background; returns when it is ready, or with its errors when it cannot start.",
)
@options.option(
    "--stop", group="Other", is_flag=True, help="Stop the broker that runs on --log-dir, and return when it has."
)
@options.option(
    "--output",
    group="Other",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --daemon: where what it says is appended. Default: beside the first log directory, as DIR.log.",
)
@options.list_settings_option(lambda: BrokerConfig.describe())
@click.version_option(__version__, prog_name="fastlog-broker")
def broker_command(
    host: str | None,
    port: str | None,
    insecure: bool,
    zookeeper: str | None,
    advertise: str | None,
    mirror: str | None,
    monitor: str | None,
    monitor_token_file: str | None,
    processors: str | None,
    log_dirs: tuple[str, ...],
    broker_id: str | None,
    config_file: str | None,
    settings_given: tuple[str, ...],
    daemon: bool,
    stop: bool,
    output: Path | None,
) -> int:
    """Run a broker. A flag goes before --set, --set before the file.

    In the foreground it runs until SIGTERM or Ctrl-C, and says on stderr when it is ready.
    """
    if output is not None and not daemon:
        raise click.UsageError("--output is for --daemon; in the foreground everything goes to stderr")
    if daemon and stop:
        raise click.UsageError("--daemon contradicts --stop")
    flags = {"host": host, "port": port, "num.threads": processors, "brokerid": broker_id, "zk.connect": zookeeper}
    flags |= {"mirror.config": mirror, "monitor.address": monitor, "monitor.token.file": monitor_token_file}
    if advertise is not None:
        flags["hostname"], flags["advertised.port"] = split_address(advertise)
    config = make_config(flags, insecure, log_dirs, config_file, settings_given)
    from fastlog.broker import run_broker  # after --help and every refusal, which should be quick
    from fastlog.tools import daemon as background

    directory = Path(config.log_dirs[0]).resolve()
    if stop:
        background.stop(directory / LOCK_NAME, "broker")
        return EXIT_DONE

    def serve(ready: Callable[[], None]) -> int:
        signals.uninstall()
        return run_broker(config, lambda port: ready(), version=__version__)

    if not daemon:
        return serve(lambda: None)
    default = not log_dirs and directory == Path(BrokerConfig().log_dirs[0]).resolve()
    return background.start(
        serve,
        output or directory.with_name(f"{directory.name}.log"),
        "fastlog-broker",
        "fastlog-broker --stop" if default else f"fastlog-broker --stop --log-dir {config.log_dirs[0]}",
    )


def split_address(text: str) -> tuple[str, str | None]:
    """Host, without brackets, and port of ``host``, ``host:port`` or ``[IPv6]:port``.

    Raises:
        ConfigError: it is none of these.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.strip().endswith("]"):
        host, port = text.strip(), ""
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or (colon and not host.startswith("[") and ":" in host) or (text.strip().endswith(":")):
        raise ConfigError(f"--advertise {text}: write HOST or HOST:PORT, an IPv6 address in brackets")
    return bare, port or None


def make_config(
    flags: dict[str, str | None],
    insecure: bool,
    log_dirs: tuple[str, ...],
    config_file: str | None,
    settings_given: tuple[str, ...],
) -> BrokerConfig:
    """The settings that hold: flags (by property name) before ``--set``, that before the file.

    Raises:
        ConfigError: a setting is unknown, malformed or out of range, or the file cannot be read.
    """
    properties = load_properties(config_file) if config_file is not None else {}
    properties.update(options.named_values("--set", settings_given))
    for name, given in flags.items():
        if given is not None:
            properties[name] = given
    if insecure:
        properties["insecure"] = "true"
    if not log_dirs:
        return BrokerConfig.from_properties(properties)
    # Not through the property, whose commas separate directories: a flag names one, commas and all.
    properties.pop("log.dir", None)
    changes: dict[str, Any] = {"log_dirs": log_dirs}
    return dataclasses.replace(BrokerConfig.from_properties(properties), **changes)


def main() -> None:
    """The console script ``fastlog-broker``."""
    run(broker_command, "fastlog-broker")


if __name__ == "__main__":
    main()
