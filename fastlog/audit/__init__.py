"""The audit: who sent how much, who has seen how much, and where the two differ. See ``docs/audit.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastlog.audit.auditor import LATENCY_BOUNDS_MS, Auditor, Latencies

__all__ = ["LATENCY_BOUNDS_MS", "Auditor", "Latencies"]


def __getattr__(name: str) -> Any:
    """Import what is used when it is first used: producers need the events alone."""
    if name not in __all__:
        raise AttributeError(f"module 'fastlog.audit' has no attribute {name!r}")
    from fastlog.audit import auditor

    return getattr(auditor, name)
