"""The copy of the checkout that is built with sanitizers. It is kept, so that only what has changed is built again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.harness.checkout import ROOT, known_files

COPY = ROOT / ".tmp" / "sanitized"
# libstdc++ because the sanitizer looks at its start for what throws exceptions, and pyarrow brings that later.
_RUNTIME = ("libasan.so", "libstdc++.so.6")


def update() -> None:
    """Make the copy hold what git knows of the checkout; a file that is the same keeps its time."""
    names = set(known_files())
    for name in names:
        write(name, (ROOT / name).read_bytes())
        (COPY / name).chmod((ROOT / name).stat().st_mode & 0o777)
    for folder in ("fastlog", "tests"):
        for path in (COPY / folder).rglob("*.*"):
            name = str(path.relative_to(COPY))
            source = f"{name.partition('.')[0]}.pyx" if path.suffix in (".c", ".so") else name
            if path.is_file() and not names & {name, source} and "__pycache__" not in name:
                path.unlink()


def write(name: str, data: bytes) -> None:
    """Give a file of the copy these bytes."""
    target = COPY / name
    if not target.is_file() or target.read_bytes() != data:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def build() -> None:
    """Build the extensions that are older than their sources. Raises ``SystemExit`` when that fails."""
    built = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=COPY,
        env={**os.environ, "FASTLOG_SANITIZE": "1", "CC": compiler()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if built.returncode:
        sys.exit(f"{built.stdout}\nthe extensions could not be built with sanitizers")


def compiler() -> str:
    """The compiler, behind ccache where that is installed and ``CC`` chooses nothing else."""
    if chosen := os.environ.get("CC"):
        return chosen
    found: str = sysconfig.get_config_var("CC") or "cc"
    return f"ccache {found}" if shutil.which("ccache") else found


def runtime() -> str:
    """The libraries that a process has to load before all others, as ``LD_PRELOAD`` takes them."""
    found = []
    for name in _RUNTIME:
        path = subprocess.run(
            [*compiler().split(), f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        if not Path(path).is_absolute():
            sys.exit(f"{compiler()} has no {name}; gcc (CC=gcc) brings it, or in some distributions one more package")
        found.append(path)
    return ":".join(found)
