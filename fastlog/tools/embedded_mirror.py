"""The mirror that ``fastlog-broker --mirror`` runs, started and ended by the broker's supervisor."""

from __future__ import annotations

import logging

from fastlog import logs
from fastlog.errors import ConfigError
from fastlog.mirror import MirrorConfig, TargetConfig
from fastlog.mirror.making import AnyMirror, AnyReport, made, notes
from fastlog.settings import load_properties
from fastlog.tools import signals

CANNOT_START = 78
"""For the supervisor, which does not start it again if it has never run."""
_PROGRESS = "60000"
_STOP_SECONDS = 1.0

log = logging.getLogger(__name__)


def main(path: str, own_address: str) -> int:
    """Mirror as the file says, into ``id:host:port`` unless it names a target, until SIGTERM."""
    signals.install()
    logs.set_up("mirror")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    try:
        given = {"mirror.progress.ms": _PROGRESS, **load_properties(path)}
        target = TargetConfig.from_properties({"broker.list": own_address})
        mirror, report = made(MirrorConfig.from_properties(given, path, target))
        for line in notes(mirror.config):
            log.warning("%s", line)
        return _run(mirror, report)
    except signals.Interrupted:
        return 0
    except ConfigError as error:
        log.error("mirror.config=%s: %s", path, " ".join(str(error).split()))
        return CANNOT_START


def _run(mirror: AnyMirror, report: AnyReport) -> int:
    mirror.start()
    try:
        while True:
            mirror.wait(mirror.config.settings.progress_ms / 1000)
            for line in report.lines():
                log.info("%s", line)
    except signals.Interrupted:
        for line in [*mirror.stop(_STOP_SECONDS), *report.summary()]:
            log.info("%s", line)
        return 0
    except BaseException:
        mirror.stop(0.0)
        raise
