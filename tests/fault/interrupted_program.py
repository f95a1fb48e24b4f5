"""The program that Ctrl-C hits: each call that may block, interrupted at many moments by SIGINT in the main thread."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy  # noqa: F401 - what an interrupt does to its import is not ours to say

from fastlog import LATEST, Producer, SimpleConsumer, SyncProducer
from fastlog.errors import FastlogError
from fastlog.producer.hooks import CallbackHandler

LATEST_DELAY = 0.06
HANG_SECONDS = 60.0
SWALLOWED_SECONDS = 20.0
CLOSE_SECONDS = 20.0

Case = tuple[Callable[[], Any], Callable[[Any], object]]


class Nowhere:
    """A listener with a full backlog: a connection to it neither comes about nor is refused."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port: int = self._listener.getsockname()[1]
        self._stuffing = [socket.socket() for _ in range(4)]
        for each in self._stuffing:
            each.setblocking(False)
            each.connect_ex(self._listener.getsockname())


def cases(port: int, silent: int, topic: str) -> dict[str, Case]:
    """Each blocking call: what makes its object, and the call. ``silent`` answers nothing but metadata."""
    nowhere = Nowhere()

    def consumer(to: int = port, **options: Any) -> Callable[[], Any]:
        return lambda: SimpleConsumer("127.0.0.1", to, **{"timeout": 60, "local": "off", **options})

    def full(**options: Any) -> Callable[[], Any]:
        settings = {"producer_type": "async", "queue_messages": 1, "batch_messages": 1, "in_flight_bytes": 1}
        return lambda: Producer(f"127.0.0.1:{silent}", **{**settings, **options})

    def again(call: Callable[[Any], object]) -> Callable[[Any], object]:
        def loop(client: Any) -> None:
            while True:
                call(client)

        return loop

    def after_one(call: Callable[[Any], object]) -> Callable[[Any], object]:
        def then(client: Any) -> None:
            client.send("t", b"x")
            call(client)

        return then

    return {
        "iterate": (consumer(), lambda it: list(it.messages(topic, 0, 0, wait=None))),
        "iterate batches busily": (
            consumer(fetch_bytes=2000),
            again(lambda it: sum(map(len, it.batches(topic, 0, 0)))),
        ),
        "iterate local": (consumer(local="read"), lambda it: list(it.messages(topic, 0, 0, wait=None))),
        "iterate local maps busily": (
            consumer(local="map"),
            again(lambda it: sum(map(len, it.numpy_batches(topic, 0, 0)))),
        ),
        "held fetch": (consumer(), again(lambda it: it.fetch(topic, 1, 0, wait=20))),
        "fetch": (consumer(silent), lambda it: it.fetch("t", 0, 0)),
        "multifetch": (consumer(silent), lambda it: it.multifetch([("t", 0, 0), ("t", 1, 0)])),
        "get_offsets_before": (consumer(silent), lambda it: it.get_offsets_before("t", 0, LATEST)),
        "connect a consumer": (consumer(nowhere.port), lambda it: it.fetch("t", 0, 0)),
        "send sync": (lambda: Producer(f"127.0.0.1:{silent}"), lambda it: it.send("t", b"x")),
        "send async": (full(), again(lambda it: it.send("t", b"x" * 200))),
        "send to handlers": (full(callback_handler=CallbackHandler()), again(lambda it: it.send("t", b"x" * 200))),
        "send busily": (lambda: Producer(f"127.0.0.1:{port}"), again(lambda it: it.send(topic, b"x", partition=2))),
        "flush": (full(), after_one(lambda it: it.flush())),
        "close": (full(), after_one(lambda it: it.close())),
        "connect a producer": (
            lambda: Producer(f"127.0.0.1:{nowhere.port}", connect_timeout_ms=60_000),
            lambda it: it.send("t", b"x"),
        ),
        "SyncProducer send": (
            lambda: SyncProducer("127.0.0.1", silent),
            again(lambda it: it.send("t", bytes(900_000))),
        ),
        "SyncProducer connect": (lambda: SyncProducer("127.0.0.1", nowhere.port), lambda it: it.send("t", b"x")),
    }


def interrupted(make: Callable[[], Any], call: Callable[[Any], object], delay: float) -> tuple[float, str]:
    """Seconds from SIGINT to KeyboardInterrupt, and what was wrong."""
    client = make()
    sent: list[float] = []
    over = threading.Event()

    def interrupt() -> None:
        time.sleep(delay)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
        if not over.wait(SWALLOWED_SECONDS):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    wrong = ""
    try:
        thread.start()
        call(client)
        wrong = "it returned"
    except KeyboardInterrupt:
        pass
    except Exception as error:
        wrong = f"it raised {error!r}"
    seconds = time.monotonic() - sent[0] if sent else 0.0
    over.set()
    while thread.is_alive():  # in case the call ended by itself
        with contextlib.suppress(KeyboardInterrupt):
            thread.join()
    started = time.monotonic()
    if isinstance(client, SyncProducer):
        client._drop()  # what is half sent to somebody who does not read cannot be finished
        client.close()
    elif isinstance(client, Producer):
        with contextlib.suppress(FastlogError):
            client.close(0)
    else:
        client.close()
    if time.monotonic() - started > CLOSE_SECONDS:
        wrong += f" close() took {time.monotonic() - started:.1f} s afterwards"
    return seconds, wrong


def main(told: dict[str, Any]) -> dict[str, Any]:
    """Interrupt each call ``moments`` times."""
    source = random.Random(told["seed"])
    worst: dict[str, float] = {}
    violations = []
    found = cases(told["port"], told["silent"], told["topic"])
    for name, (make, call) in found.items():
        for _ in range(told["moments"]):
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            delay = source.uniform(0, LATEST_DELAY)
            seconds, wrong = interrupted(make, call, delay)
            worst[name] = max(worst.get(name, 0.0), seconds)
            if wrong:
                violations.append(f"{name}, interrupted after {delay * 1000:.1f} ms: {wrong}")
    with SimpleConsumer("127.0.0.1", told["port"]) as consumer:
        if len(consumer.fetch(told["topic"], 0, 0).payloads()) != told["messages"]:
            violations.append("a fetch after all that gives something else")
    return {"calls": len(found), "worst": worst, "violations": violations}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what is in the background ignore it
    logging.disable()  # what is broken off here is so on purpose; anything else that is said counts as a violation
    print(json.dumps(main(json.loads(sys.argv[1]))))
