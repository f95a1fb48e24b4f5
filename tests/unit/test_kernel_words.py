"""What a child process tells the kernel and the C library about itself."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastlog.workers.net import _process
from tests.harness.sanitizer import about_memory
from tests.harness.shared_log import in_child
from tests.harness.timing import PATIENCE

MEMORY = """
import ctypes, mmap, resource
from fastlog.workers.net._process import keep_memory

library = ctypes.CDLL(None)
library.malloc.restype = library.memset.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
library.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a fault is a page

def share(size, count):
    "Of the pages of so many pieces that are in use together: how many the kernel had to give."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [library.malloc(size) for _ in range(count)]
    for piece in pieces:
        library.memset(piece, 1, size)
    for piece in pieces:
        library.free(piece)
    given = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return given * mmap.PAGESIZE / (size * count)

keep_memory(16 << 20, 8 << 20)
share(12 << 20, 1)
large = share(12 << 20, 1)
share(6 << 20, 2)
kept = share(6 << 20, 2)
share(6 << 20, 3)
print(large, kept, share(6 << 20, 3))
"""


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("fastlog-keeper", b"fastlog-keeper"),
        ("fastlog-processor-3", b"fastlog-process"),
        ("größte-Namen-ü", "größte-Namen-".encode()),
    ],
)
def test_a_process_has_a_name_of_at_most_15_bytes(name: str, shown: bytes) -> None:
    def check() -> None:
        _process.set_name(name)
        assert Path("/proc/self/comm").read_bytes()[:-1][: len(shown)] == shown

    assert in_child(check) == 0


def test_who_asked_for_it_is_killed_when_its_parent_ends() -> None:
    """By a signal that it cannot ignore; whoever adopts it has no part in that."""
    read, write = os.pipe()

    def parent() -> int:
        if os.fork() == 0:
            for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(one, signal.SIG_IGN)
            _process.die_with_parent()
            os.write(write, b"%d\n" % os.getpid())
            while True:
                signal.pause()
        told = os.read(read, 100)
        os.write(write, told)
        return 0

    assert in_child(parent) == 0
    os.close(write)
    pid = int(os.read(read, 100))
    try:
        assert select.select([read], [], [], PATIENCE)[0]
        assert os.read(read, 1) == b""
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(read)


@about_memory
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="a C library that cannot be told")
def test_freed_memory_is_kept_up_to_the_limits() -> None:
    """Pieces that fit are there again without the kernel; a larger one, and more than is to be kept, are given back."""
    ended = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True)
    large, kept, too_many = map(float, ended.stdout.split())
    assert large > 0.9
    assert kept < 0.1
    assert too_many > 0.9
