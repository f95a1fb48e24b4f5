"""The audit: who sent how much, who has seen how much, and where the two differ. See ``docs/audit.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastlog.audit.auditor import Auditor

__all__ = ["Auditor"]


def __getattr__(name: str) -> Any:
    """Import the class when it is first used: producers need the events alone."""
    if name != "Auditor":
        raise AttributeError(f"module 'fastlog.audit' has no attribute {name!r}")
    from fastlog.audit.auditor import Auditor

    return Auditor
