"""Compiles the C programs of the measurements where they are run, once for each version of their sources."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

BUILD = Path(__file__).with_name("build")
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
