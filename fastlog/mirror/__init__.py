"""Mirroring: topics of one or several clusters forwarded into another one, byte for byte.

``Mirror(MirrorConfig(...)).run()``; the command is ``fastlog mirror``.
"""

from fastlog.mirror.config import MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.mirror.mirror import Mirror
from fastlog.mirror.pieces import Forwarded, Observer

__all__ = ["Forwarded", "Mirror", "MirrorConfig", "MirrorSettings", "Observer", "SourceConfig", "TargetConfig"]
