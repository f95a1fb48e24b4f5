"""The moments of a thread at which Python handles a signal, each chosen once: what a handler does there, or raises."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import fastlog

PRODUCER = str(Path(fastlog.__file__).parent / "producer")
CLIENT = str(Path(fastlog.__file__).parent / "client")
LOOKS_FOR_SIGNALS = ("CALL", "RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
MOST_MOMENTS = 5000


class Interrupt(KeyboardInterrupt):
    """Ours."""


def interrupt() -> None:
    raise Interrupt


@contextmanager
def interrupted_at(number: int, handler: Callable[[], object] = interrupt) -> Iterator[None]:
    """Call ``handler`` at the ``number``-th moment, counted from 1, at which Python would handle a signal in the
    producer's code.

    That is behind each call and each jump back, and where a function begins; never between two other instructions.
    """
    left = number

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith((PRODUCER, CLIENT)) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        names = instructions(frame.f_code)
        before = ""

        def each(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left, before
            if event == "opcode":
                is_moment = before.startswith(LOOKS_FOR_SIGNALS)
                before = names[frame.f_lasti]
                if is_moment:
                    left -= 1
                    if left == 0:
                        handler()
            return each

        return each

    outer = sys.gettrace()
    gc.disable()  # what is interrupted in a finalizer is told to nobody
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(outer)
        gc.enable()


@cache
def instructions(code: CodeType) -> dict[int, str]:
    """The name of each instruction by its place."""
    return {each.offset: each.opname for each in dis.get_instructions(code)}
