"""The process of the mirror's scenario."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastlog.errors import FastlogError
from fastlog.mirror import Forwarded, Mirror, MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from perf.replay.stage import ReplayError

_STILL_SECONDS = 30.0


def mirroring(*, connect: str, target: str, topic: str, messages: int) -> Callable[[], dict[str, Any]]:
    """Forwards ``messages`` of a topic through the socket, and ends with the last acknowledgement."""
    times: list[int] = []
    counts: list[int] = []

    def observe(run: Forwarded) -> None:
        times.append(time.monotonic_ns())
        counts.append(run.entries)

    source = {"zk.connect": connect, "groupid": "replay", "local": "off"}
    mirror = Mirror(
        MirrorConfig(
            sources=(SourceConfig.from_properties("source", source),),
            target=TargetConfig.from_properties({"broker.list": target, "acks": "appended"}),
            settings=MirrorSettings(whitelist=topic),
        ),
        observe,
    )

    def work() -> dict[str, Any]:
        mirror.start()
        seen, changed = 0, time.monotonic()
        while (now := sum(counts)) < messages:
            if now != seen:
                seen, changed = now, time.monotonic()
            if time.monotonic() - changed > _STILL_SECONDS:
                raise ReplayError(f"the mirror stands still after {now} of {messages} messages")
            mirror.wait(0.01)
        left = mirror.stop()
        if left:
            raise FastlogError(left[0])
        # the first run is there when the clock starts: joining the group is not what is measured
        seconds = max(1, times[-1] - times[0]) / 1e9
        return {"messages": now, "seconds": seconds, "rate": (now - counts[0]) / seconds, "runs": len(counts)}

    return work
