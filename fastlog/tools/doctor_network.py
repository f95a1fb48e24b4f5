"""What ``fastlog doctor`` looks at on the network: listeners, what clients are told, the monitor, ZooKeeper."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

from fastlog.client.addresses import Address
from fastlog.client.connection import Broker, ConnectionRefused
from fastlog.errors import FastlogError, TransportError
from fastlog.listening import KAFKA, WILDCARDS, ListenAddress, is_loopback
from fastlog.tools.findings import Finding, Subject, bad, ok, warn
from fastlog.wire.responses import MetadataAnswer
from fastlog.zkpaths import BrokerRegistration, broker_path

_ANOTHER_PORT = "stop it, or choose another port (--port; in listeners where there are several)"


def check_listeners(subject: Subject) -> Iterator[Finding]:
    """Whether each port is the broker's, or free for it."""
    for name, address in subject.config.addresses.items():
        check = "port" if len(subject.config.addresses) == 1 else f"port {name}"
        if not address.port:
            yield ok(check, "the system picks a free one, and the start line names it")
        elif subject.config.spoken[name] == KAFKA:
            yield _pinned(check, subject, address)
        else:
            yield _listener(check, subject, address)
        if not is_loopback(address.host):
            yield warn(
                check,
                "port-exposed",
                f"{address} can be reached from other machines, and there is no login",
                "see that a firewall closes it to all who may not read and write every topic",
            )


def check_advertised(subject: Subject) -> Iterator[Finding]:
    """Whether what clients are told leads to this broker."""
    config = subject.config
    told = config.advertised_addresses
    for number, (name, address) in enumerate(config.addresses.items()):
        check = "advertised" if len(config.addresses) == 1 else f"told {name}"
        if name in told:
            shown = told[name]
        else:
            own = config.hostname.strip("[]") if number == 0 else ""
            host = own or (socket.gethostname() if address.host in WILDCARDS else address.host)
            port = config.advertised_port if number == 0 and config.advertised_port else address.port
            shown = ListenAddress(host, port)
        if shown == address or not shown.port:
            yield ok(check, f"{shown if shown.port else shown.host}, as it listens")
        else:
            yield _told(check, subject, shown, address, config.spoken[name] != KAFKA)


def check_monitor(subject: Subject) -> Iterator[Finding]:
    """Whether the monitor answers, and what it says; or whether it could be started."""
    address, token_file = subject.config.monitor, subject.config.monitor_token_file
    if address is None:
        yield ok("monitor", "off (--monitor 127.0.0.1:9080 switches it on)")
        return
    if token_file is not None and (problem := _token_problem(token_file)):
        yield bad("monitor", "token-unusable", problem, "make one with: openssl rand -hex 32, readable by the broker")
        return
    if not address.port:
        yield ok("monitor", "the system picks a free port, and the start line names it")
    elif not subject.is_running:
        taken = _cannot_bind(address)
        if taken is None:
            yield ok("monitor", f"{address} is free")
        else:
            name, found, _ = taken
            yield bad("monitor", name, found, "choose another --monitor HOST:PORT, or stop what uses it")
    elif not subject.health:
        yield bad(
            "monitor",
            "monitor-silent",
            f"a broker runs ({subject.shown_pids}), and its monitor does not answer at {address}",
            "it has to be started with this --monitor and token; a broker that recovers does not answer yet",
        )
    else:
        problems = [str(line) for line in subject.health.get("problems", ())]
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            yield bad(
                "monitor",
                "not-ready",
                f"the broker says of itself: {problems[0]}{more}",
                "docs/monitoring.md says what to do about each line of /ready",
            )
        else:
            yield ok("monitor", f"{address} answers: {subject.health.get('state')}")


