"""Tasks in the background, in the style of Celery: what is called with ``delay`` is run by another process.

``python examples/tasks.py work localhost:9092 4`` runs tasks in four processes until it gets SIGTERM; as many can be
busy as the topic has partitions. ``python examples/tasks.py ask localhost:9092 hello world`` asks for one.

A task is committed when it has run: where its process dies before, another runs it again, so tasks have to bear that.
One that raises is tried again, and then put, with its error, into a topic of its own, so that it stops nobody.
"""

import functools
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import fastlog


class Tasks:
    """Functions that others run, and the topic in which they are asked for."""

    def __init__(self, broker: str, topic: str = "tasks", *, tries: int = 3) -> None:
        self.broker = broker
        self.topic = topic
        self.tries = tries
        self.functions: dict[str, Callable[..., Any]] = {}

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: ``function.delay(…)`` has a worker run it."""
        name = function.__name__
        self.functions[name] = function
        function.delay = functools.partial(self.ask, name)  # type: ignore[attr-defined]
        return function

    def ask(self, name: str, *args: Any, **named: Any) -> None:
        """Returns when the broker has the task: it is run, whatever becomes of this process."""
        wanted = {"task": name, "args": args, "named": named}
        producer_of(self.broker, os.getpid()).send(self.topic, json.dumps(wanted).encode())

    def work(self, processes: int) -> None:
        """Run tasks in so many processes until this one gets SIGTERM or SIGINT; those under way are finished."""
        context = multiprocessing.get_context("fork")  # nothing of fastlog has been made here
        workers = [context.Process(target=self._work) for _ in range(processes)]
        for worker in workers:
            worker.start()

        def end(number: int, frame: FrameType | None) -> None:
            for worker in workers:
                worker.terminate()

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        for worker in workers:
            worker.join()

    def _work(self) -> None:
        is_ending: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: is_ending.append(number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the parent tells when
        with fastlog.Consumer(brokers=self.broker, group_id=f"{self.topic}-workers") as consumer:
            (stream,) = consumer.create_message_streams({self.topic: 1}, acknowledge=True)[self.topic]
            while not is_ending:
                message = stream.poll(0.5)
                if not isinstance(message, fastlog.NoMessage):
                    self._run(message.payload)
                    stream.done(message)
                    consumer.commit_offsets()

    def _run(self, payload: bytes) -> None:
        for left in reversed(range(self.tries)):
            try:
                wanted = json.loads(payload)
                self.functions[wanted["task"]](*wanted["args"], **wanted["named"])
                return
            except Exception:
                if not left:
                    failed = {"payload": payload.decode(errors="replace"), "error": traceback.format_exc()}
                    failures = producer_of(self.broker, os.getpid())
                    failures.send(f"{self.topic}-failed", json.dumps(failed).encode())


@functools.cache
def producer_of(broker: str, process: int) -> fastlog.Producer:
    """The producer of this process: that of a parent belongs to it."""
    return fastlog.Producer(broker)


tasks = Tasks(sys.argv[2] if len(sys.argv) > 2 else "localhost:9092")


@tasks.task
def hello(name: str) -> None:
    """An example of a task."""
    print(f"hello {name}, from process {os.getpid()}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        tasks.work(int(sys.argv[3]))
    else:
        tasks.ask(sys.argv[3], *sys.argv[4:])
