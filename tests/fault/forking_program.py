"""The program that forks while its threads send and read; each child finds out what it may use."""

from __future__ import annotations

import faulthandler
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from typing import Any

from fastlog import Producer, SimpleConsumer
from fastlog.errors import ForkedError

HANG_SECONDS = 60.0
CHILD_SECONDS = 30


class Program:
    """A parent with a busy producer and a busy consumer."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.port: int = told["port"]
        self.topic: str = told["topic"]
        self.source = random.Random(told["seed"])
        self.violations: list[str] = []
        self.sent = 0
        self.producer = self._producer()
        self.consumer = SimpleConsumer("127.0.0.1", self.port)
        self.over = threading.Event()

    def _producer(self) -> Producer:
        return Producer(f"127.0.0.1:{self.port}", producer_type="async", queue_time_ms=1, batch_messages=5)

    def send(self) -> None:
        """For a thread: as fast as it can, within limits."""
        while not self.over.is_set():
            self.producer.send(self.topic, b"parent")
            self.sent += 1
            if self.sent % 20 == 0:
                time.sleep(0.001)

    def read(self) -> None:
        """For a thread."""
        while not self.over.is_set():
            self.consumer.fetch(self.topic, 0, 0, 1000)

    def fork(self, number: int) -> None:
        """One child, by ``os.fork`` or by multiprocessing, and how it ended."""
        time.sleep(self.source.uniform(0, 0.01))
        if self.source.random() < 0.3:
            method = self.source.choice(["fork", "fork", "spawn", "forkserver"])
            process = multiprocessing.get_context(method).Process(
                target=child_of_multiprocessing, args=(self.port, self.topic, number)
            )
            process.start()
            process.join(HANG_SECONDS)
            if process.exitcode != 0:
                self.violations.append(f"child {number} by {method} ended with {process.exitcode}")
            return
        pid = os.fork()
        if pid == 0:
            signal.alarm(CHILD_SECONDS)
            code = 1
            try:
                self.inherited()
                work(self.port, self.topic, number)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if status:
            self.violations.append(f"child {number} by fork ended with {os.waitstatus_to_exitcode(status)}")

    def inherited(self) -> None:
        """In a child: what belongs to the parent says so, and can be let go of."""
        for call in (
            lambda: self.producer.send(self.topic, b"never"),
            lambda: self.producer.flush(),
            lambda: self.consumer.fetch(self.topic, 0, 0),
        ):
            try:
                call()
            except ForkedError:
                continue
            raise AssertionError("no ForkedError")
        self.producer.close()
        self.consumer.close()


def work(port: int, topic: str, number: int) -> None:
    """In a child: three messages, and the first of the log."""
    with Producer(f"127.0.0.1:{port}", producer_type="async") as producer:
        producer.send(topic, [b"child %d" % number] * 3)
    with SimpleConsumer("127.0.0.1", port) as consumer:
        consumer.fetch(topic, 0, 0)


def child_of_multiprocessing(port: int, topic: str, number: int) -> None:
    """The same, with a producer that nobody closes."""
    signal.alarm(CHILD_SECONDS)
    producer = Producer(f"127.0.0.1:{port}", producer_type="async")
    producer.send(topic, [b"child %d" % number] * 3)


def main(told: dict[str, Any]) -> dict[str, Any]:
    """``children`` forks, one after the other."""
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # from Python 3.12 on; that is what is tried
    program = Program(told)
    program.producer.send(told["topic"], b"parent")
    program.sent += 1
    threads = [threading.Thread(target=program.send), threading.Thread(target=program.read)]
    for thread in threads:
        thread.start()
    for number in range(told["children"]):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        program.fork(number)
    program.over.set()
    for thread in threads:
        thread.join()
    program.producer.close()
    program.consumer.close()
    return {"children": told["children"], "sent": program.sent, "violations": program.violations}


if __name__ == "__main__":
    logging.disable()
    print(json.dumps(main(json.loads(sys.argv[1]))))
