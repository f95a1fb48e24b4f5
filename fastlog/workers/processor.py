"""A processor: one compiled event loop that serves every partition to its share of the connections."""

from __future__ import annotations

import logging
import sys

from fastlog.log._arena import FIRST_PROCESSOR
from fastlog.log._segments import SegmentFiles
from fastlog.workers import child
from fastlog.workers.kafka07._requests import Requests
from fastlog.workers.kafka07.control import Control
from fastlog.workers.net._loop import Loop
from fastlog.workers.services import Services

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005


def run(shared: child.Shared, number: int) -> int:
    """Serve until the broker stops; the exit code of the process."""
    signal_fd = child.begin(shared, number)
    # the loop needs the interpreter now and then, and takes it from a thread that computes
    sys.setswitchinterval(SWITCH_SECONDS)
    config = shared.config
    files = SegmentFiles(shared.arena, max(16, shared.descriptors // 4))
    advertised = [(listener.advertised_host, listener.advertised_port) for listener in shared.listeners]
    services = Services(config, shared.arena, number)
    control = Control(config, shared.arena, services, advertised)
    requests = Requests(
        shared.arena,
        files,
        number,
        services,
        control,
        config.max_message_bytes,
        config.max_request_bytes,
        config.fetch_max_wait_ms,
        config.request_memory_bytes,
        config.trace_requests,
    )
    requests.take_over()
    loop = Loop(
        shared.arena,
        requests,
        files,
        services,
        number,
        shared.handoff_receive[number - FIRST_PROCESSOR],
        signal_fd,
        [listener.fd for listener in shared.listeners] if config.accept_mode == "direct" else [],
        config.idle_ms,
        connection_limit(shared),
        config.send_buffer_bytes,
        config.receive_buffer_bytes,
        config.max_connections,
        child.HEARTBEAT_MS,
    )
    return int(loop.run(shared.supervisor_pid))


def connection_limit(shared: child.Shared) -> int:
    """Connections one processor takes: what its descriptors allow beside those of segment files."""
    return max(8, shared.descriptors - shared.descriptors // 4 - 64)
