"""What 0.7 calls ``zk.connect``: servers, and the part of the tree that is used."""

from __future__ import annotations

import socket
import threading
import time
from typing import NamedTuple

from fastlog.errors import ConfigError

DEFAULT_PORT = 2181


class ConnectString(NamedTuple):
    """``host:port,host:port/chroot`` in parts."""

    servers: tuple[tuple[str, int], ...]
    chroot: str

    def __str__(self) -> str:
        return self.hosts + self.chroot

    @property
    def hosts(self) -> str:
        """The servers alone."""
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
        if not host or not port_text.isdecimal() or not 0 < int(port_text) < 65536:
            raise ConfigError(f"zk.connect: {item.strip()!r} in {text!r} is not host:port")
        servers.append((host, int(port_text)))
    path = f"{slash}{chroot}".rstrip("/")
    if "//" in path or any(part in (".", "..") for part in path.split("/")):
        raise ConfigError(f"zk.connect: {path!r} in {text!r} is no path of ZooKeeper")
    return ConnectString(tuple(servers), path)


def unknown_hosts(servers: ConnectString, seconds: float) -> dict[str, str]:
    """The names among the servers that nobody knows, and the system's words for why.

    Each is looked up in a thread: the system's resolver can neither be interrupted nor be given a time limit. What is
    not known after so many seconds counts as known.
    """
    found: dict[str, str] = {}

    def look_up(host: str, port: int) -> None:
        try:
            socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            found[host] = getattr(error, "strerror", None) or "not a possible host name"

    threads = [
        threading.Thread(target=look_up, args=(host, port), name="fastlog-resolver", daemon=True)
        for host, port in servers.servers
    ]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(found)
