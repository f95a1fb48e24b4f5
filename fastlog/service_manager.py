"""Tells the service manager that started this process how it goes, as ``sd_notify`` does; nothing where there is none.

Source: systemd, sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

_BEATS = 3
"""How many messages the watchdog gets in its interval: one may come late."""


class ServiceManager:
    """Where ``NOTIFY_SOCKET`` leads. For one process: with ``WATCHDOG_PID`` of another one, there is no watchdog."""

    def __init__(self, environment: Mapping[str, str] = os.environ, now: Callable[[], float] = time.monotonic) -> None:
        self._path = environment.get("NOTIFY_SOCKET", "")
        self._now = now
        self._told_at = -1e9
        self._seconds = 0.0
        microseconds = environment.get("WATCHDOG_USEC", "")
        if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()) and microseconds.isdigit():
            self._seconds = int(microseconds) / 1e6 / _BEATS

    def ready(self, status: str) -> None:
        """The service serves; ``status`` is shown by ``systemctl status``."""
        self._tell(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Tell the service manager that the broker stops (``STOPPING=1``)."""
        self._tell("STOPPING=1\nSTATUS=stopping")

    def status(self, text: str) -> None:
        """What is shown of the service until there is something else."""
        self._tell(f"STATUS={text}")

    def alive(self) -> None:
        """The service turns; called as often as one likes, told as often as the watchdog needs."""
        if self._seconds and self._now() - self._told_at >= self._seconds:
            self._told_at = self._now()
            self._tell("WATCHDOG=1")

    def _tell(self, text: str) -> None:
        """Send without waiting: a service manager that does not listen is no reason not to serve."""
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto(text.encode(), address)
