"""The examples for web frameworks and for tasks do what they say, with a broker and without one."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fastlog
from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.testing import RunningBroker
from tests.harness.broker import ROOT, wait_until

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(processors=1, partitions=2) as running:
        yield running


def loaded(name: str, monkeypatch: pytest.MonkeyPatch, **environment: str) -> ModuleType:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def stored(broker: RunningBroker, topic: str) -> list[Any]:
    with fastlog.SimpleConsumer(broker.host, broker.port) as consumer:
        found: list[Any] = []
        for partition in range(consumer.partition_count(topic)):
            found += consumer.messages(topic, partition)
        return found


# --- FastAPI ---


def test_fastapi_takes_orders_and_shows_the_last(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    client = pytest.importorskip("fastapi.testclient")
    shop = loaded("web_fastapi", monkeypatch, FASTLOG=broker.address, FASTLOG_TOPIC="fastapi-orders")
    with client.TestClient(shop.app) as web:
        orders = [{"customer": "anna", "item": "pen", "pieces": number} for number in (1, 2, 3)]
        answers = [web.post("/orders", json=order) for order in orders]
        assert [answer.status_code for answer in answers] == [201] * 3
        assert len({answer.json()["partition"] for answer in answers}) == 1
        assert web.get("/orders/last", params={"count": 2}).json() == orders[1:]
        assert web.post("/orders", json={"customer": "anna"}).status_code == 422
    assert [json.loads(message.payload) for message in stored(broker, "fastapi-orders")] == orders


def test_fastapi_says_when_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    client = pytest.importorskip("fastapi.testclient")
    shop = loaded("web_fastapi", monkeypatch, FASTLOG="127.0.0.1:1")
    with client.TestClient(shop.app) as web:
        answer = web.post("/orders", json={"customer": "anna", "item": "pen"})
        assert answer.status_code == 503
        assert answer.json()["detail"].startswith("the order was not taken: ")
        assert web.get("/orders/last").status_code == 503


# --- Django ---

DJANGO = """
import json, sys
sys.path.insert(0, sys.argv[1])
import fastlog, web_django as shop
from django.test import Client

shop.migrate()
web = Client()


def order(pieces):
    answer = web.post("/orders", {"customer": "anna", "pieces": pieces}, content_type="application/json")
    assert answer.status_code == 201, answer.content
    return answer.json()["order"]


ids = [order(1), order(2)]
try:
    with shop.transaction.atomic():
        order(3)
        raise ValueError("it is rolled back")
except ValueError:
    pass
assert web.get("/orders").status_code == 405
with fastlog.Producer("127.0.0.1:1", acks="flushed", delivery_timeout_ms=100) as nobody:
    try:
        shop.relay_once(nobody)
    except fastlog.FastlogError:
        print("waits")
assert shop.Event.objects.count() == 2
turns = iter([False, False, True])
shop.relay(lambda: next(turns))
assert shop.Event.objects.count() == 0
assert shop.Order.objects.count() == 2
print(json.dumps(ids))
"""


def test_django_tells_of_orders_that_were_committed(broker: RunningBroker, tmp_path: Path) -> None:
    """In a process of its own, as Django has settings once for each."""
    pytest.importorskip("django")
    with RecordBroker([Address(broker.host, broker.port)], timeout=30) as records:
        records.create("django-orders", 1, {})
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, str(EXAMPLES)],
        env={
            **os.environ,
            "FASTLOG": broker.address,
            "FASTLOG_TOPIC": "django-orders",
            "DATABASE": str(tmp_path / "shop.sqlite"),
        },
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    waits, ids = done.stdout.splitlines()
    assert waits == "waits"
    found = stored(broker, "django-orders")
    assert [(message.key, json.loads(message.payload)) for message in found] == [
        (b"anna", {"order": number, "pieces": pieces}) for number, pieces in zip(json.loads(ids), (1, 2), strict=True)
    ]
    assert [name for message in found for name, _ in message.headers] == [b"event"] * 2


# --- tasks ---

WORK = """
import sys, time
sys.path.insert(0, sys.argv[1])
import tasks as example

tasks = example.Tasks(sys.argv[2], "work")


@tasks.task
def note(path, text):
    with open(path, "a") as file:
        file.write(f"{text}\\n")


@tasks.task
def fail(path):
    note(path, "tried")
    raise ValueError("as it should")


if sys.argv[3] == "work":
    tasks.work(2)
else:
    fail.delay(sys.argv[4])
    for number in range(20):
        note.delay(sys.argv[4], text=str(number))
"""


def test_tasks_are_run_by_workers_each_once(broker: RunningBroker, tmp_path: Path) -> None:
    """By two processes that share them; what raises is tried three times and put aside; SIGTERM ends all."""
    notes = tmp_path / "notes"
    command = [sys.executable, "-c", WORK, str(EXAMPLES), broker.address]
    asked = subprocess.run([*command, "ask", str(notes)], cwd=ROOT, capture_output=True, text=True)
    assert (asked.returncode, asked.stderr) == (0, "")
    workers = subprocess.Popen([*command, "work"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        wait_until("all were run", lambda: notes.exists() and len(notes.read_text().splitlines()) >= 23, 60)
        wait_until("one was put aside", lambda: failed(broker), 30)
    finally:
        workers.send_signal(signal.SIGTERM)
        _, errors = workers.communicate(timeout=60)
    assert (workers.returncode, errors) == (0, "")
    assert sorted(notes.read_text().split()) == sorted([*map(str, range(20)), *["tried"] * 3])
    (found,) = failed(broker)
    assert json.loads(json.loads(found)["payload"])["task"] == "fail"
    assert "ValueError: as it should" in json.loads(found)["error"]


def failed(broker: RunningBroker) -> list[bytes]:
    try:
        return [message.payload for message in stored(broker, "work-failed")]
    except fastlog.FastlogError:
        return []


def test_the_example_of_a_task_runs(broker: RunningBroker) -> None:
    command = [sys.executable, str(EXAMPLES / "tasks.py")]
    subprocess.run([*command, "ask", broker.address, "hello", "world"], check=True, cwd=ROOT)
    workers = subprocess.Popen([*command, "work", broker.address, "1"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert workers.stdout is not None
        assert workers.stdout.readline().startswith("hello world, from process ")
    finally:
        workers.send_signal(signal.SIGINT)
        workers.communicate(timeout=60)
    assert workers.returncode == 0
