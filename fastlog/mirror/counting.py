"""The part of a mirror in the audit: what it has forwarded is counted, and known to the audit topic of the target."""

from __future__ import annotations

from fastlog.audit import Auditor
from fastlog.mirror.config import MirrorConfig
from fastlog.mirror.pieces import Forwarded, Observer
from fastlog.producer.config import ProducerConfig
from fastlog.producer.producer import Producer

_CLOSE_SECONDS = 5.0


class Counting:
    """The observer of a mirror whose settings ask for counts; tells another observer as well. Connects when needed."""

    def __init__(self, stage: str, config: MirrorConfig, other: Observer | None) -> None:
        target = config.target.producer
        self._producer = Producer(
            ProducerConfig(
                broker_list=target.broker_list,
                zk_connect=target.zk_connect,
                connect_timeout_ms=target.connect_timeout_ms,
                socket_timeout_ms=target.socket_timeout_ms,
            )
        )
        self._auditor = Auditor(stage, self._producer, config.settings.audit_topic)
        self._other = other

    def __call__(self, run: Forwarded) -> None:
        """Count a run, after the other observer has seen it."""
        if self._other is not None:
            self._other(run)
        self._auditor(run)

    def keep(self) -> None:
        """Publish what was counted, and let the other observer keep what was reported to it."""
        other = getattr(self._other, "keep", None)
        if other is not None:
            other()
        self._auditor.keep()

    def close(self) -> None:
        """Close the producer that publishes the counts, without waiting long for a broker that does not answer."""
        self._producer.close(_CLOSE_SECONDS)
