"""Signals end a program in order, whatever it is doing: one that forks often loses what Python drops around a fork."""

from __future__ import annotations

import atexit
import ctypes
import signal
import sys
from types import FrameType
from typing import NoReturn

_AGAIN_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # nothing is looked up between a fork and the program that follows it
_came = 0


def take_signals(*others: signal.Signals) -> None:
    """Let SIGINT, SIGTERM and the others raise ``KeyboardInterrupt``. For the main thread, once."""
    global _came
    _came = 0
    for number in (signal.SIGINT, signal.SIGTERM, *others):  # a shell's background job is started without SIGINT
        signal.signal(number, _interrupt)
    signal.signal(signal.SIGALRM, _interrupt_again)
    sys.unraisablehook = _raise_later
    # Python gives its handlers back before it has ended, and an alarm that comes then would kill the process
    atexit.register(signal.signal, signal.SIGALRM, signal.SIG_IGN)


def came() -> bool:
    """Whether there was one: what fails from then on fails because of it, since terminals tell the brokers as well."""
    return _came != 0


def end() -> NoReturn:
    """Raise ``KeyboardInterrupt`` for the signal that came, once: what a fork swallowed would be raised again later."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    raise KeyboardInterrupt


def exit_code() -> int:
    """What a shell would say of the signal that came; of SIGINT where none was seen."""
    return 128 + (_came or signal.SIGINT)


def die_with_parent() -> None:
    """For ``preexec_fn``: what is killed itself leaves no process behind."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    global _came
    _came = number
    raise KeyboardInterrupt


def _interrupt_again(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _raise_later(lost: sys.UnraisableHookArgs) -> None:
    """Python's own handlers around a fork run Python, so a signal is often handled in one."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(lost)
