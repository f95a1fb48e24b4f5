"""A mirror as a stage of the audit: it tells an audit topic of its target what it has forwarded."""

from __future__ import annotations

import dataclasses

from fastlog.audit import Auditor
from fastlog.errors import ConfigError, FastlogError
from fastlog.mirror.config import MirrorConfig
from fastlog.mirror.pieces import Forwarded
from fastlog.producer.producer import Producer


class Stage:
    """Counts forwarded runs, and has told of each before the source's offset moves."""

    def __init__(self, config: MirrorConfig) -> None:
        """Raises ``ConfigError``: the target's settings have envelopes, in which the audit's own events cannot be."""
        given = config.target.producer
        if given.has_envelope:
            raise ConfigError(
                "a mirror forwards envelopes as they are: leave their settings out of the target's producer"
            )
        assert config.settings.audit_stage is not None
        told = dataclasses.replace(given, producer_type="sync", compression="none", compressed_topics=None)
        self._producer = Producer(told)
        self._auditor = Auditor(config.settings.audit_stage, self._producer, config.settings.audit_topic)

    def observe(self, run: Forwarded) -> None:
        """See ``Observer``. Raises ``FastlogError``: the audit topic could not be told; the next run tells it too."""
        if run.source.topic != self._auditor.topic:
            self._auditor.observe(run)

    def stop(self, seconds: float) -> list[str]:
        """Tell the rest; a line for what could not be told."""
        try:
            self._auditor.publish()
            self._producer.close(seconds)
        except FastlogError as error:
            return [f"the audit was not told of everything: {error}"]
        return []
