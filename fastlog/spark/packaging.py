"""fastlog and all that its Spark jobs import, in an archive for machines of a cluster that have a Python and no more.

Spark brings itself, its workers have a Java and unpack archives by themselves, each where it works. What they lack is a
Python that finds fastlog: the archive has a program for that, which takes the machine's own and refuses, in words, one
that does not load what is compiled here. Modules are copied as they are installed; nothing is fetched.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from fastlog import errors
from fastlog.installation import DISTRIBUTION, how_to_install

NAME = "fastlog"
"""The directory into which the archive is unpacked; that of the driver has this name, too."""
ARCHIVE = f"{NAME}.tar.gz"
PYTHON = f"{NAME}/python"
LIBRARY = "lib"
JOBS = f"{NAME}/{LIBRARY}/fastlog/spark/jobs"

_EXTRA = ("pyarrow", "deltalake")
"""Beside what fastlog itself requires. Spark and its Java are the cluster's."""
_SOURCES = {".c", ".h", ".pyx", ".pxd", ".pxi", ".pyi", ".a", ".pyc"}
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|pyarrow/(tests|include|src)|numpy/_core/include)/|\.dist-info/(RECORD|direct_url\.json)$"
)
_GLIBC = re.compile(rb"\0GLIBC_(\d+)\.(\d+)")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHECK = """\
import json, os, sys, sysconfig
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "needs.json")) as file:
    needs = json.load(file)
found = sysconfig.get_config_var("SOABI")
if found != needs["abi"]:
    sys.exit(f"fastlog: {sys.executable} is a {found}, and this package is for {needs['abi']}: give the machine that"
             f" Python (python{needs['python']}; FASTLOG_PYTHON names another one), or make the package with this one")
libc = os.confstr("CS_GNU_LIBC_VERSION") if needs["glibc"] else ""
if libc and [int(part) for part in libc.split()[-1].split(".")[:2]] < needs["glibc"]:
    wanted = ".".join(map(str, needs["glibc"]))
    sys.exit(f"fastlog: this machine has {libc}, and this package needs {wanted} or newer: make the package on a"
             " machine as old as the oldest of the cluster")
"""
_START = """\
#!/bin/sh
# The Python of this machine, with fastlog and what it needs. FASTLOG_PYTHON names another one.
here=$(dirname "$(readlink -f "$0")")
python=${{FASTLOG_PYTHON:-}}
for name in python{version} python3; do
    [ -n "$python" ] || python=$(command -v $name || true)
done
if [ -z "$python" ]; then
    echo "fastlog: there is no python{version} in PATH ($PATH): install it, or name it by FASTLOG_PYTHON" >&2
    exit 1
fi
"$python" -I "$here/check.py" || exit 1
PYTHONPATH=$here/{library}${{PYTHONPATH:+:$PYTHONPATH}}
export PYTHONPATH
exec "$python" "$@"
"""


@dataclass(frozen=True)
class Package:
    """What was made: a ``directory`` with ``fastlog``, for the driver, and the same as an archive for the workers."""

    directory: Path
    distributions: dict[str, str]
    """The version of each distribution in it, by name."""
    needs: dict[str, Any]
    """``abi``: the binary interface of Python; ``python``: its version; ``glibc``: the least, or None."""
    size_bytes: int

    @property
    def archive(self) -> Path:
        """The archive for ``spark-submit --archives``."""
        return self.directory / ARCHIVE


