"""What ``fastlog doctor`` looks at on the machine: log directories and their disks, limits, clock, memory, versions."""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
import stat
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from fastlog import __version__
from fastlog.config import BrokerConfig
from fastlog.installation import DISTRIBUTION, how_to_install
from fastlog.segment_files import CLEAN_MARKER_NAME, META_PROPERTIES_NAME
from fastlog.tools.findings import Finding, Subject, bad, ok, warn

SYNCS = 5
SLOW_SYNC_SECONDS = 0.05
DISCARD_REMEDY = "flushes wait while segments are removed: mount it without discard, and let fstrim.timer run"
SCARCE_SHARE, LOW_SHARE = 0.05, 0.15
SCARCE_BYTES = 16 * 2**20
"""Less is scarce on any disk, also on one that is as small."""
OWN_DESCRIPTORS = 256
"""What a process has open besides connections and segments, with room to spare."""
USED_SHARE = 0.8
AHEAD_SECONDS = 60.0
"""How far files may be from the future: other machines' clocks write on network disks."""
EARLIEST = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
"""No clock that is right shows less: this code is younger."""
SHORT_MEMORY_BYTES = 128 * 2**20
_TIMEX_BYTES = 512
_TIME_ERROR = 5
_IN_MEMORY = ("tmpfs", "ramfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "ceph")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(;.*)?")
_MASKS = {"owner": 0o077, "group": 0o027, "all": 0o022}


def check_directories(subject: Subject) -> Iterator[Finding]:
    """Whether the log directories can be used, and belong here."""
    clusters: dict[str, Path] = {}
    for path in subject.directories:
        yield _directory(path, subject, clusters)


def check_disks(subject: Subject) -> Iterator[Finding]:
    """Whether the disks take a write and make it durable fast enough, and have room."""
    for path in subject.directories:
        there = _nearest(path)
        try:
            took = sync_seconds(there)
        except OSError as error:
            yield bad(
                "disk", "write-refused", f"{there} takes no write: {error.strerror}", _write_remedy(error.errno or 0)
            )
        else:
            middle = statistics.median(took)
            text = f"{there}: fdatasync of 4 KiB {middle * 1000:.2f} ms, at most {max(took) * 1000:.2f} ms"
            if middle > SLOW_SYNC_SECONDS:
                yield warn(
                    "disk",
                    "sync-slow",
                    text,
                    "a flushed acknowledgement takes that long: put log.dir on another disk, or see what else uses it",
                )
            elif "discard" in mounted(there)[1]:
                yield warn("disk", "disk-discards", f"{text}; mounted with discard", DISCARD_REMEDY)
            else:
                yield ok("disk", text)
        yield _space(there)


