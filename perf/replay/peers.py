"""The peers' part of a replay: which are here, and their runs in the shape that other systems' have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from perf import peers
from perf.figures.results import Run
from perf.peers.base import Peer
from perf.replay.scenarios import Consume, Produce, Scenario
from perf.replay.stage import ReplayError, Stage, numbers


def absent() -> dict[str, str | None]:
    """Every peer by name, with the reason why it cannot be measured here; None where it can."""
    return {peer.name: peer.available() for peer in peers.all_peers()}


def measure(stage: Stage, scenario: Scenario, name: str) -> dict[str, Run]:
    """Start it with an empty directory, let it produce, or produce and consume, and end it.

    It takes as many messages as last some seconds, and not more than fastlog.
    """
    peer = next(found for found in peers.all_peers() if found.name == name)
    messages = max(1, min(peer.default_messages, int(stage.options.messages * scenario.share)))
    stage.warm(messages)
    with stage.place() as directory, _started(peer, directory):
        if isinstance(scenario, Produce):
            found = peer.produce(messages, stage.options.payloads(scenario.message_bytes)[1], scenario.batch)
        elif isinstance(scenario, Consume):
            peer.produce(messages)
            found = peer.consume(messages)
        else:
            raise ReplayError(f"peers have no {type(scenario).__name__}")
    return {"rate": Run(value=float(found["rate"]), detail=numbers(found))}


@contextlib.contextmanager
def _started(peer: Peer, directory: Path) -> Iterator[None]:
    try:
        peer.start(directory)
        yield
    finally:
        peer.stop()
