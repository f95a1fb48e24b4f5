"""``fastlog doctor`` for tests, and a port that another program has."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.harness.checkout import ROOT
from tests.harness.command_line import Commands, Ran
from tests.harness.timing import PATIENCE

EXPECTED_HERE = {
    "directory-temporary", "directory-in-memory", "clock-not-kept", "space-low", "space-scarce", "sync-slow",
    "disk-discards",
}  # fmt: skip
"""What the machine of the tests may have, whatever the test makes; tests of these look at them alone."""

DOCUMENT = (ROOT / "docs" / "commands.md").read_text().split("## Doctor")[1].split("\n## ")[0]
LEVELS = {name: levels.split(", ") for name, levels in re.findall(r"^\| `([a-z-]+)` \| ([a-z, ]+) \|", DOCUMENT, re.M)}
"""Of each fault, as documented: they decide on the exit code."""


class Doctor:
    """Runs the command on a log directory of its own and a free port, unless told otherwise."""

    def __init__(self, commands: Commands, directory: Path) -> None:
        self._commands = commands
        self.directory = directory

    def run(self, *arguments: str) -> Ran:
        defaults = [] if "--log-dir" in arguments else ["--log-dir", str(self.directory)]
        if not any(item == "--port" or item.startswith(("port=", "listeners=")) for item in arguments):
            defaults += ["--port", "0"]
        return self._commands("doctor", "--json", "--timeout", "10s", *defaults, *arguments)

    def names(self, *arguments: str, keep: tuple[str, ...] = ()) -> list[str]:
        """The faults that are found, each of which says what to do; the exit code is that of the worst."""
        ran = self.run(*arguments)
        rows = ran.rows
        assert ran.code == any(row["level"] == "bad" for row in rows)
        for row in rows:
            assert (row["level"] == "ok") == ("name" not in row) == ("remedy" not in row), row
            assert "name" not in row or row["level"] in LEVELS[row["name"]], row
        return [row["name"] for row in rows if "name" in row and row["name"] not in EXPECTED_HERE - set(keep)]

    def row(self, check: str, *arguments: str) -> dict[str, str]:
        (found,) = [row for row in self.run(*arguments).rows if row["check"] == check]
        assert "name" not in found or found["level"] in LEVELS[found["name"]], found
        return found


@contextmanager
def listening(host: str = "127.0.0.1", *, accepts: bool = True) -> Iterator[int]:
    """A port that somebody has: ``accepts`` each connection and ends it in order, or is bound and does not listen."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(accepts))
        server.bind((host, 0))
        if accepts:
            server.listen()
            server.settimeout(0.05)
        done = threading.Event()

        def serve() -> None:
            while not done.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection, suppress(OSError):
                    connection.settimeout(PATIENCE)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):  # what is closed with bytes unread is reset
                        pass

        thread = threading.Thread(target=serve) if accepts else None
        if thread is not None:
            thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            done.set()
            if thread is not None:
                thread.join()
