"""A processor: one compiled event loop that serves every partition to its share of the connections."""

from __future__ import annotations

import logging
import sys

from fastlog.listening import ANY_PROTOCOL, KAFKA, KAFKA_07
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.workers import child
from fastlog.workers._engine import Engine
from fastlog.workers._forward import Forward
from fastlog.workers.kafka._first_request import FirstRequest
from fastlog.workers.kafka._machine import Kafka
from fastlog.workers.kafka.control import Control as KafkaControl
from fastlog.workers.kafka07._machine import Kafka07
from fastlog.workers.kafka07.control import Control as Kafka07Control
from fastlog.workers.net import _process
from fastlog.workers.net._helper import Helper
from fastlog.workers.net._loop import Loop
from fastlog.workers.services import Services

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
KEPT_MEMORY = 4 << 20
LARGEST_KEPT = 2 << 20  # most clients send requests of up to 1 MB


def run(shared: child.Shared, number: int) -> int:
    """Serve until the broker stops; the exit code of the process."""
    signal_fd = child.begin(shared, number)
    _process.keep_memory(KEPT_MEMORY, LARGEST_KEPT)
    # the loop needs the interpreter now and then, and takes it from a thread that computes
    sys.setswitchinterval(SWITCH_SECONDS)
    config = shared.config
    files = SegmentFiles(shared.arena, max(16, shared.descriptors // 4))
    helper = Helper(shared.arena, files)
    services = Services(config, shared.arena, number, tracing=shared.switches.tracing)
    engine = Engine(shared.arena, files, helper, number, services)
    engine.take_over()
    forward = Forward(shared.arena, number, shared.forward_processor[number - FIRST_PROCESSOR])
    advertised = [(listener.advertised_host, listener.advertised_port) for listener in shared.listeners]
    old = Kafka07(
        engine,
        Kafka07Control(config, shared.arena, services, advertised),
        config.max_message_bytes,
        config.max_request_bytes,
        config.fetch_max_wait_ms,
    )
    today = Kafka(
        engine,
        forward,
        KafkaControl(config, shared.arena, services, advertised, shared.cluster_id),
        config.max_request_bytes,
    )
    protocols = {KAFKA_07: old, KAFKA: today, ANY_PROTOCOL: FirstRequest(engine, old, today)}
    loop = Loop(
        shared.arena,
        helper,
        files,
        engine.slot_waits,
        [protocols[listener.protocol] for listener in shared.listeners],
        number,
        shared.handoff_receive[number - FIRST_PROCESSOR],
        signal_fd,
        [listener.fd for listener in shared.listeners] if config.accept_mode == "direct" else [],
        config.idle_ms,
        connection_limit(shared),
        config.send_buffer_bytes,
        config.receive_buffer_bytes,
        config.request_memory_bytes,
        config.max_connections,
        child.HEARTBEAT_MS,
        turn_ms=child.TURN_MS,
        remote=forward,
    )
    return int(loop.run(shared.supervisor_pid))


def connection_limit(shared: child.Shared) -> int:
    """Connections one processor takes: what its descriptors allow beside those of segment files."""
    return max(8, shared.descriptors - shared.descriptors // 4 - 64)
