"""What 0.7 calls ``zk.connect``: servers, and the part of the tree that is used."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from fastlog.addresses import port_or_none
from fastlog.errors import ConfigError

DEFAULT_PORT = 2181
_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 0.2
_NO_NAME_SERVER_SECONDS = 5.0
"""How long one that gives no answer is asked again: the network may be about to come up."""


class ConnectString(NamedTuple):
    """``host:port,host:port/chroot`` in parts."""

    servers: tuple[tuple[str, int], ...]
    chroot: str

    def __str__(self) -> str:
        return self.hosts + self.chroot

    @property
    def hosts(self) -> str:
        """The servers as ``host:port``, separated by commas, without the path behind them."""
        return ",".join(f"{host}:{port}" for host, port in self.servers)


def parse_connect(text: str) -> ConnectString:
    """Read what 0.7 calls ``zk.connect``.

    Raises:
        ConfigError: a part is no ``host:port``, or the chroot is no absolute path.
    """
    servers_text, slash, chroot = text.strip().partition("/")
    servers = []
    for item in servers_text.split(","):
        host, colon, port_text = item.strip().rpartition(":")
        if not colon:
            host, port_text = port_text, str(DEFAULT_PORT)
        port = port_or_none(port_text)
        if not host or not port:
            raise ConfigError(f"zk.connect: {item.strip()!r} in {text!r} is not host:port")
        servers.append((host, port))
    path = f"{slash}{chroot}".rstrip("/")
    if "//" in path or any(part in (".", "..") for part in path.split("/")):
        raise ConfigError(f"zk.connect: {path!r} in {text!r} is no path of ZooKeeper")
    return ConnectString(tuple(servers), path)


def unknown_hosts(
    servers: ConnectString, seconds: float, is_wanted: Callable[[], bool] = lambda: True
) -> dict[str, str]:
    """The names among the servers that cannot be resolved, with the system's reason.

    Each is looked up in a thread: the system's resolver can neither be interrupted nor be given a time limit. A name
    server that does not answer is asked again. What is not known after ``seconds``, or when it is not wanted any
    more, counts as known.
    """
    found: dict[str, str] = {}
    began = time.monotonic()
    deadline, asked_until = began + seconds, began + min(seconds, _NO_NAME_SERVER_SECONDS)

    def look_up(host: str, port: int) -> None:
        while True:
            try:
                socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                found[host] = getattr(error, "strerror", None) or "not a possible host name"
                again = getattr(error, "errno", None) == socket.EAI_AGAIN and is_wanted()
                if not again or time.monotonic() + _AGAIN_SECONDS >= asked_until:
                    return
                time.sleep(_AGAIN_SECONDS)
            else:
                found.pop(host, None)
                return

    threads = [
        threading.Thread(target=look_up, args=(host, port), name="fastlog-resolver", daemon=True)
        for host, port in servers.servers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and is_wanted() and (left := deadline - time.monotonic()) > 0:
            thread.join(min(_LOOK_SECONDS, left))
    return dict(found) if is_wanted() else {}
