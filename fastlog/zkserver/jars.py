"""Where the jars of ZooKeeper are on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import NamedTuple

from fastlog.errors import MissingDependencyError
from fastlog.installation import how_to_install

CLASS_PATH_VARIABLE = "FASTLOG_ZK_CLASSPATH"
SYSTEM_JAR = Path("/usr/share/java/zookeeper.jar")

# Of Spark's 280 jars, those that the server loads. Without the last group it runs and says nothing.
_SERVER_JARS = (
    r"zookeeper(-jute)?",
    r"slf4j-api",
    r"metrics-core",
    r"snappy-java",
    r"commons-io",
    r"netty-(common|handler|transport|buffer|resolver|codec|codec-base)",
    r"netty-transport-(native-unix-common|classes-epoll)",
)
_LOGGING_JARS = (r"log4j-(api|core|slf4j2?-impl)",)


class ClassPath(NamedTuple):
    """The jars of a ZooKeeper server; ``origin`` says whose they are."""

    origin: str
    jars: tuple[str, ...]
    can_log: bool

    def __str__(self) -> str:
        return os.pathsep.join(self.jars)


def find_class_path() -> ClassPath:
    """The first of: ``FASTLOG_ZK_CLASSPATH``, the system's package, the jars of an installed pyspark.

    Raises:
        MissingDependencyError: there is none of them; says what to install.
    """
    named = os.environ.get(CLASS_PATH_VARIABLE)
    if named:
        jars = tuple(item for item in named.split(os.pathsep) if item)
        missing = [item for item in jars if not item.endswith("*") and not Path(item).exists()]
        if missing:
            raise MissingDependencyError(f"{CLASS_PATH_VARIABLE} names {missing[0]}, which is not there")
        return ClassPath(CLASS_PATH_VARIABLE, jars, True)
    if SYSTEM_JAR.exists():
        return ClassPath(str(SYSTEM_JAR), (str(SYSTEM_JAR),), True)
    found = importlib.util.find_spec("pyspark")
    if found is not None and found.submodule_search_locations:
        directory = Path(next(iter(found.submodule_search_locations))) / "jars"
        jars = _matching(directory, _SERVER_JARS)
        if any(Path(jar).name.startswith("zookeeper-") for jar in jars):
            logging = _matching(directory, _LOGGING_JARS)
            return ClassPath(f"pyspark's jars in {directory}", jars + logging, bool(logging))
    raise MissingDependencyError(
        f"no ZooKeeper server is on this machine: {_how_to_install()},\nor the system's package"
        f" (apt-get install zookeeper), or {CLASS_PATH_VARIABLE}=<its jars>"
    )


def _how_to_install() -> str:
    return f"{how_to_install('zookeeper')} (a download of about 490 MB: Spark's jars, which hold it, and a Java)"


def _matching(directory: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    wanted = re.compile(rf"({'|'.join(names)})-\d[^/]*\.jar")
    if not directory.is_dir():
        return ()
    return tuple(str(path) for path in sorted(directory.iterdir()) if wanted.fullmatch(path.name))
