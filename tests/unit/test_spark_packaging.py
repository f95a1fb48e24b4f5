"""The package for a cluster: what is in it, what its Python refuses, and what is left when making it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from fastlog.errors import ConfigError, MissingDependencyError
from fastlog.spark import packaging
from fastlog.spark.jobs.package import spark_command
from fastlog.spark.packaging import Package, make_package
from tests.harness.sanitizer import ENVIRONMENT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WORKER = "import sys, fastlog, fastlog._crc, fastlog.spark._columns; print(fastlog.__file__)"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    directory = tmp_path_factory.mktemp("package")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packaging, "_EXTRA", ())  # pyarrow and the like take seconds, and are copied as the others
        made = make_package(directory)
    yield made
    shutil.rmtree(directory)


def run(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tree / "python"), *arguments],
        cwd=tree.parent,
        env={"PATH": os.environ["PATH"], "FASTLOG_PYTHON": sys.executable, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_archive_has_what_a_worker_imports_and_no_sources_of_compiled_modules(
    package: Package, tmp_path: Path
) -> None:
    tree = tmp_path / "x"
    with tarfile.open(package.archive) as archive:
        archive.extractall(tree, filter="data")
    names = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert names == {
        path.relative_to(package.directory / "fastlog").as_posix()
        for path in (package.directory / "fastlog").rglob("*")
        if path.is_file()
    }
    done = run(tree, "-S", "-c", WORKER)  # without the packages that this Python has
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(tree / "lib" / "fastlog" / "__init__.py")
    assert not [
        name for name in names if name.endswith((".c", ".pyx", ".pxd", ".pyc")) or "/numpy/_core/include" in name
    ]
    assert {
        "lib/fastlog/java_home/bin/java",
        "lib/fastlog/spark/jobs/load.py",
        "lib/kazoo/client.py",
        "lib/pyspark_fastlog/__init__.py",
    } <= names
    assert {"fastlog-broker", "numpy", "kazoo", "click"} <= set(package.distributions)
    assert "pyspark" not in package.distributions
    assert package.distributions["numpy"] == metadata.version("numpy")
    assert package.size_bytes == package.archive.stat().st_size
    with tarfile.open(package.archive) as archive:
        assert {(member.uid, member.uname) for member in archive} == {(0, "")}


def test_what_spark_has_in_the_path_stays_behind_what_is_packed(package: Package) -> None:
    tree = package.directory / "fastlog"
    done = run(tree, "-c", "import os; print(os.environ['PYTHONPATH'])", PYTHONPATH="/spark/python")
    assert done.stdout.strip() == f"{tree}/lib:/spark/python"


@pytest.mark.parametrize(
    ("needs", "told"),
    [
        ({"abi": "cpython-399-x86_64-linux-gnu"}, "this package is for cpython-399-x86_64-linux-gnu: give the machine"),
        ({"glibc": [99, 1]}, "this package needs 99.1 or newer: make the package on a machine as old"),
    ],
    ids=["python", "glibc"],
)
def test_a_machine_that_does_not_fit_is_told_why(
    needs: dict[str, object], told: str, package: Package, tmp_path: Path
) -> None:
    tree = tmp_path
    for name in ("python", "check.py", "needs.json"):
        shutil.copy(package.directory / "fastlog" / name, tree)
    path = tree / "needs.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | needs))
    done = run(tree, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr


def test_a_machine_without_that_python_is_told_which(package: Package, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "readlink"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    done = run(package.directory / "fastlog", "-c", "print('ran')", PATH=str(tools), FASTLOG_PYTHON="")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no python{sys.version_info.major}.{sys.version_info.minor} in PATH ({tools})" in done.stderr


def test_another_package_takes_the_place_of_the_first_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaging, "_files", lambda distributions: iter([(Path(__file__), "fastlog/some.py")]))
    make_package(tmp_path)
    stale = tmp_path / "fastlog" / "lib" / "stale.py"
    stale.touch()
    make_package(tmp_path)
    assert not stale.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fastlog", "fastlog.tar.gz"]
    (tmp_path / "fastlog" / "needs.json").unlink()  # a directory of somebody else's
    with pytest.raises(ConfigError, match="no package of fastlog: give another directory"):
        make_package(tmp_path)
    assert (tmp_path / "fastlog" / "lib").is_dir()


def test_one_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaging, "_files", lambda distributions: iter([(Path(__file__), "fastlog/some.py")]))
    before = make_package(tmp_path).archive.read_bytes()
    monkeypatch.setattr(packaging, "_files", lambda distributions: iter([(tmp_path / "gone", "fastlog/some.py")]))
    with pytest.raises(FileNotFoundError):
        make_package(tmp_path)
    assert (tmp_path / "fastlog.tar.gz").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fastlog", "fastlog.tar.gz"]


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaging, "_EXTRA", ("no-such-package",))
    with pytest.raises(MissingDependencyError, match="no-such-package is not installed, and workers need it: pip inst"):
        make_package(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_what_is_installed_as_a_reference_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules are elsewhere, and the list of its files does not say which."""
    (tmp_path / "there-1.0.dist-info").mkdir()
    (tmp_path / "there-1.0.dist-info" / "METADATA").write_text("Name: there\nVersion: 1.0\n")
    (tmp_path / "there-1.0.dist-info" / "RECORD").write_text("there.pth,,\nthere-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(packaging, "_EXTRA", ("there",))
    with pytest.raises(ConfigError, match=r"there is installed as a reference .*\(there.pth\)"):
        make_package(tmp_path / "x")


def test_modules_that_are_not_compiled_for_this_python_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaging, "EXTENSION_SUFFIXES", [".cpython-399-x86_64-linux-gnu.so"])
    with pytest.raises(ConfigError, match="is not compiled for this Python"):
        make_package(tmp_path / "x")


def test_the_command_prints_how_each_job_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaging, "_files", lambda distributions: iter([(Path(__file__), "fastlog/some.py")]))
    given = ["package", str(tmp_path / "a b"), "--master", "spark://head:7077", "--brokers", "b1:9092"]
    done = CliRunner().invoke(spark_command, given)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        f"cd '{tmp_path / 'a b'}'",
        "export PYSPARK_PYTHON=./fastlog/python; unset PYSPARK_DRIVER_PYTHON",
    ]
    assert lines[2] == (
        "spark-submit --master spark://head:7077 --archives fastlog.tar.gz#fastlog"
        " fastlog/lib/fastlog/spark/jobs/load.py --brokers b1:9092 --topic TOPIC --table s3://BUCKET/TABLE"
    )
    assert [line.split()[5].rpartition("/")[2] for line in lines[2:]] == ["load.py", "counts.py", "join.py", "audit.py"]
    assert f"Python {sys.version_info.major}.{sys.version_info.minor} (cpython-" in done.stderr


def test_an_archive_is_never_beside_the_modules_of_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends it in between: the archive goes first and comes last."""
    monkeypatch.setattr(packaging, "_files", lambda distributions: iter([(Path(__file__), "fastlog/some.py")]))
    make_package(tmp_path)
    seen: list[list[str]] = []
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        seen.append(sorted(item.name for item in tmp_path.iterdir() if not item.name.startswith(".")))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    make_package(tmp_path)
    assert seen == [[], ["fastlog"]]
