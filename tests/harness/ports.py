"""Ports of 127.0.0.1 for servers that start later, come back, or are never there."""

from __future__ import annotations

import socket
from collections import deque

_MOST_KEPT = 64
_keepers: deque[socket.socket] = deque()


def unused_port() -> int:
    """One on which nobody listens, and which nobody else is given: it stays bound here until 64 more were asked for."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    _keepers.append(keeper)
    if len(_keepers) > _MOST_KEPT:
        _keepers.popleft().close()
    return int(keeper.getsockname()[1])
