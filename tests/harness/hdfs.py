"""Hadoop's HDFS in one process, from the jars that ``FASTLOG_HDFS_CLASSPATH`` names (``scripts/compat`` sets it)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from fastlog.java import find_java
from tests.harness.broker import die_with_parent, wait_until
from tests.harness.ports import unused_port

VARIABLE = "FASTLOG_HDFS_CLASSPATH"
SECONDS = 120.0
"""A Java starts slowly on a busy machine."""

is_there = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no jars: scripts/compat does")


class Hdfs:
    """A name node and a data node, whose files stay over restarts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True)
        self._port = unused_port()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, name: str) -> str:
        return f"hdfs://localhost:{self._port}/{name}"

    def __enter__(self) -> Self:
        self.start("-format")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self, *more: str) -> None:
        """Start it; returns once it serves."""
        serves = self._directory / "serves.json"
        serves.unlink(missing_ok=True)
        java = [str(find_java()), "-Xmx512m", "-XX:+UseSerialGC", f"-Dtest.build.data={self._directory / 'data'}"]
        java += ["-cp", os.environ[VARIABLE], "org.apache.hadoop.test.MiniDFSClusterManager"]
        places = ["-datanodes", "1", "-nnport", str(self._port), "-httpport", str(unused_port())]
        with (self._directory / "hdfs.log").open("ab") as said:
            self._process = process = subprocess.Popen(
                [*java, *places, "-writeDetails", str(serves), *more],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self._directory,
                preexec_fn=die_with_parent,
            )

        def there() -> bool:
            assert process.poll() is None, (self._directory / "hdfs.log").read_text(errors="replace")[-4000:]
            return serves.exists()

        wait_until("HDFS serves", there, SECONDS)

    def pause(self) -> None:
        """It answers nobody until it goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with SIGKILL; its files stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(SECONDS)
            self._process = None
