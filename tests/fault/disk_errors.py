"""One call of one process fails, or every write is short: what was answered is there, and the log goes on."""

from __future__ import annotations

import random
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.history import History
from tests.harness.load import stored

CALLS = (
    "processor:pwrite",
    "processor:open",
    "processor:ftruncate",
    "processor:sendfile",
    "processor:pread",
    "flusher:fdatasync",
    "flusher:fsync",
    "flusher:open",
    "flusher:fallocate",
    "flusher:ftruncate",
)
ERRORS = ("EIO", "ENOSPC", "EMFILE", "EDQUOT")
PLACES = (("a", 0), ("b", 0))
ROUNDS = 25
SERVED = (0, 101, 103)


@scenario(
    "disk-errors", "the n-th call of a kind fails, and writes before it are short", small=8, nightly=500, release=5000
)
def disk_errors(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` brokers with one fault each."""
    outcome = Outcome()
    source = random.Random(seed)
    for number in range(count):
        call = CALLS[number % len(CALLS)] if number < len(CALLS) else source.choice(CALLS)
        faults = f"{call}@{source.randrange(1, 40)}={source.choice(ERRORS)}"
        if source.random() < 0.5:
            faults += f",processor:pwrite@1-{source.randrange(1, 60)}=short"
        history = History()
        with Broker(
            directory / str(number),
            processors=1,
            settings={"log.file.size": 400},
            environment={"FASTLOG_FAULTS": faults},
        ) as broker:
            work(broker, history, "first", source, outcome)
            broker.kill_all()
            found = history.check(stored(broker, history))
            broker.environment.clear()
            history.restarted()
            broker.start()
            refused = work(broker, history, "second", source, outcome)
            outcome.expect(not refused, f"{faults}: refused after a new start: {refused}")
            code = broker.stop()
            outcome.expect(code == 0, f"{faults}: the stop ended with {code}")
            found += history.check(stored(broker, history))
        outcome.violations += [f"{faults}: {line}" for line in found]
        outcome.runs += 1
    return outcome


def work(broker: Broker, history: History, name: str, source: random.Random, outcome: Outcome) -> list[int]:
    """Append, acknowledged, flushed and neither, and read everything back in between; returns what was refused."""
    refused = []
    sent = 0
    client = broker.connect()
    for number in range(ROUNDS):
        place = source.choice(PLACES)
        payloads = [b"%s %d %d" % (name.encode(), number, index) for index in range(source.randint(1, 4))]
        sent += len(payloads)
        data = raw.message_set(payloads)
        history.sent(place, name, payloads)
        kind = source.choice((0, raw.APPENDED, raw.FLUSHED))
        try:
            if kind:
                answer = client.produce_ack(*place, data, kind)
                outcome.expect(answer.error in SERVED, f"produce answered {answer.error}")
                if answer.error:
                    refused.append(answer.error)
                else:
                    history.acked(place, answer.base_offset, answer.next_offset, data, flushed=kind == raw.FLUSHED)
            else:
                client.produce(*place, data)
                client.metadata([])
            end = client.offsets(*place)[0]
            history.visible(place, end)
            history.shown(place, 0, client.read_all(*place))
        except (raw.ConnectionClosed, BrokenPipeError, ConnectionResetError, AssertionError) as error:
            # a plain produce that fails, and a read that fails, close the connection or answer an unknown error
            if isinstance(error, AssertionError) and "FETCH answered error -1" not in str(error):
                raise
            refused.append(-1)
            client.close()
            client = broker.connect()
    client.close()
    return refused
