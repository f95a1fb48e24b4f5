"""``monitor.address``: a thread of the keeper that answers over HTTP how the broker is. Nothing can be changed there.

The socket is the supervisor's, so that a connection waits while a new keeper starts.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastlog.errors import MissingDependencyError
from fastlog.listening import is_loopback
from fastlog.workers import child
from fastlog.workers.exposition import exposed
from fastlog.workers.health import Health
from fastlog.workers.http_server import JSON, Answer, HttpServer, Request
from fastlog.workers.metrics import Metrics

if TYPE_CHECKING:
    from fastlog.registry import Registry

log = logging.getLogger(__name__)

METHODS = ("GET", "HEAD")


def start(shared: child.Shared, monitor: child.MonitorSocket, registry: Registry | None) -> None:
    """Answer from now on, in a thread that ends with the process."""
    registration = registry.status if registry is not None else None
    health = Health(shared, registration)
    listener = socket.socket(fileno=os.dup(monitor.fd))
    listener.setblocking(False)
    server = HttpServer(listener, Pages(health, Metrics(shared, health, registration), monitor.token).answer)
    threading.Thread(target=server.run, name="fastlog-monitor", daemon=True).start()


class Pages:
    """What is found at which path, and who may see it."""

    def __init__(self, health: Health, metrics: Metrics, token: bytes = b"") -> None:
        self._health = health
        self._metrics = metrics
        self._token = token
        self._pages: dict[str, Callable[[Request], Answer]] = {
            "/live": self._live,
            "/ready": self._ready,
            "/health": self._report,
            "/metrics": self._exposed,
        }

    def answer(self, request: Request) -> Answer:
        """The answer to one request."""
        refused = self._refused(request)
        if refused is not None:
            return refused
        page = self._pages.get(request.path)
        if page is None:
            return Answer(404, f"there is no such page; there are {', '.join(self._pages)}\n")
        if request.method not in METHODS:
            return Answer(405, "nothing can be changed here\n", headers={"Allow": ", ".join(METHODS)})
        return page(request)

    def _refused(self, request: Request) -> Answer | None:
        if self._token:
            if self._shows_token(request.headers.get("authorization", "")):
                return None
            log.warning("monitor: refused peer=%s: it did not show the token", request.peer)
            return Answer(401, "a token is needed\n", headers={"WWW-Authenticate": 'Bearer realm="fastlog"'})
        host = request.headers.get("host", "")
        if host and not is_loopback(_without_port(host).lower()):
            # a page in a browser can give its own name our address, and so read the answers
            return Answer(403, "ask for an address of loopback or for localhost, or set monitor.token.file\n")
        return None

    def _shows_token(self, header: str) -> bool:
        import hmac  # only where there is a token

        scheme, _, shown = header.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode("latin-1"), self._token)

    def _live(self, _: Request) -> Answer:
        return _lines("live", self._health.live_problems())

    def _ready(self, _: Request) -> Answer:
        return _lines("ready", self._health.ready_problems())

    def _report(self, _: Request) -> Answer:
        return Answer(200, json.dumps(self._health.report(), indent=2) + "\n", JSON)

    def _exposed(self, request: Request) -> Answer:
        accept, encoding = (request.headers.get(name, "") for name in ("accept", "accept-encoding"))
        try:
            page, headers = exposed(self._metrics.families(), accept, encoding)
        except MissingDependencyError as error:
            return Answer(501, f"{error}\n")
        return Answer(200, page, headers.pop("Content-Type"), headers)


def _lines(good: str, problems: list[str]) -> Answer:
    return Answer(503, "".join(f"{line}\n" for line in problems)) if problems else Answer(200, f"{good}\n")


def _without_port(host: str) -> str:
    return host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
