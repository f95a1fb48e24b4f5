"""Standard error for processes that must not wait for whoever reads it.

A pipe, a terminal or a socket that nobody reads fills up, and the next write to it waits for ever. ``O_NONBLOCK`` on
descriptor 2 is no way out: it belongs to the open file description, which the shell and other programs share. So a pipe
or a terminal is opened once more through ``/proc``, a socket is asked not to wait for each call, and where the second
opening is refused (a pipe of another user, in a container), each write is asked not to wait.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import time
from typing import TextIO

PIPE_BYTES = select.PIPE_BUF
"""A pipe that ``poll`` calls writable has room for so much."""
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)


class StandardError:
    """Writes whole texts, or drops and counts them; one thread at a time.

    A text that went out in part goes on with the next call, and nothing gets between, so that no line is torn. For a
    stream without a descriptor of its own, as tests have, and for files on a disk, writes are what they always are.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._rest = b""
        self._socket: socket.socket | None = None
        self._own: int | None = None  # opened here, does not wait
        self._fd: int | None = None
        self._may_wait = False
        self.dropped = 0
        """Texts that were dropped; for the caller to set back once it has said so."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no stream, a closed one, one without a file
            self._fd = stream.fileno()  # type: ignore[union-attr]
            self._prepare(self._fd)

    def _prepare(self, fd: int) -> None:
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            try:
                self._own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError:
                self._may_wait = True

    def fileno(self) -> int | None:
        """A descriptor for what writes by itself, such as ``faulthandler``; None without one."""
        return self._fd if self._own is None else self._own

    def write(self, text: str, timeout: float = 0.0) -> bool:
        """Write a text now, or within ``timeout`` seconds; False when it was dropped and counted."""
        deadline = time.monotonic() + timeout
        if self.finish(deadline) and self._begin(text.encode("utf-8", "backslashreplace"), deadline):
            return True
        self.dropped += 1
        return False

    def close(self) -> None:
        """Give back what was opened here; the stream stays open. May be called twice."""
        if self._own is not None:
            os.close(self._own)
            self._own = None
        if self._socket is not None:
            self._socket.close()
        self._fd = self._socket = self._stream = None

    def finish(self, deadline: float = 0.0) -> bool:
        """Write what is left of a text that went out in part; whether nothing is left."""
        rest, self._rest = self._rest, b""
        if rest and not self._begin(rest, deadline):
            self._rest = rest
        return not self._rest

    def _begin(self, data: bytes, deadline: float) -> bool:
        """Write some of ``data`` at least; the rest of it is kept. False when nothing could be written."""
        if self._fd is None:
            return self._write_to_stream(data)
        written = 0
        while written < len(data):
            try:
                written += self._write_some(self._fd, data[written:])
            except BlockingIOError:
                if not self._is_writable(deadline - time.monotonic()):
                    break
            except OSError:  # the reader is gone, the disk is full
                break
        if written:
            self._rest = data[written:]
        return written > 0

    def _write_to_stream(self, data: bytes) -> bool:
        try:
            if self._stream is not None:
                self._stream.write(data.decode())
                self._stream.flush()
        except (OSError, ValueError):
            return False
        return self._stream is not None

    def _write_some(self, fd: int, data: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        if not self._may_wait:
            return os.write(fd if self._own is None else self._own, data)
        if not self._is_writable(0.0):
            raise BlockingIOError
        with contextlib.suppress(NotImplementedError, AttributeError):
            try:
                return os.pwritev(fd, [data[:PIPE_BYTES]], -1, _NO_WAIT)
            except BlockingIOError:
                raise
            except OSError:
                pass  # not known to this kernel for this kind of file
        return os.write(fd, data[:PIPE_BYTES])

    def _is_writable(self, seconds: float) -> bool:
        if seconds < 0 or self._fd is None:
            return False
        waiting = select.poll()
        waiting.register(self._fd, select.POLLOUT)
        return bool(waiting.poll(seconds * 1000))
