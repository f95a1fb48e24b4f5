"""A whole broker: directories locked, logs recovered, listeners bound, processes supervised, clean marker written."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fastlog import binding, logs
from fastlog.config import BrokerConfig
from fastlog.durability import durability
from fastlog.errors import ConfigError, FastlogError, LogError
from fastlog.listening import ListenAddress
from fastlog.log import _files, access, retention
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.clean_marker import consume_clean_marker, write_clean_marker
from fastlog.log.creators import add_creator
from fastlog.log.discovery import refuse_unfinished
from fastlog.log.files import FileOps, make_directory, open_lock
from fastlog.log.manager import LogManager
from fastlog.log.meta_properties import settle_cluster_id
from fastlog.log.metadata import read_metadata
from fastlog.segment_files import LOCK_NAME, partition_directory_name
from fastlog.service_manager import ServiceManager
from fastlog.settings import load_properties
from fastlog.supervisor import Supervisor
from fastlog.workers import advertised
from fastlog.workers.child import Listener, Shared, check_heartbeat
from fastlog.workers.coordinator.topic_settings import applied
from fastlog.workers.group_board import GroupBoard
from fastlog.workers.switches import Switches

log = logging.getLogger(__name__)

LOCK_SECONDS = 5.0
LINE_SECONDS = 0.2
"""What a line of the supervisor waits for a reader who is slow; nothing that it does is as urgent."""
BACKLOG = 1024
MONITOR_BACKLOG = 128


def run_broker(config: BrokerConfig, on_ready: Callable[[int], None] | None = None, *, version: str = "") -> int:
    """Run a broker until SIGTERM or SIGINT; the exit code of the command.

    ``on_ready`` gets the port once connections are taken. ``version`` is what it says of itself where health is asked.

    0: stopped, everything flushed and the clean marker written. 1: it could not start, or something was not flushed.
    """
    logs.set_up("supervisor", timeout=LINE_SECONDS)
    try:
        check_heartbeat()
        _files.arm_from_environment("supervisor")
        with contextlib.ExitStack() as stack:
            return _run(config, stack, on_ready, version)
    except FastlogError as error:
        logs.say(f"fastlog-broker: {error}")
        return 2 if isinstance(error, ConfigError) else 1
    except OSError as error:
        logs.say(f"fastlog-broker: {error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return 1


def _run(
    config: BrokerConfig, stack: contextlib.ExitStack, on_ready: Callable[[int], None] | None, version: str
) -> int:
    started = time.monotonic()
    service_manager = ServiceManager()
    files = FileOps()
    retention.load_policy(config.retention_policy)  # a policy that cannot be loaded is said now, not an hour later
    if config.mirror_file is not None:
        load_properties(config.mirror_file)  # likewise a file that is not there; what it says is the mirror's to judge
    if config.zookeeper:
        from fastlog.registry import parse_connect  # not for a broker that registers nowhere

        parse_connect(config.zookeeper)
    directories = [Path(path).resolve() for path in config.log_dirs]
    stack.enter_context(access.umask(access.UMASKS[config.log_access]))
    locks = []
    for directory in directories:
        locks.append(stack.enter_context(_locked(directory, files)))
        refuse_unfinished(directory)
        wider = access.opened_wider(directory, config.log_access)
        if wider is not None:
            log.warning("%s", wider)
    listeners = binding.bind(config, stack)  # a port that is taken is said before recovery takes its time
    monitor = binding.bind_monitor(config, stack)
    for listener in listeners:
        if listener.name in config.advertised_addresses:
            advertised.refuse_unknown(listener, "advertised.listeners")
        elif listener is listeners[0] and (config.zookeeper or config.hostname):
            advertised.refuse_unknown(listener)
    cluster_id = settle_cluster_id(directories, config.broker_id, files)
    arena = Arena(
        [str(path) for path in directories],
        FIRST_PROCESSOR + config.processors,
        config.max_partitions,
        config.segments_per_partition,
        producer_expiry_ms=config.producer_expiry_ms,
    )
    metadata = read_metadata(directories, files)
    own = {each.name: applied(config, each.name, each.settings) for each in metadata.topics.values() if each.settings}
    manager = LogManager(config, arena, files, own)
    service_manager.status("recovering")
    clean_ends = [consume_clean_marker(directory, files) for directory in directories]
    _files.reach("start.marker_taken")
    report = manager.load(clean_ends, metadata.topics.values())
    _files.reach("start.recovered")
    for line in report.warnings:
        log.warning("%s", line)
    for found in report.partitions:
        if found.truncated_bytes:
            log.warning(
                "torn tail quarantined and cut topic=%r partition=%d bytes=%d whole_messages_behind=%d log_end=%d",
                found.topic,
                found.partition,
                found.truncated_bytes,
                found.truncated_messages,
                found.log_end,
            )
    creators = _creators(listeners[0], directories, files) if config.zookeeper else ()
    shared = dataclasses.replace(
        _shared(config, arena, listeners, creators, stack),
        monitor=monitor,
        sync_seconds=_measured_sync(locks),
        version=version,
        cluster_id=cluster_id,
    )
    for listener in listeners:
        _listen(listener.fd, BACKLOG)
    if monitor is not None:
        _listen(monitor.fd, MONITOR_BACKLOG)
    logs.follow(shared.switches.level_cell)
    supervisor = Supervisor(shared)
    try:
        supervisor.start()
    except BaseException:
        supervisor.abandon()
        raise
    _say_ready(shared, directories, len(report.partitions), time.monotonic() - started)
    service_manager.ready(f"serving {len(report.partitions)} partitions, port {listeners[0].port}")
    if on_ready is not None:
        on_ready(listeners[0].port)
    stop = supervisor.run()
    code = _finish(config, arena, directories, files, stop.clean, stop.problems)
    return code if stop.asked_for else 1


def _listen(fd: int, backlog: int) -> None:
    with socket.socket(fileno=os.dup(fd)) as bound:
        bound.listen(backlog)


@contextlib.contextmanager
def _locked(directory: Path, files: FileOps | None = None) -> Iterator[int]:
    """Hold the lock on a log directory, and give its descriptor: by an open description that every child inherits.

    So the lock is free only when the last process of the old broker is gone; a new start waits for that.

    Raises:
        LogError: another broker has it, or the directory cannot be made.
    """
    try:
        make_directory(directory, files or FileOps())
        fd = open_lock(directory, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        place = error.filename or str(directory)
        raise LogError(f"cannot use the log directory: {error.strerror}", path=place) from error
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    place = str(directory / LOCK_NAME)
                    raise LogError(f"cannot lock the log directory: {error.strerror}", path=place) from error
                if time.monotonic() >= deadline:
                    pids = ", ".join(map(str, pids_with(directory / LOCK_NAME))) or "unknown"
                    raise LogError(
                        f"another broker uses the log directory (pids {pids}); "
                        "stop it (fastlog-broker --stop) or choose another --log-dir",
                        path=str(directory),
                    ) from None
                time.sleep(0.02)
        yield fd
    finally:
        with contextlib.suppress(OSError):  # whatever it says, the descriptor is gone, and nothing more comes by it
            os.close(fd)


def pids_with(path: Path) -> list[int]:
    """The processes that hold the lock file open, as far as this user may see them, in order."""
    wanted = path.stat()
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for item in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    status = item.stat()
                    if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
                        found.append(int(process.name))
                        break
    return sorted(found)


def _measured_sync(locks: list[int]) -> float | None:
    """Seconds that the slowest log directory takes to make one small write durable; None where that cannot be said."""
    slowest = 0.0
    try:
        for fd in locks:
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
            begun = time.perf_counter()
            os.fdatasync(fd)
            slowest = max(slowest, time.perf_counter() - begun)
    except OSError as error:
        log.warning("fdatasync not measured: %s", error.strerror)
        return None
    return slowest


def _creators(listener: Listener, directories: list[Path], files: FileOps) -> tuple[str, ...]:
    """What this start is called in ZooKeeper, written down first, and what earlier ones were."""
    if ":" in listener.advertised_host:
        log.warning(
            "the advertised address %s is written to ZooKeeper in brackets: clients of Kafka 0.7, which divide what "
            "they read at colons, cannot connect to it. Give a name with --advertise HOST[:PORT]",
            listener.advertised_host,
        )
    from fastlog.zkpaths import new_creator  # as above

    creator = new_creator(listener.advertised_host)
    former: dict[str, None] = {}
    for directory in directories:
        former.update(dict.fromkeys(add_creator(directory, creator, files)))
    return creator, *former


def _shared(
    config: BrokerConfig,
    arena: Arena,
    listeners: tuple[Listener, ...],
    creators: tuple[str, ...],
    stack: contextlib.ExitStack,
) -> Shared:
    """Make what the children inherit: sockets between them, and the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    descriptors = 1 << 20 if soft == resource.RLIM_INFINITY else min(soft, 1 << 20)
    handoffs = [_socket_pair(stack) for _ in range(config.processors)]
    forwards = [_socket_pair(stack) for _ in range(config.processors)]
    return Shared(
        config,
        arena,
        listeners,
        tuple(receive for receive, _ in handoffs),
        tuple(send for _, send in handoffs),
        descriptors,
        creators=creators,
        forward_processor=tuple(processor for processor, _ in forwards),
        forward_coordinator=tuple(coordinator for _, coordinator in forwards),
        switches=Switches(config.trace_requests),
        groups=stack.enter_context(contextlib.closing(GroupBoard())),
    )


