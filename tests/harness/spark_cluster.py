"""Spark's own cluster, a master and workers, of which no two see a directory of each other's.

Each worker is in a mount namespace of its own: it has Spark, a Java, the Python of the system and a directory, and
empty ones where this checkout, its environment and the tests' directories are.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Self

import psutil
import pyspark

from fastlog.java import find_spark_java
from tests.harness.broker import die_with_parent, wait_until
from tests.harness.checkout import ROOT
from tests.harness.ports import unused_port

SPARK = Path(pyspark.__file__).parent
_START_SECONDS = 120.0
_JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_HOME, _WORK = "/mnt/spark", "/mnt/work"


def why_not() -> str | None:
    """What keeps such a cluster from running here; None when nothing does."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return "this user may not make mount namespaces"
    if find_spark_java().is_launched:
        return "there is no Java of the machine that Spark starts by itself"
    if bare_python() is None:
        return "there is no Python of the system with this one's version and without pyarrow"
    return None


def bare_python() -> str | None:
    """One of this version that has neither fastlog nor what it requires, outside of what workers do not see."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    asks = "import importlib.util as u, sysconfig as s; print(s.get_config_var('SOABI'), u.find_spec('pyarrow'))"
    for directory in ("/usr/bin", "/usr/local/bin", Path(sys.base_prefix) / "bin"):
        path = Path(directory) / name
        if path.exists() and not path.is_relative_to(ROOT):
            said = subprocess.run([path, "-I", "-c", asks], capture_output=True, text=True).stdout.strip()
            if said == f"{sysconfig.get_config_var('SOABI')} None":
                return str(path)
    return None


def _host(number: int) -> str:
    """Of a worker: executors of one host would read each other's files."""
    return f"127.0.0.{number + 2}"


class SparkCluster:
    """A master and some workers, each of one core, while the ``with`` block lasts."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * workers
        self._master: subprocess.Popen[bytes] | None = None
        self._java = str(Path(find_spark_java().path).resolve())
        self._port = unused_port()
        python = bare_python()
        assert python is not None
        # Not the directory of this Python, which may hold programs of the same name with everything.
        bin_directory = directory / "bin"
        bin_directory.mkdir(parents=True)
        (bin_directory / Path(python).name).symlink_to(python)
        self._python = python

    @property
    def url(self) -> str:
        """The URL for ``--master``."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """Of machines of the cluster: nothing in it leads to this checkout."""
        return {
            "PATH": "/usr/bin:/bin",
            "FASTLOG_PYTHON": self._python,
            "JAVA_HOME": str(Path(self._java).parents[1]),
            "SPARK_HOME": str(SPARK),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JVM_OPTIONS,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
            "HOME": "/nonexistent",
            "LANG": "C.UTF-8",
        }

    def __enter__(self) -> Self:
        try:
            with (self._directory / "master.log").open("ab") as log:
                self._master = subprocess.Popen(
                    [
                        *(str(SPARK / "bin" / "spark-class"), _MASTER),
                        *("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"),
                    ],
                    env=self.environment,
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=die_with_parent,
                    start_new_session=True,
                )
            for number in range(len(self._workers)):
                self.start_worker(number)
            for number in range(len(self._workers)):
                self.wait_registered(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(len(self._workers)):
            self.kill_worker(number)
        if self._master is not None:
            self._master.kill()
            self._master.wait()

    def own(self, number: int) -> Path:
        """The directory of a worker, which it sees under another name."""
        return self._directory / f"worker{number}"

    def start_worker(self, number: int) -> None:
        """Start a worker with an empty directory."""
        own = self.own(number)
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        java_home = Path(self._java).parents[1]
        hidden = {str(ROOT), str(self._directory), os.environ.get("TMPDIR", "/tmp"), "/tmp"}
        steps = [
            "mount -t tmpfs tmpfs /mnt",
            f"mkdir {_HOME} {_WORK} /mnt/java",
            f"mount --bind {shlex.quote(str(SPARK))} {_HOME}",
            f"mount --bind {shlex.quote(str(own))} {_WORK}",
            f"mount --bind {shlex.quote(str(java_home))} /mnt/java",
            *(f"mount -t tmpfs tmpfs {shlex.quote(place)}" for place in sorted(hidden, reverse=True)),
            f"cd {_WORK}",
            f"exec {_HOME}/bin/spark-class {_WORKER} --host {_host(number)} --webui-port 0 --cores 1 --memory 1g"
            f" --work-dir {_WORK} {self.url}",
        ]
        environment = {**self.environment, "SPARK_HOME": _HOME, "JAVA_HOME": "/mnt/java"}
        environment |= {"SPARK_LOCAL_IP": _host(number), "SPARK_LOCAL_HOSTNAME": _host(number)}
        with (self._directory / f"worker{number}.log").open("wb") as log:
            self._workers[number] = subprocess.Popen(
                ["unshare", "-m", "--propagation", "private", "sh", "-ec", "\n".join(steps)],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )

    def wait_registered(self, number: int) -> None:
        """Returns once the master knows a worker."""

        def there() -> bool:
            process = self._workers[number]
            said = (self._directory / f"worker{number}.log").read_text(errors="replace")
            assert process is not None and process.poll() is None, f"the worker has ended:\n{said[-4000:]}"
            return "Successfully registered with master" in said

        wait_until(f"worker {number} is registered", there, _START_SECONDS)

    def kill_worker(self, number: int) -> int:
        """SIGKILL for a worker with its executors and their Pythons; how many processes that were."""
        process = self._workers[number]
        if process is None:
            return 0
        with contextlib.suppress(psutil.NoSuchProcess):
            everybody = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in everybody:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(everybody[1:], 20)
        process.wait(20)
        self._workers[number] = None
        return len(everybody)

    def executors(self, number: int) -> list[psutil.Process]:
        """The Java machines of a worker that run tasks, as long as they live."""
        process = self._workers[number]
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(process.pid).children(recursive=True) if process is not None else []:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any("CoarseGrainedExecutorBackend" in part for part in one.cmdline()):
                        found.append(one)
        return found

    def sees(self, number: int, path: Path) -> bool:
        """Whether a path is there for a worker."""
        process = self._workers[number]
        assert process is not None
        return os.path.lexists(f"/proc/{process.pid}/root{path}")
