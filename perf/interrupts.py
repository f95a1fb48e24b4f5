"""SIGINT and SIGTERM end what measures, whatever it is doing: it forks often, and Python drops what is raised there."""

from __future__ import annotations

import ctypes
import signal
import sys
from types import FrameType
from typing import NoReturn

_AGAIN_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # nothing is looked up between a fork and the program that follows it
_came = False


def take_signals() -> None:
    """Let both raise ``KeyboardInterrupt``. For the main thread, once."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):  # a shell's background job is started without SIGINT
        signal.signal(number, _interrupt)
    sys.unraisablehook = _raise_later


def came() -> bool:
    """Whether there was one: what fails from then on fails because of it, since terminals tell the brokers as well."""
    return _came


def die_with_parent() -> None:
    """For ``preexec_fn``: what is killed itself leaves no process behind."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    global _came
    _came = True
    raise KeyboardInterrupt


def _raise_later(lost: sys.UnraisableHookArgs) -> None:
    """Python's own handlers around a fork run Python, so a signal is often handled in one."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(lost)
