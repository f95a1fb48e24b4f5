"""What is built: extensions without symbols that nobody needs, a wheel and an sdist that hold what they should."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from setuptools import Distribution

ROOT = Path(__file__).parents[2]
FOLDERS = ("fastlog", "pyspark_fastlog", "tests", "perf", "scripts", "docs", "examples", ".ci")
GENERATED = re.compile(r"^build/|\.egg-info/")


@pytest.fixture
def build_script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names in ``setup.py``, imported as a process of a pool does that translates for it."""
    monkeypatch.chdir(ROOT)
    return runpy.run_path("setup.py", run_name="__mp_main__")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout without what was made in it: setuptools reads every directory that it finds there."""
    copy = tmp_path / "checkout"
    made = shutil.ignore_patterns("*.so", "*.c", "*.html", "__pycache__", "build")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=made)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    return copy


def test_the_build_script_builds_when_it_is_run_alone(build_script: dict[str, Any]) -> None:
    """Where Python starts the processes of a pool anew, each of them imports it: from 3.14 on on Linux, too."""
    assert [extension.name for extension in build_script["extensions"]()].count("fastlog._crc") == 1


@pytest.mark.parametrize("command", ["import fastlog", "runpy.run_path('setup.py', run_name='__main__')"])
def test_another_system_is_told(command: str) -> None:
    """When it is installed, and when it is imported all the same; not by a compiler or a missing function."""
    here = "import runpy, sys, sysconfig; sysconfig.get_config_vars(); import setuptools, Cython.Build"
    program = f"{here}; sys.platform = 'darwin'; {command}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "fastlog runs on Linux only, clients included; this is darwin" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_an_installed_extension_has_no_symbols_but_its_own(
    build_script: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Symbols are three quarters of the file, and more where Python was compiled with debug information."""
    if build_script["DEBUG"]:
        pytest.skip("built to be debugged")
    (tmp_path / "small.c").write_text(
        "static int helper(int x) { return x * x; }\nint PyInit_small(int x) { return helper(x); }"
    )
    extension = next(one for one in build_script["extensions"]() if one.name == "fastlog._crc")
    extension.name, extension.sources = "small", [str(tmp_path / "small.c")]
    made = Distribution({"ext_modules": [extension], "cmdclass": {"build_ext": build_script["BuildExtensions"]}})
    command = made.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(tmp_path / "lib"), str(tmp_path / "temp")
    command.ensure_finalized()
    command.run()
    assert "[ 1/1] Compiled small" in capfd.readouterr().out
    (library,) = (tmp_path / "lib").iterdir()
    content = library.read_bytes()
    assert b".text" in content
    assert b".symtab" not in content
    assert b".debug_info" not in content


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_an_sdist_all_of_the_checkout(checkout: Path, tmp_path: Path) -> None:
    """Without extensions, which would have to be compiled."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path), "bdist_wheel", "-d", str(tmp_path)],
        cwd=checkout,
        env={**os.environ, "FASTLOG_NO_EXTENSIONS": "1"},
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("fastlog_broker-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
        launcher = opened.getinfo("fastlog/java_home/bin/java")
    assert launcher.external_attr >> 16 & 0o111
    assert {name.partition("/")[0] for name in names} == {"fastlog", "pyspark_fastlog"}
    assert names >= {"fastlog/py.typed", "fastlog/_crc.pyi", "fastlog/_crc.pxd", "fastlog/spark/jobs/load.py"}
    assert names >= {"fastlog/metrics/dashboard.json", "fastlog/metrics/rules.yml"}
    assert not [name for name in names if name.endswith(".pyx")]
    (sdist,) = tmp_path.glob("fastlog_broker-*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    assert packed["scripts/test"].mode & 0o111
    listed = {str(path.relative_to(checkout)) for path in checkout.rglob("*") if path.is_file()}
    assert {name for name in listed - packed.keys() if not GENERATED.search(name)} == {".gitignore"}
