"""R-5 and R-6: programs that end, and programs that fork, with messages still in a queue."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fault.programs import ROOT, environment, run_program
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.proxy import Proxy

AT_ONCE = 4
SCRIPT_SECONDS = 60.0
PARTITIONS = 2

HEAD = """
import sys
from fastlog import Producer
address, topic, payload = sys.argv[1], sys.argv[2], sys.argv[3].encode()
"""
ASYNC = "producer = Producer(address, producer_type='async')\n"
SEND = "producer.send(topic, payload)\n"
SCRIPTS: dict[str, tuple[str, int]] = {
    "ends": (ASYNC + SEND, 0),
    "ends, synchronous": ("Producer(address).send(topic, payload)\n", 0),
    "long queue time": (ASYNC.replace(")", ", queue_time_ms=600_000, batch_messages=10_000)") + SEND, 0),
    "gzip": (ASYNC.replace(")", ", compression='gzip')") + SEND, 0),
    "flushed": (ASYNC.replace(")", ", acks='flushed')") + SEND, 0),
    "unacknowledged": (ASYNC.replace(")", ", acks='none')") + SEND, 0),
    "key": (ASYNC + "producer.send(topic, payload, key='k')\n", 0),
    "exit": (ASYNC + SEND + "sys.exit(3)\n", 3),
    "exception": (ASYNC + SEND + "raise SystemError('on purpose')\n", 1),
    "lost reference": (ASYNC + SEND + "del producer\n", 0),
    "cycle": (ASYNC + SEND + "cycle = [producer]; cycle.append(cycle); del producer, cycle\n", 0),
    "thread": (
        ASYNC + "import threading\nthreading.Thread(target=producer.send, args=(topic, payload)).start()\n",
        0,
    ),
    "handler": (
        "from fastlog.producer import CallbackHandler\n"
        + ASYNC.replace(")", ", callback_handler=CallbackHandler())")
        + SEND,
        0,
    ),
    "exit handler": (ASYNC + "import atexit\natexit.register(producer.send, topic, payload)\n", 0),
    "SyncProducer": (
        "from fastlog import SyncProducer\nhost, port = address.split(':')\n"
        "SyncProducer(host, int(port)).send(topic, payload, 0)\n",
        0,
    ),
}
GONE = (
    "producer = Producer(address, producer_type='async', close_timeout_ms=300)\n"
    "producer.send(topic, b'first')\nproducer.flush()\n"
    "print('ready', flush=True)\nsys.stdin.readline()\n"
    "producer.send(topic, [payload] * {count})\n"
)


@scenario("exits", "programs that send one message and end without flush", small=10, nightly=1000, release=10_000)
def exits(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` programs; for every fifth the broker does not answer any more, and that must be said."""
    outcome = Outcome()
    source = random.Random(seed)
    names = sorted(SCRIPTS)
    source.shuffle(names)
    expected = []
    with Broker(directory, settings={"num.partitions": PARTITIONS}) as broker, ThreadPoolExecutor(AT_ONCE) as pool:
        found = []
        for number in range(count):
            if number % 5 == 4:
                found.append(pool.submit(_gone, broker.port, source.randrange(1, 50), number))
            else:
                name = names[number % len(names)]
                expected.append(b"%d" % number)
                found.append(pool.submit(_ends, broker.port, name, number))
        for item in found:
            outcome.violations += item.result()
            outcome.runs += 1
        stored = [
            payload
            for partition in range(PARTITIONS)
            if broker.has_directory("t", partition)
            for payload in raw.deep_payloads(broker.stored_bytes("t", partition))
        ]
    lost = set(expected) - set(stored)
    outcome.expect(not lost, f"lost: {sorted(lost)[:20]}")
    outcome.expect(len(stored) == len(set(stored)), "something was stored twice, and no connection broke")
    return outcome


def _ends(port: int, name: str, number: int) -> list[str]:
    program, code = SCRIPTS[name]
    run = subprocess.run(
        [sys.executable, "-c", HEAD + program, f"127.0.0.1:{port}", "t", str(number)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
    )
    said = run.stderr if name != "exception" else ""
    if run.returncode != code or said:
        return [f"{name} ended with {run.returncode}: {run.stderr}"]
    return []


def _gone(port: int, count: int, number: int) -> list[str]:
    """The broker is reached through a proxy that stands still once the program has begun."""
    with Proxy([port]) as proxy:
        program = subprocess.Popen(
            [sys.executable, "-c", HEAD + GONE.format(count=count), proxy.address, f"gone{number}", "x"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        program.stdout.readline()
        proxy.stall_after(0)
        try:
            _, said = program.communicate("\n", SCRIPT_SECONDS)
        except subprocess.TimeoutExpired:
            program.kill()
            program.communicate()
            return [f"a program whose {count} messages cannot be delivered does not end"]
    line = re.search(r"PRODUCER LEFT OPEN AT EXIT: (\d+) messages", said)
    if program.returncode != 1 or line is None or int(line[1]) != count:
        return [f"{count} messages were lost; exit code {program.returncode}: {said}"]
    return []


@scenario("forks", "forks at random moments while other threads send", small=10, nightly=500, release=5000)
def forks(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` children that use what they inherited and a producer and a consumer of their own, then end."""
    outcome = Outcome()
    with Broker(directory, settings={"num.partitions": 1}) as broker:
        for number, done in enumerate(range(0, count, 100)):
            topic = f"t{number}"
            children = min(100, count - done)
            answer = run_program(
                "tests.fault.forking_program",
                300.0,
                seed=f"{seed} {done}",
                children=children,
                port=broker.port,
                topic=topic,
            )
            outcome.runs += answer.get("children", 0)
            outcome.violations += answer["violations"]
            stored = raw.deep_payloads(broker.stored_bytes(topic, 0)) if broker.has_directory(topic, 0) else []
            outcome.expect(b"never" not in stored, "a child sent with the producer of its parent")
            for child in range(children):
                found = stored.count(b"child %d" % child)
                outcome.expect(found == 3, f"child {child} delivered {found} of 3 messages")
            sent = answer.get("sent", 0)
            found = stored.count(b"parent")
            outcome.expect(found == sent, f"the parent delivered {found} of {sent} messages")
    return outcome
