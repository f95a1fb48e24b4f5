"""``fastlog zookeeper``: a ZooKeeper in the foreground, from jars and a Java that are on this machine."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from fastlog.errors import ConfigError
from fastlog.java import find_java
from fastlog.tools import options
from fastlog.tools.report import CommandError, note
from fastlog.tools.signals import Interrupted
from fastlog.zkserver.jars import find_class_path
from fastlog.zkserver.server import Ensemble, make_ensemble

_LOOK_SECONDS = 0.2
_LOOPBACK = ("127.0.0.1", "localhost")
_MOST_SERVERS = 7
_LOCK_NAME = "lock"


@click.group(
    cls=options.CommandGroup,
    name="zookeeper",
    lazy={
        "ls": ("fastlog.tools.zookeeper_look", "ls_command", "List the nodes below a path."),
        "get": ("fastlog.tools.zookeeper_look", "get_command", "Print what nodes hold."),
        "forget-broker": (
            "fastlog.tools.zookeeper_look",
            "forget_broker_command",
            "Forget what a broker had that is gone for good.",
        ),
    },
    examples=(
        "fastlog zookeeper start --data-dir ./zookeeper-data",
        "fastlog zookeeper start --data-dir /data/zookeeper --port 2181 --servers 3",
    ),
)
def zookeeper_command() -> None:
    """Run a ZooKeeper, or look into one."""


@zookeeper_command.command(
    cls=options.Command,
    name="start",
    exit_codes=(
        ("0", "stopped by SIGTERM or SIGINT; --daemon: it serves"),
        ("1", "could not start, or a server ended by itself"),
        ("2", "wrong usage"),
    ),
    examples=(
        "fastlog zookeeper start --data-dir ./zookeeper-data --port 2181",
        "fastlog zookeeper start --data-dir ./zookeeper-data --port 2181 --servers 3",
    ),
)
@options.option(
    "--data-dir",
    group="Selection",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where its data and what it says are kept; made when it is not there.",
)
@options.option(
    "--port",
    group="Connection",
    default=2181,
    show_default=True,
    metavar="P",
    type=click.IntRange(1, 65535),
    help="For clients. Several servers take P, P+1, … and two ports each behind these.",
)
@options.option(
    "--servers",
    group="Limits",
    default=1,
    show_default=True,
    metavar="N",
    type=click.IntRange(1, _MOST_SERVERS),
    help="How many form one ensemble, all on this machine. It works while more than half of them run.",
)
@options.option(
    "--host",
    group="Connection",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Address to listen on.",
)
@options.option(
    "--insecure", group="Connection", is_flag=True, help="Allow other addresses than loopback; there is no login."
)
@options.option(
    "--daemon",
    group="Other",
    is_flag=True,
    help="Run in the background; returns when it serves. fastlog zookeeper stop ends it.",
)
def start_command(data_dir: Path, port: int, servers: int, host: str, insecure: bool, daemon: bool) -> int:
    """Run Apache ZooKeeper's own server in the foreground until SIGINT or SIGTERM, or in the background.

    It is taken from FASTLOG_ZK_CLASSPATH, from the system's package, or from the jars of an installed pyspark.
    """
    if host not in _LOOPBACK and not insecure:
        raise ConfigError(
            f"--host {host}: there is no login, so anybody who reaches it may change everything: add --insecure if that"
            " is what you want"
        )
    if port + 3 * servers > 65536:
        raise ConfigError(f"--port {port}: {servers} servers need ports up to {port + 3 * servers - 1}")
    find_class_path(), find_java()  # what is missing is said in the foreground
    data_dir.mkdir(parents=True, exist_ok=True)
    if not daemon:
        return _serve(data_dir, port, servers, host, lambda: None)
    from fastlog.tools import daemon as background

    return background.start(
        lambda ready: _serve(data_dir, port, servers, host, ready),
        data_dir.resolve() / "output.log",
        "fastlog",
        f"fastlog zookeeper stop --data-dir {data_dir}",
    )


@zookeeper_command.command(
    cls=options.Command,
    name="stop",
    examples=(
        "fastlog zookeeper stop --data-dir ./zookeeper-data",
        "fastlog zookeeper stop --data-dir /data/zookeeper",
    ),
)
@options.option(
    "--data-dir",
    group="Selection",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that it was started with.",
)
def stop_command(data_dir: Path) -> None:
    """Stop the ZooKeeper that runs on a directory, and return when it has."""
    from fastlog.tools import daemon as background

    background.stop(data_dir / _LOCK_NAME, "ZooKeeper")


def _serve(data_dir: Path, port: int, servers: int, host: str, ready: Callable[[], object]) -> int:
    """Run it until a signal comes; ``ready`` is called once it serves."""
    source, java = find_class_path().origin, find_java()
    lock = _lock(data_dir)
    ports = [port + number for number in range(servers)]
    spare = [port + servers + number for number in range(2 * servers)] if servers > 1 else []
    for taken in ports + spare:
        _check_free(host, taken)
    ensemble = make_ensemble(data_dir, ports, spare, host=host)
    note(f"starting ZooKeeper from {source} with {java}")
    try:
        ensemble.start()
        note(f"ready: zk.connect={ensemble.connect} (stop with Ctrl-C; what it says is in {_logs(ensemble)})")
        ready()
        _watch(ensemble)
    except Interrupted as stop:
        note(f"stopping after {signal.Signals(stop.exit_code - 128).name}")
        return 0
    finally:
        ensemble.stop()
        os.close(lock)


def _watch(ensemble: Ensemble) -> NoReturn:
    """Wait for a signal; a member of an ensemble that ends is started again, a single server is not."""
    while True:
        time.sleep(_LOOK_SECONDS)
        for server in ensemble.servers:
            code = server.wait_exit()
            if code is None:
                continue
            if len(ensemble.servers) == 1:
                raise CommandError(
                    "ZooKeeper ended by itself", f"exit code {code}", f"look at the end of {server.log_path}"
                )
            note(f"the server on port {server.port} ended with exit code {code}: started again")
            server.start()


def _lock(data_dir: Path) -> int:
    """A lock that is held as long as this process runs: two servers would write over each other's data."""
    descriptor = os.open(data_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise CommandError(
            f"{data_dir} is in use",
            "another ZooKeeper runs on it",
            "stop that one (fastlog zookeeper stop), or give another --data-dir",
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def _check_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise CommandError(
                f"cannot listen on {host}:{port}", error.strerror or str(error), "choose another --port"
            ) from error


def _logs(ensemble: Ensemble) -> str:
    return ", ".join(str(server.log_path) for server in ensemble.servers)