def check_zookeeper(subject: Subject) -> Iterator[Finding]:
    """Whether ZooKeeper answers, and shows this broker and no other under its id."""
    config = subject.config
    if not config.zookeeper:
        yield ok("zookeeper", "not used: brokers without one are found by --brokers")
        return
    from fastlog.coordination.zookeeper import ZooKeeperSession  # only who has one pays for it

    try:
        with ZooKeeperSession(config.zookeeper, connection_timeout=subject.timeout, makes_root=False) as session:
            node = session.get(broker_path(config.broker_id))
            holder = None if node is None else BrokerRegistration.parse(node.data)
    except FastlogError as error:
        yield bad(
            "zookeeper",
            "zookeeper-unreachable",
            " ".join(str(error).split()),
            "start it (fastlog zookeeper start), or name where it is with --zookeeper HOST:PORT[,HOST:PORT][/PATH]",
        )
        return
    shown = "" if holder is None else str(ListenAddress(holder.host, holder.port))
    if subject.is_running and holder is None:
        yield bad(
            "zookeeper",
            "not-registered",
            f"a broker runs ({subject.shown_pids}), and {config.zookeeper} has no {broker_path(config.broker_id)}",
            "start it with this --zookeeper and --broker-id; its log says why it cannot register",
        )
    elif not subject.is_running and holder is not None:
        yield bad(
            "zookeeper",
            "id-taken",
            f"broker {config.broker_id} is registered already, at {shown}, and does not run on these log directories",
            "choose another --broker-id; what a dead one left goes with its session, in zk.sessiontimeout.ms",
        )
    else:
        registered = f"broker {config.broker_id} is registered at {shown}" if holder else "this id is free"
        yield ok("zookeeper", f"{config.zookeeper} answers; {registered}")


# -- one address -------------------------------------------------------------------------------------------------------


def _listener(check: str, subject: Subject, address: ListenAddress) -> Finding:
    try:
        answer = _asked(address, subject.timeout)
    except ConnectionRefused:
        return _not_listening(check, subject, address)
    except FastlogError as error:
        if subject.is_running:
            reason = str(error).splitlines()[0]
            return _silent(check, subject, address, f"does not answer as one at {address} ({reason})")
        return _not_listening(check, subject, address)  # somebody has it, or it went while we looked
    if answer is None:
        return _taken(check, address, "a program that is no fastlog broker")
    if not subject.is_running:
        return _taken(check, address, f"a fastlog broker with the id {answer.broker_id} and other log directories")
    if answer.broker_id != subject.config.broker_id:
        return _silent(check, subject, address, f"is not who answers at {address}: that one has the id "
                                                f"{answer.broker_id}, and not {subject.config.broker_id}")  # fmt: skip
    return ok(check, f"broker {answer.broker_id} answers at {address} ({subject.shown_pids})")


def _pinned(check: str, subject: Subject, address: ListenAddress) -> Finding:
    """For a listener of today's protocol alone, which has no request that tells which broker answers."""
    try:
        socket.create_connection(_reached(address), subject.timeout).close()
    except OSError:
        return _not_listening(check, subject, address)
    if subject.is_running:
        return ok(check, f"{address} takes connections")
    return _taken(check, address, "another program")


def _not_listening(check: str, subject: Subject, address: ListenAddress) -> Finding:
    if subject.is_running:
        return _silent(check, subject, address, f"does not listen at {address}")
    problem = _cannot_bind(address)
    return (
        ok(check, f"{address} is free; no broker runs on the log directories")
        if problem is None
        else bad(check, *problem)
    )


def _silent(check: str, subject: Subject, address: ListenAddress, what: str) -> Finding:
    return bad(
        check,
        "broker-silent",
        f"the broker that runs on the log directories ({subject.shown_pids}) {what}",
        "see its log: it recovers, hangs, or was started with other settings than these",
    )


def _taken(check: str, address: ListenAddress, by: str) -> Finding:
    return bad(check, "port-taken", f"{address} is taken by {by}{_listening_process(address.port)}", _ANOTHER_PORT)


