"""What other processes can see between any two instructions of a function.

A named point lies where somebody put it. Here a function stands still behind each of its machine instructions: so the
order of two stores is seen that follow each other directly.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import traceback
from collections.abc import Callable
from typing import TypeVar

import pytest

Seen = TypeVar("Seen")

_TRACE_ME, _SINGLE_STEP, _DETACH = 0, 9, 17
_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long

single_steps = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="elsewhere a loop around an exclusive store does not end step by step"
)


def seen_between_instructions(function: Callable[[], object], look: Callable[[], Seen]) -> list[Seen]:
    """Run ``function`` in a child, instruction by instruction; what ``look`` returns here whenever it has changed."""
    child = os.fork()
    if child == 0:
        try:
            _ptrace(_TRACE_ME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            function()
            os.kill(os.getpid(), signal.SIGSTOP)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    seen = [look()]
    _, status = os.waitpid(child, 0)
    stops = 0
    while os.WIFSTOPPED(status):
        if (state := look()) != seen[-1]:
            seen.append(state)
        stopped_by = os.WSTOPSIG(status)
        stops += stopped_by == signal.SIGSTOP
        passed_on = 0 if stopped_by in (signal.SIGTRAP, signal.SIGSTOP) else stopped_by
        # what a process does at its end, where something is counted, may be long
        if _ptrace(_DETACH if stops == 2 else _SINGLE_STEP, child, None, passed_on) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return seen