def check_descriptors(subject: Subject) -> Iterator[Finding]:
    """Whether a process may have as many files open as connections and segments need."""
    config = subject.config
    need = OWN_DESCRIPTORS + 2 * -(-config.max_connections // config.processors)  # half are for segments
    remedy = "raise it: ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of a container"
    used = [found for pid in subject.pids if (found := _descriptors_of(pid)) is not None]
    if used:
        open_files, limit, pid = max(used, key=lambda item: item[0] / item[1])
        text = f"process {pid} has {open_files} of {limit} open, the most of the broker's"
        if open_files > USED_SHARE * limit:
            yield warn("descriptors", "descriptors-few", text, remedy)
            return
    else:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if limit == resource.RLIM_INFINITY:
            limit = 2**31
        text = f"{limit} for each process"
    if limit < need:
        text = f"{limit} for each process, and max.connections={config.max_connections} may need {need}"
        yield warn("descriptors", "descriptors-few", text, f"{remedy}; or lower max.connections")
    else:
        yield ok("descriptors", text)


def check_clock(subject: Subject) -> Iterator[Finding]:
    """Whether the clock can be believed: retention goes by the times of files."""
    now = time.time()
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    remedy = "set it, and let it be kept: systemctl enable --now systemd-timesyncd, or chrony"
    newest = max(map(_newest_file, subject.directories), default=(0.0, ""))
    if now < EARLIEST:
        yield bad("clock", "clock-behind", f"it shows {shown}", remedy)
    elif newest[0] > now + AHEAD_SECONDS:
        text = f"it shows {shown}, and {newest[1]} is {newest[0] - now:.0f} s newer"
        yield bad("clock", "clock-behind", text, remedy)
    elif not _is_kept():
        yield warn("clock", "clock-not-kept", f"{shown}; nothing keeps it right, says the kernel", remedy)
    else:
        yield ok("clock", shown)


def check_memory(subject: Subject) -> Iterator[Finding]:
    """Whether requests and answers in flight can take what they may, and what is free now."""
    config = subject.config
    may = 2 * config.processors * config.request_memory_bytes
    total, available = memory()
    text = f"{_size(available)} of {_size(total)} are free; requests and answers may take {_size(may)}"
    if may > total:
        yield warn("memory", "memory-little", text, "lower request.memory.bytes or num.threads, or allow more memory")
    elif available < SHORT_MEMORY_BYTES:
        yield warn("memory", "memory-short", text, "see what takes it; what is killed for want of memory is replaced")
    else:
        yield ok("memory", text)


def check_versions(subject: Subject) -> Iterator[Finding]:
    """Whether what fastlog needs is there, and the broker that runs is what is installed."""
    text = f"fastlog {__version__}, Python {platform.python_version()}, Linux {platform.release()}"
    problems = list(_packages(subject.config))
    running = subject.health.get("version")
    if running and running != __version__:
        problems.append(
            warn(
                "versions",
                "broker-other-version",
                f"the broker that runs is fastlog {running}, and {__version__} is installed",
                "restart it: fastlog-broker --stop, then as before",
            )
        )
    yield from problems or [ok("versions", text)]


# -- directories and disks ---------------------------------------------------------------------------------------------


def _directory(path: Path, subject: Subject, clusters: dict[str, Path]) -> Finding:
    check = "directory"
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        there = _nearest(path)
        if os.access(there, os.W_OK | os.X_OK):
            return _lying(path, there, f"{path} is made at the start")
        if os.statvfs(there).f_flag & os.ST_RDONLY:
            why = f"{path} cannot be made: {there} is mounted for reading only"
            return bad(check, "directory-unusable", why, _write_remedy(errno.EROFS))
        why = f"{path} cannot be made: {_user()} may not write {there}"
        return bad(check, "directory-unusable", why, _owner_remedy(path))
    except NotADirectoryError as error:
        return bad(check, "directory-unusable", f"{path}: {error.strerror}", "name another --log-dir")
    except OSError as error:
        return bad(check, "directory-unusable", f"{path}: {error.strerror}", _owner_remedy(path))
    if not stat.S_ISDIR(mode):
        return bad(check, "directory-unusable", f"{path} is no directory", "name another --log-dir")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return bad(check, "directory-unusable", f"{path} may not be read and written by {_user()}", _owner_remedy(path))
    other = _other_cluster(path, clusters)
    if other is not None:
        return other
    wider = stat.S_IMODE(mode) & _MASKS[subject.config.log_access]
    if wider:
        return warn(
            check,
            "directory-open",
            f"{path} has mode {stat.S_IMODE(mode):04o}, wider than log.access={subject.config.log_access}",
            f"chmod -R {'g-w,o-rwx' if subject.config.log_access == 'group' else 'go-rwx'} {path}",
        )
    has_logs = (path / META_PROPERTIES_NAME).exists()
    if not subject.is_running and has_logs and not (path / CLEAN_MARKER_NAME).exists():
        return warn(
            check,
            "stop-unclean",
            f"{path}: the last broker there did not stop in order",
            "nothing: the next start looks at the ends of its logs; fastlog fsck shows what it will find",
        )
    state = f"in use by a broker ({subject.shown_pids})" if subject.is_running else "in order" if has_logs else "empty"
    return _lying(path, path, f"{path} is {state}")


def _lying(path: Path, there: Path, text: str) -> Finding:
    """What the file system says about a directory with which nothing else is wrong."""
    kind, _ = mounted(there)
    if kind in _IN_MEMORY:
        remedy = "name a --log-dir on a disk, unless the data may go with the machine's next start"
        return warn("directory", "directory-in-memory", f"{path} lies in memory ({kind})", remedy)
    if kind in _REMOTE:
        remedy = "name a --log-dir on a local disk: a lock and an fdatasync mean less over a network"
        return warn("directory", "directory-remote", f"{path} lies on another machine ({kind})", remedy)
    resolved = path.resolve()
    if any(resolved.is_relative_to(place) for place in ("/tmp", "/var/tmp")):
        remedy = "name another --log-dir, unless the data may go when the system cleans up"
        return warn("directory", "directory-temporary", f"{path} is among temporary files", remedy)
    return ok("directory", text)


def _other_cluster(path: Path, clusters: dict[str, Path]) -> Finding | None:
    """What is wrong with ``meta.properties``; ``clusters`` has those of the directories before."""
    file = path / META_PROPERTIES_NAME
    try:
        found = re.search(r"^\s*cluster\.id\s*=\s*(\S+)", file.read_text(encoding="utf-8"), re.M)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError):
        found = None
    remedy = f"restore {file} from a backup, or remove it where the directory is to join the others"
    if found is None:
        return bad("directory", "directory-of-no-cluster", f"{file} names no cluster.id", remedy)
    clusters.setdefault(found[1], path)
    cluster, first = next(iter(clusters.items()))
    if found[1] != cluster:
        text = f"{path} belongs to the cluster {found[1]}, and {first} to {cluster}"
        return bad("directory", "directory-of-another-cluster", text, remedy)
    return None