def _socket_pair(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Two ends between processes, which keep the bounds of what is sent and never block; closed with the broker."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        stack.enter_context(end)
        end.setblocking(False)
    return pair[0].fileno(), pair[1].fileno()


def _say_ready(shared: Shared, directories: list[Path], partitions: int, seconds: float) -> None:
    config, listener = shared.config, shared.listeners[0]
    log.info("promised: %s", durability(config, shared.sync_seconds))
    insecure = " INSECURE=no-login" if config.insecure else ""
    zookeeper = f"zookeeper={config.zookeeper} " if config.zookeeper else ""
    more = ",".join(f"{each.name}://{ListenAddress(each.host, each.port)}" for each in shared.listeners)
    listeners = f"listeners={more} " if len(shared.listeners) > 1 else ""
    monitor = f"monitor={shared.monitor} " if shared.monitor is not None else ""
    told = (listener.advertised_host, listener.advertised_port)
    told_text = f"advertised={told[0]}:{told[1]} " if told != (listener.host, listener.port) else ""
    logs.say(
        f"fastlog-broker: ready host={listener.host} port={listener.port}{insecure} broker={config.broker_id} "
        f"{told_text}{listeners}{zookeeper}{monitor}processors={config.processors} "
        f"directories={','.join(map(str, directories))} partitions={partitions} start_seconds={seconds:.2f}"
    )


def _finish(
    config: BrokerConfig, arena: Arena, directories: list[Path], files: FileOps, clean: bool, problems: list[str]
) -> int:
    """Write the clean markers if everything in service is flushed; the exit code."""
    ends: list[dict[str, int]] = [{} for _ in directories]
    unflushed = []
    for view in arena.views():
        name = partition_directory_name(view.topic, view.partition)
        if view.flushed_end == view.log_end and not view.state:
            ends[view.directory][name] = view.log_offset
        elif view.flushed_end != view.log_end:
            unflushed.append(f"{name} offsets {view.flushed_offset} to {view.log_offset}")
    if clean and not unflushed:
        try:
            for directory, named in zip(directories, ends, strict=True):
                write_clean_marker(directory, named, files)
            log.info("stopped: everything flushed, clean marker written")
            return 0
        except OSError as error:
            problems.append(f"clean marker not written: {error}")
    detail = "; ".join([*problems, *(f"not flushed: {item}" for item in unflushed)])
    logs.say(f"fastlog-broker: stopped without the clean marker: {detail}; the next start recovers")
    return 1
