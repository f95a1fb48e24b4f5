"""An Apache Kafka of today, run from the jars that ``FASTLOG_KAFKA_CLASSPATH`` names (``scripts/compat`` sets it)."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from fastlog.java import find_java
from tests.harness.broker import die_with_parent, wait_until
from tests.harness.ports import unused_port

VARIABLE = "FASTLOG_KAFKA_CLASSPATH"
SECONDS = 120.0
"""A Java starts slowly on a busy machine."""

is_there = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no jars: scripts/compat does")


def command(main: str, *arguments: str) -> list[str]:
    """The words that run one of its programs."""
    java = [str(find_java()), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", os.environ[VARIABLE]]
    return [*java, main, *arguments]


def run(main: str, *arguments: str) -> str:
    """What one of its programs prints; it has to end well."""
    done = subprocess.run(command(main, *arguments), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Kafka:
    """One broker, its own controller unless it is another's, with a log directory that stays over restarts."""

    def __init__(
        self, directory: Path, *, settings: Mapping[str, object] | None = None, beside: Kafka | None = None
    ) -> None:
        """``beside``: a further broker of that one's cluster, which has its controller."""
        directory.mkdir(parents=True, exist_ok=True)
        self.log_dir = directory / "data"
        self.port, self.controller_port = unused_port(), unused_port()
        self.node, roles, listeners = 1, "broker,controller", f",CONTROLLER://127.0.0.1:{self.controller_port}"
        self.cluster = base64.urlsafe_b64encode(b"a" + os.urandom(15))[:22].decode()  # without starting a Java
        if beside is not None:
            self.node, roles, listeners = beside.node + 1, "broker", ""
            self.controller_port, self.cluster = beside.controller_port, beside.cluster
        self._said = directory / "kafka.log"
        self._settings = directory / "server.properties"
        self._settings.write_text(
            f"""process.roles={roles}
node.id={self.node}
controller.quorum.voters=1@127.0.0.1:{self.controller_port}
listeners=PLAINTEXT://127.0.0.1:{self.port}{listeners}
controller.listener.names=CONTROLLER
log.dirs={self.log_dir}
offsets.topic.replication.factor=1
num.network.threads=1
num.io.threads=1
log.segment.bytes=1048576
"""
            + "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
        )
        run("kafka.tools.StorageTool", "format", "-t", self.cluster, "-c", str(self._settings))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        with self._said.open("ab") as said:
            self.process = subprocess.Popen(
                command("kafka.Kafka", str(self._settings)),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                preexec_fn=die_with_parent,
            )
        wait_until("Kafka answers", self._answers, SECONDS)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._said.read_text(errors="replace")[-4000:]
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