def sync_seconds(directory: Path) -> list[float]:
    """How long each of some small writes took to be durable; the file has no name, or is gone at once.

    Raises:
        OSError: as the disk refuses it.
    """
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        fd, name = tempfile.mkstemp(prefix=".fastlog-doctor-", dir=directory)
        Path(name).unlink()
    took = []
    try:
        for number in range(SYNCS):
            if os.pwrite(fd, bytes(4096), number * 4096) < 4096:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            begun = time.perf_counter()
            os.fdatasync(fd)
            took.append(time.perf_counter() - begun)
    finally:
        os.close(fd)
    return took


def _space(directory: Path) -> Finding:
    found = os.statvfs(directory)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    text = f"{directory}: {_size(free)} of {_size(total)} are free"
    remedy = "make room, or set log.retention.size or log.retention.hours; a full disk refuses produces"
    if found.f_favail < SCARCE_SHARE * found.f_files:
        text = f"{directory}: {found.f_favail} of {found.f_files} inodes are free"
        return bad("space", "inodes-few", text, "remove small files there, or name a --log-dir on another disk")
    if free < max(SCARCE_BYTES, SCARCE_SHARE * total):
        return bad("space", "space-scarce", text, remedy)
    if free < LOW_SHARE * total:
        return warn("space", "space-low", text, remedy)
    return ok("space", text)


