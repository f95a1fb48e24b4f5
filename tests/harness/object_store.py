"""An object store that speaks S3, moto's, and a proxy before it that loses, cuts, refuses and delays on request.

Both are processes of their own: Delta's library keeps Python's lock while it waits for an answer, so that nobody in the
process of a test could give one.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Any

from tests.harness.broker import wait_until
from tests.harness.checkout import ROOT

BUCKET = "bucket"
SECRET = "a-key-that-nobody-may-read"
CONTROL, UNDER_WAY = "/-/faults", "/-/under-way"
_SECONDS = 60.0
_ACCOUNT = """
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
application = DomainDispatcherApplication(create_backend_app)
make_server("127.0.0.1", 0, application, threaded=True, fd=int(sys.argv[1])).serve_forever()
"""


class ObjectStore:
    """The store, as a client of S3 finds it behind the proxy."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def options(self) -> dict[str, str]:
        """For Delta's library, which gives up after some tries."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "timeout": "20s",
            "max_retries": "4",
            "retry_timeout": "60s",
        }

    @property
    def arguments(self) -> list[str]:
        """The options as arguments of a command."""
        return [text for name, value in self.options.items() for text in ("--storage-option", f"{name}={value}")]

    def url(self, name: str) -> str:
        """The URL of a table."""
        return f"s3://{BUCKET}/lake/{name}"

    def fail(self, method: str, path: str, fault: str, *, skip: int = 0, count: int = 1, seconds: float = 0.0) -> None:
        """From now on, of requests of a method whose path and query a pattern is found in, let ``skip`` pass and do
        something to ``count``: ``refuse`` (503), ``forbid`` (403), ``cut`` in the middle of the request, ``lose`` the
        answer of one that was carried out, ``halve`` the answer, ``slow`` (by so many seconds)."""
        rule = {"method": method, "path": path, "fault": fault, "skip": skip, "count": count, "seconds": seconds}
        self._control("PUT", json.dumps(rule).encode())

    def done(self) -> list[str]:
        """The faults that happened since this was last asked; no others happen from now on."""
        found: list[str] = json.loads(self._control("DELETE"))
        return found

    def happened(self) -> list[str]:
        """The same so far, while more may happen."""
        found: list[str] = json.loads(self._control("GET"))
        return found

    def wait_idle(self) -> None:
        """Returns once every request has been carried out or has failed, those that their senders gave up too."""
        wait_until("no request is under way", lambda: self._request("GET", UNDER_WAY) == b"0", _SECONDS, 0.02)

    def names(self) -> list[str]:
        """The names of all objects in the bucket."""
        return re.findall(r"<Key>(.*?)</Key>", self._request("GET", f"/{BUCKET}?list-type=2").decode())

    def _control(self, method: str, body: bytes = b"") -> bytes:
        return self._request(method, CONTROL, body)

    def _request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> bytes:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)) as connection:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            found = answer.read()
            assert answer.status < 300, found
            return found


@contextmanager
def open_object_store() -> Iterator[ObjectStore]:
    """A store with an empty bucket, while the ``with`` block lasts."""
    processes: list[subprocess.Popen[Any]] = []
    # The account is moto's own business: it asks nobody else, whatever the machine has in its environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

    def serve(listening: socket.socket, *command: str) -> None:
        handle = listening.fileno()
        quiet: dict[str, Any] = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
        arguments = [sys.executable, *command[:2], str(handle), *command[2:]]
        processes.append(subprocess.Popen(arguments, cwd=ROOT, env=environment, pass_fds=[handle], **quiet))

    try:
        # They listen before there is who answers: a port that was only looked for may be somebody else's by then.
        with socket.create_server(("127.0.0.1", 0)) as account, socket.create_server(("127.0.0.1", 0)) as proxy:
            serve(account, "-c", _ACCOUNT)
            serve(proxy, "-m", "tests.harness.object_proxy", str(account.getsockname()[1]))
            store = ObjectStore(proxy.getsockname()[1])
        try:
            store._request("PUT", f"/{BUCKET}")
        except (OSError, HTTPException, AssertionError) as error:
            raise AssertionError([f"{each.args}: {each.poll()}" for each in processes]) from error
        yield store
    finally:
        for process in processes:
            process.kill()
            process.wait()
