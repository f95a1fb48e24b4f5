"""What a figure was measured on, as plain data for its JSON file."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import psutil

from fastlog.installation import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
"""The checkout; where fastlog is installed, the directory that it is installed in."""

PACKAGES = (
    "fastlog",
    "numpy",
    "pyarrow",
    "kazoo",
    "Cython",
    "psutil",
    "python-snappy",
    "cramjam",
    "click",
)


def describe(directory: Path = ROOT) -> dict[str, object]:
    """Commit, processor, memory, kernel, the file system that holds ``directory``, load and versions."""
    return {
        "commit": commit(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "file_system": file_system(directory),
        "free_bytes": psutil.disk_usage(str(directory)).free,
        "load_average": list(os.getloadavg()),
        "tcp_congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "c_compiler": _first_line(os.environ.get("CC", "cc"), "--version"),
        "python": platform.python_version(),
        "packages": versions(),
    }


def commit() -> str:
    """The commit of the checkout, with ``+changes`` when files differ from it; ``unknown`` outside of one."""
    top = _first_line("git", "-C", str(ROOT), "rev-parse", "--show-toplevel")
    if top == "unknown" or Path(top).resolve() != ROOT:
        return "unknown"  # installed into an environment that lies in somebody's checkout of something else
    found = _first_line("git", "-C", str(ROOT), "rev-parse", "--verify", "HEAD")
    changed = _first_line("git", "-C", str(ROOT), "status", "--porcelain")
    return found + "+changes" if found != "unknown" and changed != "unknown" else found


def cpu_model() -> str:
    """The processor as the kernel names it."""
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(directory: Path) -> dict[str, str]:
    """Type, device and options of the mount that holds ``directory``."""
    path = directory.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    mount = max(mounts, key=lambda candidate: len(candidate.mountpoint), default=None)
    return {"type": mount.fstype, "device": mount.device, "options": mount.opts} if mount else {}


def versions() -> dict[str, str]:
    """The installed version of each package that matters here."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(DISTRIBUTION if name == "fastlog" else name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def _first_line(*command: str) -> str:
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return output.splitlines()[0].strip() if output.strip() else "unknown"
