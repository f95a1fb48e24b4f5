"""A connection to a broker that speaks today's protocol: requests and answers, one after the other."""

from __future__ import annotations

import time

from fastlog.client import kafka_fields
from fastlog.client.addresses import Address
from fastlog.client.connection import Broker, Connection, ConnectionEnded
from fastlog.errors import ProtocolError, TransportError

MOST_ANSWER_BYTES = 64 * 2**20


class NotSpokenError(TransportError):
    """The broker ended the connection at the first request: it does not speak today's protocol, or it is stopping."""


class KafkaConnection:
    """One connection, for one thread at a time; ``interrupt`` is for any."""

    def __init__(self, connection: Connection, client: str) -> None:
        """``client``: what the broker's log calls it."""
        self.peer = connection.peer
        self.same_host = connection.same_host
        """Whether both ends of the connection have the same IP address."""
        self.versions: dict[int, tuple[int, int]] = {}
        """The first and the last version of each request that the broker knows; filled by ``begin``."""
        self._connection = connection
        self._client = client
        self._number = 0

    def fileno(self) -> int:
        """The descriptor; -1 once it is closed."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._connection.close()

    def interrupt(self) -> None:
        """Have a thread that waits for an answer raise ``TransportError``, and every later call; from any thread."""
        self._connection.interrupt()

    def is_quiet(self) -> bool:
        """Whether nothing has come that was not asked for, the end of the connection included."""
        return self._connection.is_quiet()

    def begin(self, purpose: str, deadline: float) -> None:
        """Ask what the broker knows: the first request, by which it tells today's protocol from 0.7's.

        Raises:
            NotSpokenError: the connection ended, or what came is no answer; ``purpose`` is what it was wanted for.
            TransportError: no answer in time.
        """
        try:
            _code, self.versions = kafka_fields.parse_api_versions(self.ask(kafka_fields.api_versions(), deadline))
        except (ConnectionEnded, ProtocolError) as error:
            raise NotSpokenError(
                f"{error}; if that goes on, it does not speak today's protocol, by which {purpose}"
            ) from error

    def send(self, request: kafka_fields.Request) -> int:
        """Send a request; the number by which ``received`` knows its answer. Raises ``TransportError``."""
        self._number += 1
        self._connection.send(request.frame(self._number, self._client))
        return self._number

    def received(self, number: int, seconds: float) -> kafka_fields.Answer | None:
        """The answer to that request; None if it has not come within ``seconds``.

        Raises:
            TransportError: the connection ended, so it will not come.
        """
        body = self._connection.receive_soon(MOST_ANSWER_BYTES, seconds)
        return None if body is None else kafka_fields.answer(body, number)

    def received_view(self, seconds: float) -> memoryview | None:
        """The body of the next answer, from its number on and not copied, if it comes in time. Raises as ``received``.

        It stays what it is as long as it is held.
        """
        return self._connection.receive_soon(MOST_ANSWER_BYTES, seconds)

    def ask(self, request: kafka_fields.Request, deadline: float) -> kafka_fields.Answer:
        """The answer to a request. Raises ``TransportError``: none by the deadline, of the monotonic clock."""
        found = self.received(self.send(request), max(0.01, deadline - time.monotonic()))
        if found is None:
            raise TransportError(f"{self.peer} did not answer in time")
        return found


def connected(address: Address, client: str, deadline: float) -> KafkaConnection:
    """A connection to that address. Raises ``TransportError``."""
    timeout = max(0.05, deadline - time.monotonic())
    return KafkaConnection(Broker([address], timeout).connect(MOST_ANSWER_BYTES), client)
