"""What a codec does by itself on one core: the sets that a producer would send, compressed, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastlog import codecs
from fastlog.message import encode_set
from fastlog.perf.payloads import lines_of

_NUMBERS = {name: number for number, name in codecs.CODEC_NAMES.items()}


def compressing(*, compression: str, batch: int, messages: int, payload_file: str) -> Callable[[], dict[str, Any]]:
    """``messages`` lines, cycled, in sets of ``batch``."""
    source, _ = lines_of(Path(payload_file))
    sets = [encode_set(source[at : at + batch]) for at in range(0, len(source) - batch + 1, batch)]
    codec = _NUMBERS[compression]
    codecs.compress(codec, sets[0])  # the library is there

    def work() -> dict[str, Any]:
        compress, count, came, went = codecs.compress, len(sets), 0, 0
        started = time.monotonic_ns()
        for number in range(-(-messages // batch)):
            plain = sets[number % count]
            came += len(plain)
            went += len(compress(codec, plain))
        seconds = (time.monotonic_ns() - started) / 1e9
        total = -(-messages // batch) * batch
        return {"messages": total, "seconds": seconds, "rate": total / seconds, "ratio": came / went}

    return work
