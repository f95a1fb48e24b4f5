"""Extensions that only tests have: built on demand, beside the checkout, against the package as it is."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from tests.harness.checkout import ROOT

INCLUDED = ("fastlog", "fastlog/log", "fastlog/workers/net")


def build(source: Path, depends: Iterable[Path]) -> ModuleType:
    """The module of a ``.pyx``, compiled once for a state of it and of what it depends on."""
    sources = [source, *depends]
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + sys.version.encode()).hexdigest()[:16]
    folder = ROOT / ".tmp" / f"{source.stem.strip('_')}-{state}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{source.stem}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(source, folder, library)
    spec = importlib.util.spec_from_file_location(source.stem, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(source: Path, folder: Path, library: Path) -> None:
    run = subprocess.run
    c, made = folder / f"{source.stem}.c", folder / "made.so"
    run([sys.executable, "-m", "cython", "-3", "-I", str(ROOT), "-o", str(c), str(source)], check=True, cwd=ROOT)
    compiler = shlex.split(str(sysconfig.get_config_var("CC") or "cc"))
    places = [sysconfig.get_path("include"), *(str(ROOT / folder) for folder in INCLUDED)]
    options = ["-O2", "-shared", "-fPIC", "-D_GNU_SOURCE", *(f"-I{place}" for place in places)]
    run([*compiler, *options, "-o", str(made), str(c)], check=True)
    made.rename(library)
