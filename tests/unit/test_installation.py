"""How fastlog is installed: under its own name, which every hint uses, and with metadata that are true."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from fastlog import __version__, installation
from fastlog.installation import DISTRIBUTION, how_to_install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("fastlog", "pyspark_fastlog", "tests", "perf", "scripts", "docs", "examples", ".ci")
TEXTS = [
    path
    for path in [*ROOT.glob("*.md"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))]
    if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".md", ".sh", "")
    and path.is_file()
    and path != Path(__file__)
    and path.parent.name != "build"
]
FOREIGN = re.compile(r"fastlog\[\w|pip (install|download)\b[^\n&|;]*[ '\"]fastlog(?![-\w./])")


def test_no_hint_names_the_distribution_of_somebody_else() -> None:
    """``fastlog`` in the package index is a logging package that has the same import."""
    found = [f"{path.relative_to(ROOT)}: {match[0]}" for path in TEXTS for match in FOREIGN.finditer(path.read_text())]
    assert len(TEXTS) > 400
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_foreign"),
    [
        ("pip install 'fastlog[arrow]'", True),
        ("pip install -U fastlog", True),
        ("pip install fastlog-broker", False),
        ("pip install '.[arrow]' && fastlog info", False),
    ],
)
def test_what_counts_as_such_a_hint(text: str, is_foreign: bool) -> None:
    assert bool(FOREIGN.search(text)) is is_foreign


def test_hints_in_the_code_come_from_one_place() -> None:
    extras = "|".join(PROJECT["optional-dependencies"])
    hint = re.compile(rf"{DISTRIBUTION}\[|pip install[^\n]*\[({extras})\]")
    files = [path for path in (ROOT / "fastlog").rglob("*.py*") if path.suffix in (".py", ".pyx", ".pyi")]
    assert [path.name for path in files if hint.search(path.read_text())] == []


def test_a_hint_names_what_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installation by its name; a checkout that is only in the path by its directory."""
    monkeypatch.setattr(installation.metadata, "version", lambda name: {DISTRIBUTION: "1"}[name])
    assert how_to_install("spark") == f"pip install '{DISTRIBUTION}[spark]'"

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.metadata, "version", missing)
    assert how_to_install("spark") == f"pip install -e '{ROOT}[spark]'"
    monkeypatch.setattr(installation, "_ROOT", tmp_path)
    assert how_to_install("spark") == f"pip install '{DISTRIBUTION}[spark]'"


def test_the_metadata_are_true() -> None:
    """Each Python that is named is allowed, each extra that a hint may name exists, and the versions are one."""
    assert (PROJECT["name"], PROJECT["version"]) == (DISTRIBUTION, __version__)
    assert metadata.version(DISTRIBUTION) == __version__
    assert {"arrow", "spark", "zookeeper"} < PROJECT["optional-dependencies"].keys()
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["requires-python"] == f">={versions[0]}"