def make_package(directory: Path) -> Package:
    """Put ``fastlog/`` and ``fastlog.tar.gz`` into a directory, in place of those that are there.

    A run that is killed leaves those that were there, or the new ones, or one of the two is missing.

    Raises:
        ConfigError: this installation cannot be copied, or something else has that name in the directory.
        MissingDependencyError: a package that the workers need is not installed here.
    """
    distributions = _distributions()
    _check_compiled()
    directory.mkdir(parents=True, exist_ok=True)
    target, archive = directory / NAME, directory / ARCHIVE
    if target.exists() and not (target / "needs.json").is_file():
        raise errors.ConfigError(f"{target} is there and no package of fastlog: give another directory")
    with tempfile.TemporaryDirectory(prefix=".fastlog-", dir=directory) as scratch:
        tree = Path(scratch) / NAME
        library = tree / LIBRARY
        for source, name in _files(distributions):
            place = library / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
        needs = {
            "abi": sysconfig.get_config_var("SOABI"),
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "glibc": _least_glibc(library),
        }
        (tree / "needs.json").write_text(json.dumps(needs))
        (tree / "check.py").write_text(_CHECK)
        start = tree / "python"
        start.write_text(_START.format(version=needs["python"], library=LIBRARY))
        start.chmod(0o755)
        packed = Path(scratch) / ARCHIVE
        _pack(tree, packed)
        archive.unlink(missing_ok=True)  # never an archive beside the modules of another one
        if target.exists():
            shutil.rmtree(target)
        tree.rename(target)
        packed.rename(archive)
    versions = {name: found.version for name, found in distributions.items()}
    return Package(directory, versions, needs, archive.stat().st_size)


def _pack(tree: Path, archive: Path) -> None:
    """The contents of a tree: Spark unpacks an archive into a directory that it names itself."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with gzip.open(archive, "wb", compresslevel=1) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(tree.iterdir()):
            tar.add(path, path.name, filter=plain)


def _distributions() -> dict[str, metadata.Distribution]:
    """fastlog's own, and what it requires, by their names."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [(name, how_to_install("spark")) for name in (DISTRIBUTION, *_EXTRA)]
    while wanted:
        name, remedy = wanted.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            found[key] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise errors.MissingDependencyError(f"{name} is not installed, and workers need it: {remedy}") from None
        for requirement in found[key].requires or []:
            named = _REQUIREMENT.match(requirement)
            _, _, condition = requirement.partition(";")
            # What is for some machines or extras alone is wanted where it is installed, unless it is for an extra.
            if named is None or "extra" in condition or (condition and not _is_installed(named[0])):
                continue
            wanted.append((named[0], f"pip install {named[0]}"))
    return dict(sorted(found.items()))


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _files(distributions: dict[str, metadata.Distribution]) -> Iterator[tuple[Path, str]]:
    """Every file that workers need, and its name in the library."""
    for package in ("fastlog", "pyspark_fastlog"):
        # Of a checkout no list says which files it has.
        root = _place_of(package)
        for path in sorted(root.rglob("*") if root.is_dir() else [root]):
            name = path.relative_to(root.parent).as_posix()
            if path.is_file() and _is_wanted(name):
                yield path, name
    for key, distribution in distributions.items():
        for file in distribution.files or []:
            name = file.as_posix()
            is_own = key == re.sub(r"[-_.]+", "-", DISTRIBUTION).lower()
            if is_own and ".dist-info/" not in name:
                continue
            if name.startswith(("../", "/")) or not _is_wanted(name):
                continue  # programs, and what the interpreter makes itself
            if name.endswith(".pth"):
                raise errors.ConfigError(
                    f"{key} is installed as a reference to another place ({name}): install it as it is, without -e"
                )
            yield Path(str(distribution.locate_file(file))), name


def _place_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise errors.ConfigError(f"there are no files of {package}: {how_to_install('spark')}")
    origin = Path(spec.origin)
    return origin.parent if spec.submodule_search_locations else origin


def _is_wanted(name: str) -> bool:
    return Path(name).suffix not in _SOURCES and _LEFT_OUT.search(name) is None


def _check_compiled() -> None:
    """Raise ``ConfigError`` where compiled modules are not those of this Python."""
    suffix = EXTENSION_SUFFIXES[0]
    root = _place_of("fastlog")
    for source in root.rglob("*.pyi"):
        if not source.with_name(source.stem + suffix).is_file() and not source.with_suffix(".py").is_file():
            raise errors.ConfigError(f"{source.with_suffix('')} is not compiled for this Python: build fastlog anew")


def _least_glibc(library: Path) -> list[int] | None:
    """The newest version of glibc that a compiled module asks for; None where this Python has another libc."""
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return None
    try:
        if not os.confstr("CS_GNU_LIBC_VERSION"):
            return None
    except (OSError, ValueError):  # musl
        return None
    found = {(2, 17)}
    for path in library.rglob("*.so*"):
        found |= {(int(major), int(minor)) for major, minor in _GLIBC.findall(path.read_bytes())}
    return list(max(found))
