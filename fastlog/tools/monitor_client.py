"""Asks the monitor of a broker (``monitor.address``) over HTTP, for commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fastlog.errors import ConfigError, TransportError

if TYPE_CHECKING:
    from fastlog.listening import ListenAddress

MOST_BYTES = 256 * 2**20
"""The page of metrics has about 1 kB for each partition, of which there are 65,536 at most."""


class Page(NamedTuple):
    """The answer to a request: HTTP status and body."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8, with U+FFFD in the place of bytes that are not."""
        return self.body.decode("utf-8", "replace")


class Monitor:
    """The monitor at an address; ``token_file`` as the broker's ``monitor.token.file``. One thread at a time."""

    def __init__(self, address: ListenAddress, token_file: str | None, timeout: float) -> None:
        """Raises ``ConfigError``: the token cannot be read."""
        self.address = address
        self._timeout = timeout
        self._headers = {"Accept": "text/plain"}
        if token_file is not None:
            try:
                token = Path(token_file).read_bytes().strip().decode("ascii")
            except (OSError, UnicodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is no text"
                raise ConfigError(f"monitor.token.file: cannot read {token_file}: {reason}") from error
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, path: str, method: str = "GET") -> Page:
        """Return the answer, whatever its status.

        Raises:
            TransportError: there is none; says why and what to do.
        """
        import http.client  # 30 ms that --help does without

        connection = http.client.HTTPConnection(*self.address, timeout=self._timeout)
        try:
            connection.request(method, path, headers=self._headers)
            answer = connection.getresponse()
            return Page(answer.status, answer.read(MOST_BYTES))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise TransportError(
                f"the monitor at {self.address} does not answer\n{reason}\n"
                "start the broker with --monitor HOST:PORT, or name where it is; its start line says monitor=HOST:PORT"
            ) from error
        finally:
            connection.close()
