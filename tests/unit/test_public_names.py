"""``import fastlog`` is cheap, its names come when they are used, and a missing extension says what to run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fastlog

ROOT = Path(__file__).resolve().parents[2]


def run(program: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=check, timeout=30
    )


def test_importing_the_package_imports_nothing_of_it() -> None:
    loaded = run("import sys, fastlog; print(*(name for name in sys.modules if name.startswith('fastlog.')))").stdout
    assert loaded.split() == []


@pytest.mark.parametrize("name", fastlog.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(fastlog, name) is not None
    assert name in dir(fastlog)


def test_errors_of_every_day_are_public() -> None:
    """What a program that consumes has to catch, without a second import; the same classes as in fastlog.errors."""
    for name in ("FastlogError", "ConsumerTimeout", "CoordinationError", "OwnershipLostError"):
        assert getattr(fastlog, name) is getattr(fastlog.errors, name)


def test_using_a_client_brings_no_numpy() -> None:
    loaded = run("import sys, fastlog; fastlog.SimpleConsumer; print(*sys.modules)").stdout.split()
    assert "fastlog.consumer.simple" in loaded
    assert not {"numpy", "pyarrow", "asyncio", "click", "psutil"} & set(loaded)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        fastlog.no_such_name  # noqa: B018


def test_extensions_that_are_not_built_are_said() -> None:
    program = "import sys; sys.modules['fastlog._batch'] = None; import fastlog; fastlog.SimpleConsumer"
    said = run(program, check=False).stderr
    assert "fastlog._batch is not built" in said
    assert "build_ext --inplace" in said