def _nearest(path: Path) -> Path:
    """The directory, or the nearest above it that is one."""
    path = path.resolve()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def mounted(path: Path) -> tuple[str, frozenset[str]]:
    """The kind and the options of the file system on which a path lies; empty where the kernel does not tell."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", frozenset()
    for line in lines:
        before, _, behind = line.partition(" - ")
        if before.split()[2:3] == [wanted]:
            kind, *_, options = behind.split(" ")
            return kind, frozenset(options.split(","))
    return "", frozenset()


def _write_remedy(number: int) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "make room there, or name a --log-dir on another disk"
    if number == errno.EROFS:
        return "mount it for writing, or name another --log-dir"
    return "see what the kernel says of the disk (dmesg), or name another --log-dir"


def _owner_remedy(path: Path) -> str:
    return f"chown it to the user that the broker runs as ({path}), or name another --log-dir"


def _user() -> str:
    return f"user {os.geteuid()}"


# -- limits and clock --------------------------------------------------------------------------------------------------


def _descriptors_of(pid: int) -> tuple[int, int, int] | None:
    """Open files, the limit and the process; None where it is gone or another user's."""
    try:
        limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
        found = re.search(r"^Max open files\s+(\d+)", limits, re.M)
        return (len(list(Path(f"/proc/{pid}/fd").iterdir())), int(found[1]), pid) if found else None
    except OSError:
        return None


def _newest_file(directory: Path) -> tuple[float, str]:
    """The newest time among the segments of a log directory, and whose it is."""
    newest = (0.0, "")
    for pattern in ("*/*.kafka", "*/*.log"):
        for path in directory.glob(pattern):
            try:
                newest = max(newest, (path.stat().st_mtime, str(path)))
            except OSError:
                continue  # retention was faster
    return newest


def _is_kept() -> bool:
    """Whether something keeps the kernel's clock right; where the kernel does not say, it is taken for granted."""
    try:
        import ctypes  # Python may be built without it

        asked = ctypes.create_string_buffer(_TIMEX_BYTES)  # zeros ask and change nothing
        return int(ctypes.CDLL(None).adjtimex(asked)) != _TIME_ERROR
    except (ImportError, OSError, AttributeError):
        return True


# -- memory ------------------------------------------------------------------------------------------------------------


def memory(proc: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Bytes that there are and bytes that are free, within what the container may have."""
    text = proc.read_text(encoding="ascii")
    found = {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    total = found["MemTotal"]
    available = found.get("MemAvailable", found.get("MemFree", total))
    for limit_name, used_name in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "")):
        try:
            limit = int((group / limit_name).read_text(encoding="ascii"))
            used = int((group / used_name).read_text(encoding="ascii")) if used_name else 0
        except (OSError, ValueError):
            continue  # there is no such file, or it says "max"
        if limit < total:
            total, available = limit, min(available, max(0, limit - used))
    return total, available


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


# -- versions ----------------------------------------------------------------------------------------------------------


def _packages(config: BrokerConfig) -> Iterator[Finding]:
    """What is wrong with the packages that fastlog needs."""
    wanted = {"metrics"} if config.monitor is not None else set()
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = []  # a checkout in the path
    for requirement in requirements:
        found = _REQUIREMENT.fullmatch(requirement)
        if found is None:
            continue
        name, specifiers, marker = found[1], found[2].strip(), found[3] or ""
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if extra is not None and extra[1] not in wanted:
            continue
        remedy = how_to_install(extra[1]) if extra is not None else f"pip install '{name}{specifiers}'"
        use = "/metrics" if extra is not None else "fastlog"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield (warn if extra else bad)("versions", "package-missing", f"{use} needs {name}", remedy)
            continue
        if not satisfies(version, specifiers):
            text = f"{name} is {version}, and {use} needs {specifiers}"
            yield bad("versions", "package-unfit", text, remedy)


def satisfies(version: str, specifiers: str) -> bool:
    """Whether a version is in bounds such as ``>=3.1,<4``; of other comparisons none is judged."""
    for specifier in filter(None, (item.strip() for item in specifiers.split(","))):
        sign, number = specifier.rstrip("0123456789.*"), specifier.lstrip("<>=!~ ")
        have, bound = _numbers(version), _numbers(number)
        if (sign.strip() == ">=" and have < bound) or (sign.strip() == "<" and have >= bound):
            return False
    return True


def _numbers(version: str) -> list[int]:
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[^0-9.]", version, maxsplit=1)[0])]
    while numbers and not numbers[-1]:
        numbers.pop()  # 3.0 is 3
    return numbers
