"""librdkafka's ``rdkafka_performance``: built from the sources that a Rust package has, and run against a broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

NAME = "rdkafka_performance"
SOURCES = Path(__file__).parent
MANIFEST = ("Cargo.toml", "lib.rs")
CODECS = ("none", "gzip", "snappy", "lz4")
"""zstd is a library that a machine may not have where librdkafka is built."""
COUNT = 50_000
SIZE = 200
SECONDS = 120
BUILD_SECONDS = 1800


def build(directory: Path) -> str:
    """Make the program; why not, where it cannot be made."""
    for needed, remedy in (("cargo", "install cargo"), ("make", "install make"), ("cc", "install gcc")):
        if shutil.which(needed) is None:
            return f"{needed} is missing: {remedy}"
    place = directory / "librdkafka"
    place.mkdir(parents=True, exist_ok=True)
    for name in MANIFEST:
        shutil.copy(SOURCES / name, place)
    sources = place / "vendor" / "rdkafka-sys" / "librdkafka"
    jobs = f"-j{os.cpu_count() or 1}"
    for command, where in (
        (["cargo", "vendor", "--quiet", "vendor"], place),
        # what a machine may have or not is left out, so that the program is the same everywhere
        (["./configure", "--disable-ssl", "--disable-gssapi", "--disable-curl", "--disable-zstd"], sources),
        (["make", "-s", jobs, "-C", "src", "librdkafka.a"], sources),
        (["make", "-s", "-C", "examples", NAME], sources),
    ):
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if done.returncode:
            return f"{command[0]}: " + " ".join((done.stdout + done.stderr).split())[-300:]
    shutil.copy(sources / "examples" / NAME, directory / NAME)
    return ""


class Performance:
    """The program, against one broker."""

    def __init__(self, program: Path, address: str) -> None:
        self._program = program
        self._address = address

    def run(self, *words: str) -> str:
        """What it says.

        Raises:
            AssertionError: it failed, or did not end in time.
        """
        command = [str(self._program), "-b", self._address, *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{' '.join(words)}: not in {SECONDS} s: {str(error.stdout)[-300:]}") from None
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{' '.join(words)}: exit code {done.returncode}: {said[-300:]}"
        return said

    def produce(self, topic: str, *words: str, count: int = COUNT) -> None:
        """Write so many messages and wait for each one's delivery report."""
        said = self.run("-P", "-t", topic, "-s", str(SIZE), "-c", str(count), *words)
        delivered = [int(found) for found in re.findall(r"(\d+) delivered", said)]
        failed = [int(found) for found in re.findall(r"(\d+) failed", said)]
        assert delivered and delivered[-1] == count, f"{topic}: {delivered[-1:]} of {count} delivered: {said[-300:]}"
        assert not failed or failed[-1] == 0, f"{topic}: {failed[-1]} failed"

    def consume(self, topic: str, *words: str, count: int = COUNT) -> None:
        """Read them from the beginning."""
        said = self.run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), *words)
        self._expect_read(topic, said, count)

    def consume_in_group(self, topic: str, count: int = COUNT) -> None:
        """Read them as the only member of a group."""
        said = self.run("-G", f"{topic}-group", "-t", topic, "-c", str(count), "-X", "auto.offset.reset=earliest")
        self._expect_read(topic, said, count)

    def _expect_read(self, topic: str, said: str, count: int) -> None:
        found = [int(each) for each in re.findall(r"(\d+) messages", said)]
        assert found and max(found) >= count, f"{topic}: {max(found, default=0)} of {count} read: {said[-300:]}"


def checks(program: Path, address: str) -> list[tuple[str, Callable[[], None]]]:
    """What is tried: a name, and what raises AssertionError where it does not hold."""
    performance = Performance(program, address)

    def codec(name: str) -> None:
        topic = f"performance-{name}"
        performance.produce(topic, "-p", "0", "-z", name, "-a", "1")
        performance.consume(topic)

    def idempotent() -> None:
        words = ("-p", "0", "-a", "-1", "-X", "enable.idempotence=true")
        performance.produce("performance-idempotent", *words)
        performance.consume("performance-idempotent")

    def headers() -> None:
        performance.produce("performance-headers", "-p", "0", "-k", "key", "-H", "name=value")
        performance.consume("performance-headers", "-H", "parse")

    def batches() -> None:
        performance.consume("performance-none", "-B", "1000")

    def group() -> None:
        performance.produce("performance-group")
        performance.consume_in_group("performance-group")

    made: list[tuple[str, Callable[[], None]]] = [
        (f"{name}: written and read", lambda name=name: codec(name))  # type: ignore[misc]
        for name in CODECS
    ]
    return [
        *made,
        ("the idempotent producer, acks=all", idempotent),
        ("a key and headers", headers),
        ("read in batches", batches),
        ("read in a group, all partitions", group),
    ]
