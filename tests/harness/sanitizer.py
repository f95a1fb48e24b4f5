"""Whether the tests run under AddressSanitizer (``scripts/test-sanitized``), which takes memory of its own.

It has bytes about every byte, and keeps what was freed for a while: how large a process is says nothing there.
"""

from __future__ import annotations

import os

import pytest

IS_SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
ENVIRONMENT = {name: os.environ[name] for name in ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS") if IS_SANITIZED}
"""What a program that gets no other variables needs for loading the compiled code."""
SLOWER = 4 if IS_SANITIZED else 1
"""By what a test's time limit is multiplied."""
KEPT_BYTES = 64 << 20 if IS_SANITIZED else 0
"""By how much a process may grow that keeps what was freed."""

about_memory = pytest.mark.skipif(IS_SANITIZED, reason="the sanitizer's own memory counts, too")
"""Marks a test that a process's memory stays small."""
