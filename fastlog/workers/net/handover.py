"""What goes with the descriptor of a connection from the acceptor to a processor, in the machine's byte order.

| position | width | meaning |
|---|---|---|
| 0 | 2 | which listener it came through: its place in ``Shared.listeners`` |
| 2 | 1 | transport, 0: as it is |
| 3 | 1 | 0 |
| 4 | 4 | principal: its place in ``authorization.PRINCIPALS`` |
| 8 | 46 | the address of the other end as text, filled up with 0; empty where it has none |
| 54 | 2 | its port |

``_handoff.h`` has the same as a struct.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

LAYOUT = struct.Struct("=HBxi46sH")
PLAIN = 0
"""The transport of a socket whose bytes are those of the protocol."""
MAPPED = "::ffff:"


class HandOver(NamedTuple):
    """A connection on its way from the acceptor to a processor."""

    listener: int
    host: str
    port: int
    principal: int = 0
    transport: int = PLAIN

    @classmethod
    def accepted(cls, listener: int, address: object) -> HandOver:
        """That of a new connection, from what ``accept`` said of its other end."""
        host, port = address[:2] if isinstance(address, tuple) else ("", 0)
        # rules name hosts by their address, whichever kind of socket it came through; the interface of a link-local one
        # may have a name of any length, which the record has no room for
        host = host.partition("%")[0]
        return cls(listener, host.removeprefix(MAPPED) if "." in host else host, port)

    def pack(self) -> bytes:
        return LAYOUT.pack(self.listener, self.transport, self.principal, self.host.encode("ascii"), self.port)

    @classmethod
    def unpack(cls, data: bytes) -> HandOver:
        listener, transport, principal, host, port = LAYOUT.unpack(data)
        return cls(listener, host.rstrip(b"\0").decode("ascii"), port, principal, transport)
