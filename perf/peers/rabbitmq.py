"""RabbitMQ: a classic queue by AMQP 0-9-1, and a stream by the stream protocol; both on one kind of node.

The node is a RabbitMQ of this machine under another name, with an epmd, ports and directories of its own; one that runs
as a service is not touched. Messages are persistent in a durable queue, or in a stream, which is always on disk.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from perf.ceiling import programs
from perf.peers import python_clients
from perf.peers.base import Child, Figures, PeerFailed, figures, free_port, run

HERE = Path(__file__).parent
BUILD = HERE / "build"
AMQP_HEADER = Path("/usr/include/amqp_tcp_socket.h")
# Debian's own first: what it puts into the PATH insists on the service's user and directories.
SERVERS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
QUEUE = "fastlog-peer"


def server_or_none() -> str | None:
    """The command that starts a node; None where RabbitMQ is not installed."""
    return next(filter(None, map(shutil.which, SERVERS)), None)


def epmd_or_none() -> str | None:
    """Erlang's name server: in the PATH, or beside the run-time system as Debian has it."""
    beside = sorted(Path("/usr/lib/erlang").glob("erts-*/bin/epmd"))
    return shutil.which("epmd") or (str(beside[-1]) if beside else None)


def configuration(port: int, stream_port: int) -> str:
    """The text of rabbitmq.conf: everything on loopback, and no alarm because of a small disk."""
    return f"""\
listeners.tcp.1 = 127.0.0.1:{port}
stream.listeners.tcp.1 = 127.0.0.1:{stream_port}
stream.advertised_host = 127.0.0.1
stream.advertised_port = {stream_port}
disk_free_limit.absolute = 100MB
log.console.level = warning
"""


def environment(directory: Path, epmd_port: int, dist_port: int) -> dict[str, str]:
    """What makes a node one of its own: name, directories, cookie, name server; all below ``directory``."""
    return {
        "HOME": str(directory),  # the Erlang cookie is made there
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"fastlog-peer-{os.getpid()}@localhost",
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONF_ENV_FILE": str(directory / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_CONFIG_FILES": str(directory / "conf.d"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(directory / "pid"),
    }


class Node:
    """One RabbitMQ with the stream plugin, and its epmd."""

    def __init__(self, directory: Path) -> None:
        server, epmd = server_or_none(), epmd_or_none()
        if server is None or epmd is None:
            raise PeerFailed("rabbitmq-server or epmd is not installed")
        self.port, self.stream_port, epmd_port, dist_port = (free_port() for _ in range(4))
        self.version = "RabbitMQ"
        (directory / "rabbitmq.conf").write_text(configuration(self.port, self.stream_port))
        (directory / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        env = environment(directory, epmd_port, dist_port)
        self._children: list[Child] = []
        try:
            # The node would start one that outlives it.
            names = Child("epmd", [epmd, "-port", str(epmd_port), "-address", "127.0.0.1"], env, directory / "epmd.log")
            self._children.append(names)
            names.wait_port(epmd_port)
            node = Child("rabbitmq-server", [server], env, directory / "rabbitmq.log")
            self._children.append(node)
            node.wait_port(self.port)
            node.wait_port(self.stream_port)
            found = re.search(r"RabbitMQ (\d[\w.]*)", node.log.read_text(errors="replace"))
            if found:
                self.version = found[0]
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the node, then its epmd."""
        while self._children:
            self._children.pop().stop(30.0)


class _RabbitMQ(ABC):
    def __init__(self) -> None:
        self._node: Node | None = None

    def available(self) -> str | None:
        if server_or_none() is None:
            return "rabbitmq-server is not installed: apt-get install rabbitmq-server"
        if epmd_or_none() is None:
            return "epmd is not installed: apt-get install erlang-base"
        return self._no_client()

    @abstractmethod
    def _no_client(self) -> str | None:
        """What its client lacks here, in one line."""

    def start(self, directory: Path) -> None:
        self._node = Node(directory)

    @property
    def node(self) -> Node:
        """The running node."""
        if self._node is None:
            raise PeerFailed("RabbitMQ is not started")
        return self._node

    def stop(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.stop()


def _amqp_client() -> str | None:
    """Which client there is for AMQP: C when its library's headers are, else Python's."""
    if programs.compiler_or_none() is not None and AMQP_HEADER.exists():
        return "librabbitmq"
    return "pika" if importlib.util.find_spec("pika") else None


class RabbitClassic(_RabbitMQ):
    """A classic queue: the paper's peer. AMQP publishes single messages, so ``batch`` changes nothing."""

    name: ClassVar[str] = "rabbitmq-classic"
    title: ClassVar[str] = "RabbitMQ, classic queue"
    default_messages: ClassVar[int] = 400_000

    def _no_client(self) -> str | None:
        if _amqp_client() is None:
            return "there is no AMQP client: apt-get install librabbitmq-dev gcc, or pip install pika"
        return None

    def produce(self, messages: int, size: int = 200, batch: int = 50) -> Figures:
        return self._run("produce", messages, size)

    def consume(self, messages: int) -> Figures:
        return self._run("consume", messages, 1)

    def _run(self, mode: str, messages: int, size: int) -> Figures:
        node = self.node
        if _amqp_client() == "pika":
            measure = python_clients.pika_produce if mode == "produce" else python_clients.pika_consume
            return {**measure(node.port, QUEUE, messages, size), "broker": node.version}
        program = programs.build(HERE / "amqp_client.c", ["-lrabbitmq"], BUILD)
        command = [str(program), mode, "--port", str(node.port), "--queue", QUEUE]
        output = run(program.name, [*command, "--messages", str(messages), "--size", str(size)])
        return figures(output, messages, client="librabbitmq", broker=node.version)


def _stream_client() -> str | None:
    if programs.compiler_or_none() is not None:
        return "C"
    return "rstream" if importlib.util.find_spec("rstream") else None


class RabbitStream(_RabbitMQ):
    """A stream: the peer to beat today. Publishes in frames of ``batch`` messages, a window of them unconfirmed."""

    name: ClassVar[str] = "rabbitmq-stream"
    title: ClassVar[str] = "RabbitMQ, stream"
    default_messages: ClassVar[int] = 10_000_000

    def _no_client(self) -> str | None:
        if _stream_client() is None:
            return "there is no stream client: apt-get install gcc, or pip install rstream"
        return None

    def produce(self, messages: int, size: int = 200, batch: int = 50) -> Figures:
        return self._run("produce", messages, size, batch)

    def consume(self, messages: int) -> Figures:
        return self._run("consume", messages, 1, 1)

    def _run(self, mode: str, messages: int, size: int, batch: int) -> Figures:
        node = self.node
        if _stream_client() == "rstream":
            measure = python_clients.rstream_produce if mode == "produce" else python_clients.rstream_consume
            return {**measure(node.stream_port, QUEUE, messages, size, batch), "broker": node.version}
        program = programs.build(HERE / "stream_client.c", directory=BUILD)
        command = [str(program), mode, "--port", str(node.stream_port), "--stream", QUEUE]
        command += ["--messages", str(messages), "--size", str(size), "--batch", str(batch)]
        return figures(run(program.name, command), messages, client="stream_client.c", broker=node.version)