def _told(check: str, subject: Subject, shown: ListenAddress, listens: ListenAddress, answers: bool) -> Finding:
    remedy = "set --advertise HOST[:PORT] (advertised.listeners) to where clients reach this broker"
    try:
        found = {str(item[4][0]) for item in socket.getaddrinfo(*shown, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a possible host name"
        return bad(check, "name-unknown", f"clients are told {shown}, a name that is not known here ({reason})", remedy)
    if all(map(is_loopback, found)) and not is_loopback(listens.host):
        return warn(
            check,
            "name-loopback",
            f"clients are told {shown}, which is {min(found)} here: those on other machines would ask themselves",
            remedy,
        )
    if not subject.is_running:
        if not any(_is_here(host) for host in found):
            return warn(
                check,
                "name-elsewhere",
                f"clients are told {shown}, which is no address of this machine ({', '.join(sorted(found))})",
                f"nothing, where something there forwards to {listens}; else {remedy}",
            )
        return ok(check, f"{shown}, an address of this machine")
    if not answers:
        return ok(check, f"{shown}, a name that is known here")
    return _leads(check, subject, shown, listens, remedy)


def _leads(check: str, subject: Subject, shown: ListenAddress, listens: ListenAddress, remedy: str) -> Finding:
    """Who answers where clients are told to connect, of a broker that runs."""
    try:
        own = _asked(listens, subject.timeout)
    except FastlogError:
        own = None  # that it does not answer has a line of its own
    if own is not None and (own.advertised_host, own.port) != shown:
        told = ListenAddress(own.advertised_host, own.port)
        text = f"clients are told {told} by the broker that runs, and {shown} is what these options say"
        return bad(check, "told-otherwise", text, "restart it with these options, or give those it was started with")
    try:
        answer = _asked(shown, subject.timeout)
    except FastlogError as error:
        lines = str(error).splitlines()
        reason = lines[1] if isinstance(error, TransportError) and len(lines) > 1 else lines[0]
        return bad(check, "name-not-answering", f"clients are told {shown}, where no broker answers: {reason}", remedy)
    if answer is None or (answer.broker_id, answer.advertised_host, answer.port) != (subject.config.broker_id, *shown):
        who = "no fastlog broker" if answer is None else f"broker {answer.broker_id}, another one,"
        return bad(check, "name-other-broker", f"clients are told {shown}, where {who} answers", remedy)
    return ok(check, f"{shown} leads to this broker")


def _asked(address: ListenAddress, timeout: float) -> MetadataAnswer | None:
    return Broker([Address(*_reached(address))], timeout).metadata_or_none(())


def _reached(address: ListenAddress) -> tuple[str, int]:
    """Where a client of this machine connects to what listens there."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return loopback.get(address.host, address.host), address.port


def _cannot_bind(address: ListenAddress) -> tuple[str, str, str] | None:
    """Name, reason and remedy where nobody could listen there; nobody is kept from it by the try."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(target)
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a possible host name"
        return "address-unknown", f"cannot listen on {address}: {reason}", "use an address of this machine (--host)"
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            by = f"another program{_listening_process(address.port)}"
            return "port-taken", f"{address} is taken by {by}", _ANOTHER_PORT
        if error.errno == errno.EACCES:
            what = f"user {os.geteuid()} may not listen on {address}"
            return "port-not-allowed", what, "choose a port above 1023, or give it CAP_NET_BIND_SERVICE"
        what = f"cannot listen on {address}: {error.strerror}"
        return "address-not-here", what, "use an address of this machine (--host), which ip address shows"
    return None


def _is_here(host: str) -> bool:
    return _cannot_bind(ListenAddress(host, 0)) is None


def _listening_process(port: int) -> str:
    """Who listens on a port, as far as this user may see it."""
    import psutil  # only where a port is taken

    try:
        ends = [item for item in psutil.net_connections("tcp") if item.laddr and item.laddr.port == port]
        pid = min(item.pid for item in ends if item.pid)
        return f" (pid {pid}, {psutil.Process(pid).name()})"
    except (psutil.Error, OSError, ValueError):
        return " (see: ss -ltnp)"


def _token_problem(path: str) -> str:
    from fastlog.binding import token_of
    from fastlog.errors import ConfigError

    try:
        token_of(path)
    except ConfigError as error:
        return str(error)
    return ""
