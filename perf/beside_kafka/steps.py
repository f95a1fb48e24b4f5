"""What the clients do: each writes or reads records of 200 bytes, and says how many a second."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from perf.beside_kafka.systems import CLASSPATH, java
from perf.peers.base import PeerFailed
from perf.peers.kafka import parse_consumer, parse_producer

SIZE = 200
SECONDS = 900.0
PROGRAM = "FASTLOG_RDKAFKA_PERFORMANCE"
ROOT = Path(__file__).resolve().parents[2]
LATENCY_RATE = 10_000
LATENCY_MESSAGES = 100_000


class Load(NamedTuple):
    """What a step is given: ``partitions`` of a topic that is there."""

    address: str
    topic: str
    partitions: int
    messages: int


class Done(NamedTuple):
    """Records a second, and what else was found: milliseconds, the client's processor seconds."""

    rate: float
    more: Mapping[str, float] = {}


Step = Callable[[Load], Done]


def _run(name: str, command: list[str], **more: str) -> str:
    environment = {**os.environ, "LC_ALL": "C", **more}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"{name}: not done in {SECONDS:g} s") from None
    if done.returncode:
        raise PeerFailed(f"{name}: exit code {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout + done.stderr


def _last_rate(name: str, said: str, pattern: str, messages: int) -> float:
    found = re.findall(pattern, said)
    if not found or int(found[-1][0]) < messages:
        raise PeerFailed(f"{name}: {found[-1:]} of {messages}: {said[-300:]}")
    return int(found[-1][0]) / (int(found[-1][1]) / 1000)


def rdkafka_produce(load: Load) -> Done:
    """librdkafka's own program, acks=1, all partitions in turn."""
    command = [os.environ[PROGRAM], "-P", "-b", load.address, "-t", load.topic, "-s", str(SIZE), "-a", "1"]
    said = _run("rdkafka_performance -P", [*command, "-c", str(load.messages), "-q", "-X", "linger.ms=5"])
    return Done(_last_rate("rdkafka_performance -P", said, r"(\d+) messages produced.*?(\d+)ms", load.messages))


def rdkafka_consume(load: Load) -> Done:
    """Consume with librdkafka, as the only member of a group, with room: when its queue is full it pauses."""
    command = [os.environ[PROGRAM], "-G", f"{load.topic}-group", "-b", load.address, "-t", load.topic]
    queue = ["-X", f"queued.min.messages={load.messages}", "-X", "queued.max.messages.kbytes=2000000"]
    more = ["-c", str(load.messages), "-q", "-X", "auto.offset.reset=earliest", *queue]
    said = _run("rdkafka_performance -G", [*command, *more])
    return Done(_last_rate("rdkafka_performance -G", said, r"(\d+) messages .*?consumed in (\d+)ms", load.messages))


def java_produce(load: Load) -> Done:
    """Apache Kafka's ProducerPerformance, acks=1."""
    program = "org.apache.kafka.tools.ProducerPerformance"
    size = ("--num-records", str(load.messages), "--record-size", str(SIZE), "--throughput", "-1")
    settings = ("--producer-props", f"bootstrap.servers={load.address}", "acks=1", "linger.ms=5")
    said = _run("ProducerPerformance", java(program, "--topic", load.topic, *size, *settings))
    return Done(float(parse_producer(said, load.messages)["rate"]))


def java_consume(load: Load) -> Done:
    """Apache Kafka's ConsumerPerformance; the rate of fetching, without the wait for its group."""
    program = "org.apache.kafka.tools.ConsumerPerformance"
    place = ("--bootstrap-server", load.address, "--topic", load.topic)
    said = _run("ConsumerPerformance", java(program, *place, "--messages", str(load.messages), "--timeout", "60000"))
    return Done(float(parse_consumer(said, load.messages)["rate"]))


def in_python(client: str, what: str) -> Step:
    """A client of Python's, in a process of its own (``clients.py``)."""

    def step(load: Load) -> Done:
        command = [sys.executable, "-m", "perf.beside_kafka.clients", client, what, json.dumps(load._asdict())]
        found = json.loads(_run(f"{client} {what}", command).splitlines()[-1])
        return Done(found.pop("rate"), found)

    return step


def why_not(name: str) -> str | None:
    """None where the step's client is there."""
    if name.startswith("rdkafka") and not os.access(os.environ.get(PROGRAM, ""), os.X_OK):
        return f"{PROGRAM} does not name rdkafka_performance; scripts/compat clients librdkafka builds it"
    if name.startswith("java") and CLASSPATH not in os.environ:
        return f"{CLASSPATH} names no jars; scripts/compat fetches them"
    if shutil.which("java") is None and name.startswith("java"):
        return "there is no Java"
    return None


class Pair(NamedTuple):
    """A client's two steps: what is written is read afterwards."""

    produce: Step
    consume: Step
    share: float = 1.0
    """Of the records that were asked for: Python's slow clients get fewer."""


CLIENTS = {
    "rdkafka_performance": Pair(rdkafka_produce, rdkafka_consume),
    "java": Pair(java_produce, java_consume),
    "confluent-kafka": Pair(in_python("confluent", "produce"), in_python("confluent", "consume"), 0.5),
    "kafka-python": Pair(in_python("kafka-python", "produce"), in_python("kafka-python", "consume"), 0.05),
    "aiokafka": Pair(in_python("aiokafka", "produce"), in_python("aiokafka", "consume"), 0.05),
}
LATENCY = in_python("confluent", "latency")
