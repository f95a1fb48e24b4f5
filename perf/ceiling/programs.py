"""Compiles the C programs of the measurements where they are run, once for each version of their sources."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

BUILD = Path(__file__).with_name("build")
READY = re.compile(r"\w+: ready port=(\d+) crc=(\w+)")
END_SECONDS = 10.0
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


class CannotBuild(RuntimeError):
    """There is no C compiler, or it refused; the message says which."""


def compiler_or_none() -> list[str] | None:
    """The C compiler's command, from ``CC`` or ``cc``; None when there is none."""
    command = shlex.split(os.environ.get("CC", "cc"))
    return command if command and shutil.which(command[0]) else None


def sources_of(source: Path) -> list[Path]:
    """The file and everything that it includes by ``"…"``, each once."""
    found: dict[Path, None] = {}
    waiting = [source.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = None
            waiting += [(path.parent / name).resolve() for name in INCLUDE.findall(path.read_text())]
    return list(found)


def build(source: Path, flags: Sequence[str] = (), directory: Path = BUILD) -> Path:
    """The compiled program, ``directory/<stem>``; compiles only when a source, a flag or the compiler is another one.

    Safe for several processes at once. Raises ``CannotBuild`` in one line, or with the compiler's own words.
    """
    compiler = compiler_or_none()
    if compiler is None:
        raise CannotBuild(f"{source.name} needs a C compiler: {os.environ.get('CC', 'cc')} is not there (set CC)")
    command = [*compiler, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-pthread"]
    digest = hashlib.sha256(repr((command, flags)).encode())
    for path in sources_of(source):
        digest.update(path.read_bytes())
    program, note = directory / source.stem, directory / f"{source.stem}.sha256"
    if program.exists() and note.exists() and note.read_text() == digest.hexdigest():
        return program
    directory.mkdir(parents=True, exist_ok=True)
    made = directory / f"{source.stem}.{os.getpid()}.new"
    done = subprocess.run([*command, "-o", str(made), str(source), *flags], capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(f"{source.name} does not compile:\n{done.stderr.strip()}")
    made.replace(program)
    note.write_text(digest.hexdigest())
    return program


def figures(program: Path, mode: str, options: Mapping[str, object], timeout: float = 600.0) -> dict[str, Any]:
    """One run of ``program mode``; the option ``max_bytes`` becomes ``--max-bytes``. Returns the JSON that it printed.

    Raises ``RuntimeError`` with the program's own line when it fails.
    """
    command = [str(program), mode]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"{program.name} ended with status {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


class Running:
    """A broker in C, running inside the ``with`` block; for one thread.

    ``port`` and ``crc`` (the way checksums are computed) are there once it runs. It ends when its standard input does.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self.port = 0
        self.crc = ""

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._process.stdout is not None
        ready = READY.match(self._process.stdout.readline())
        if ready is None:
            error = self.stop()
            raise RuntimeError(error or f"{Path(self._command[0]).name} did not start")
        self.port, self.crc = int(ready[1]), ready[2]
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> str:
        """Ends the process, at once if it must be; returns what it wrote to its standard error. May be called twice."""
        if self._process.stdin is not None and self._process.stdin.closed:
            return ""
        try:
            return self._process.communicate(timeout=END_SECONDS)[1].strip()
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.communicate()[1].strip()
