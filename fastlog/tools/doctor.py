"""``fastlog doctor``: what is wrong with a broker, or would be with its start, a line each with what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastlog.errors import ConfigError, FastlogError
from fastlog.escaping import in_json
from fastlog.tools import options
from fastlog.tools.colours import has_colour
from fastlog.tools.findings import BAD, OK, WARN, Finding, Subject, bad, ok
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from fastlog.config import BrokerConfig


@click.command(
    cls=options.Command,
    name="doctor",
    examples=(
        "fastlog doctor --log-dir /data/fastlog --zookeeper zk1:2181",
        "fastlog doctor --config server.properties --json | jq -r .remedy",
    ),
    exit_codes=(
        ("0", "nothing is wrong; a warning may be among the lines"),
        ("1", "something is wrong"),
        ("2", "wrong usage"),
        ("130, 143", "stopped by SIGINT, by SIGTERM"),
    ),
)
@options.option("--host", group="Connection", metavar="HOST", help="As for fastlog-broker.")
@options.option("--port", group="Connection", metavar="PORT", help="As for fastlog-broker.")
@options.option("--insecure", group="Connection", is_flag=True, help="As for fastlog-broker.")
@options.option("--zookeeper", group="Connection", metavar="H:P[,H:P][/PATH]", help="As for fastlog-broker.")
@options.option("--advertise", group="Connection", metavar="HOST[:PORT]", help="As for fastlog-broker.")
@options.option("--monitor", group="Connection", metavar="HOST:PORT", help="As for fastlog-broker.")
@options.option(
    "--monitor-token-file", group="Connection", metavar="FILE", type=click.Path(), help="As for fastlog-broker."
)
@options.option(
    "--log-dir",
    "log_dirs",
    group="Selection",
    multiple=True,
    metavar="DIR",
    type=click.Path(readable=False),
    help="As for fastlog-broker; may be repeated.",
)
@options.option("--broker-id", group="Selection", metavar="N", help="As for fastlog-broker.")
@options.option(
    "--config", "config_file", group="Selection", metavar="FILE", type=click.Path(), help="As for fastlog-broker."
)
@options.option(
    "--set",
    "settings_given",
    group="Selection",
    multiple=True,
    metavar="KEY=VALUE",
    help="As for fastlog-broker; may be repeated.",
)
@options.option(
    "--timeout",
    group="Limits",
    type=options.Duration(),
    default="3s",
    show_default=True,
    metavar="TIME",
    help="How long to wait for each answer.",
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object a line.")
def doctor_command(timeout: float, as_json: bool, **given: Any) -> int:
    """Look at everything that a broker needs, before its start or while it runs.

    Give it the options with which fastlog-broker is started, on the broker's machine and as its user. Nothing is
    changed. Each line is one thing: ok, warn or bad, and behind an arrow what to do about it.
    """
    coloured = has_colour(sys.stdout)
    levels = []
    for finding in findings(given, timeout):
        levels.append(finding.level)
        print(in_json(finding.fields()) if as_json else finding.line(coloured=coloured), flush=True)
    if not as_json:
        wrong, warned = levels.count(BAD), levels.count(WARN)
        print(f"{wrong} wrong, {warned} to look at, {levels.count(OK)} well", file=sys.stderr)
    return EXIT_FAILED if BAD in levels else EXIT_DONE


def findings(given: dict[str, Any], timeout: float) -> Iterator[Finding]:
    """All that is found, as soon as it is; ``given`` are the options by their names."""
    try:
        config = config_of(given)
    except ConfigError as error:
        text = "; ".join(str(error).splitlines())
        yield bad("settings", "settings-unusable", text, "fastlog-broker --list-settings shows every setting")
        return
    yield ok("settings", "can be used; fastlog-broker --list-settings shows every one")
    from fastlog.tools import doctor_machine, doctor_network  # after --help, which should be quick

    subject = subject_of(config, timeout)
    yield from doctor_machine.check_versions(subject)
    yield from doctor_network.check_listeners(subject)
    yield from doctor_network.check_advertised(subject)
    yield from doctor_network.check_monitor(subject)
    yield from doctor_network.check_zookeeper(subject)
    yield from doctor_machine.check_directories(subject)
    yield from doctor_machine.check_disks(subject)
    yield from doctor_machine.check_descriptors(subject)
    yield from doctor_machine.check_clock(subject)
    yield from doctor_machine.check_memory(subject)


def config_of(given: dict[str, Any]) -> BrokerConfig:
    """The settings as ``fastlog-broker`` would read them. Raises ``ConfigError``."""
    from fastlog.tools.broker_command import make_config, split_address

    flags = {
        "host": given["host"],
        "port": given["port"],
        "brokerid": given["broker_id"],
        "zk.connect": given["zookeeper"],
        "monitor.address": given["monitor"],
        "monitor.token.file": given["monitor_token_file"],
    }
    if given["advertise"] is not None:
        flags["hostname"], flags["advertised.port"] = split_address(given["advertise"])
    return make_config(flags, given["insecure"], given["log_dirs"], given["config_file"], given["settings_given"])


def subject_of(config: BrokerConfig, timeout: float) -> Subject:
    """What is known of the broker before anything is checked: whether it runs, by its locks, and what it says."""
    from fastlog.broker import pids_with
    from fastlog.segment_files import LOCK_NAME
    from fastlog.tools.daemon import is_held

    directories = [Path(path).resolve() for path in config.log_dirs]
    pids: set[int] = set()
    is_running = False
    for directory in directories:
        try:
            if is_held(directory / LOCK_NAME):
                is_running = True
                pids.update(pids_with(directory / LOCK_NAME))
        except OSError:
            continue  # the directory has a line of its own
    health: dict[str, Any] = {}
    if is_running and config.monitor is not None and config.monitor.port:
        health = _health(config, timeout)
    return Subject(config, directories, timeout, sorted(pids), is_running, health)


def _health(config: BrokerConfig, timeout: float) -> dict[str, Any]:
    import json

    from fastlog.tools.monitor_client import Monitor

    assert config.monitor is not None
    try:
        page = Monitor(config.monitor, config.monitor_token_file, timeout).ask("/health")
        found = json.loads(page.body) if page.status == 200 else {}
    except (FastlogError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
