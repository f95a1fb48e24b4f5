"""What is missing for Spark is one clear line."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastlog.errors import MissingDependencyError
from fastlog.spark import environment
from fastlog.spark.environment import check_java, use_this_python


def java_in(directory: Path, says: str) -> Path:
    """A Java that says its version and no more."""
    (directory / "bin").mkdir()
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("says", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "21" 2023', 21), ('openjdk version "17-ea"', 17)],
)
def test_a_java_that_is_new_enough(says: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_in(tmp_path, says)))
    assert check_java() == version


@pytest.mark.parametrize(
    ("says", "what"),
    [
        ('java version "1.8.0_401"', "Spark needs Java 17, and .* is Java 8: install Java 17 or 21"),
        ('openjdk version "11.0.2"', "is Java 11"),
        ("hello", "does not tell its version"),
    ],
)
def test_a_java_that_will_not_do(says: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_in(tmp_path, says)))
    with pytest.raises(MissingDependencyError, match=what) as caught:
        check_java()
    assert "\n" not in str(caught.value)


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"there is no java in PATH: install Java 17 or 21"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        check_java()


@pytest.mark.parametrize("name", ["pyspark.sql.streaming.datasource", "pyarrow"])
def test_a_package_that_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older pyspark lacks the first."""
    for loaded in [item for item in sys.modules if item == name or item.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'fastlog-broker\[spark\]'") as caught:
        environment.session()
    assert "\n" not in str(caught.value)


def test_workers_run_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user has chosen another one."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/mine")
    use_this_python()
    assert (os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"]) == (sys.executable, "/mine")


def java_options_of_a_start(monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``context`` tells Spark's starter about Java, which is not started."""
    from pyspark import SparkContext

    seen: list[str] = []
    monkeypatch.setattr(SparkContext, "getOrCreate", lambda conf: seen.append(os.environ["SPARK_SUBMIT_OPTS"]))
    environment.context()
    (options,) = seen
    return options


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "own",
    ["-XX:+UseG1GC", "-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:-TieredCompilation", "-XX:TieredStopAtLevel=4"],
)
def test_java_takes_the_options_of_a_user_behind_those_of_a_start(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they come from ``spark.driver.extraJavaOptions``; of two that contradict each other Java may refuse both."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    given = java_options_of_a_start(monkeypatch)
    assert "SPARK_SUBMIT_OPTS" not in os.environ, "processes that are started later are not meant"
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    done = subprocess.run([java, *given.split(), own, "-version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.slow
def test_how_a_user_lets_java_run_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+UseG1GC")
    assert java_options_of_a_start(monkeypatch) == os.environ["SPARK_SUBMIT_OPTS"] == "-XX:+UseG1GC"


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.slow
def test_why_the_source_cannot_be_used_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would say that there is no such source, if the module that it looks for could not be imported."""
    monkeypatch.delitem(sys.modules, "pyspark_fastlog", raising=False)
    monkeypatch.setitem(sys.modules, "fastlog.spark.source", None)
    source = importlib.import_module("pyspark_fastlog").DefaultSource
    monkeypatch.delitem(sys.modules, "pyspark_fastlog")
    assert source.name() == "fastlog"
    with pytest.raises(ImportError, match=r"needs pyspark 4\.2 or newer, and fastlog with its extensions built: "):
        source({})
