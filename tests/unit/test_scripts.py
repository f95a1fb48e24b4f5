"""The scripts of a fresh machine say in one line what it lacks and how to get it, before they do anything."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.compat import clients

LIBRARY = Path(__file__).parents[2] / "scripts" / "lib.sh"


def run_with_library(commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run shell commands with what the scripts share, with stdin closed as CI has it."""
    return subprocess.run(
        ["bash", "-c", f'exec <&-; set -euo pipefail; source "$0"; {commands}', str(LIBRARY)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def check_machine(before: str = ":", extras: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the check of the scripts, after the shell command ``before``."""
    return run_with_library(f'{before}; check_machine "{extras}"; echo "python=$PYTHON"', **environment)


def assert_refused(run: subprocess.CompletedProcess[str], *words: str) -> None:
    """The check left with status 2 and a single line that holds all of ``words``."""
    assert (run.returncode, run.stdout) == (2, "")
    assert len(run.stderr.splitlines()) == 1
    for word in words:
        assert word in run.stderr


@pytest.fixture
def apt(tmp_path: Path) -> str:
    """A PATH on which apt-get exists, whatever the machine is."""
    command = tmp_path / "apt-get"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def fake_python(directory: Path, *, version_ok: bool, lacking: str) -> str:
    """An interpreter that is new enough or not, and whose answer to the question what it lacks is ``lacking``."""
    command = directory / "python3.12"
    command.write_text(
        '#!/bin/sh\ncase "$2" in\n'
        f"*version_info*) exit {0 if version_ok else 1} ;;\n"
        f"*ensurepip*) printf '{lacking}' ;;\n"
        "*) echo cc ;;\nesac\n"
    )
    command.chmod(0o755)
    return command.name


def test_this_machine_has_everything() -> None:
    """Where the suite runs the check passes, and names the interpreter to go on with."""
    run = check_machine()
    assert (run.returncode, run.stderr) == (0, "")
    assert re.fullmatch(r"python=\S+\n", run.stdout)


def test_no_compiler(apt: str) -> None:
    """A compiler that is not there is answered with the packages of one."""
    assert_refused(check_machine(CC="no-such-compiler", PATH=apt), "C compiler", "apt-get install -y gcc libc6-dev")


def test_a_compiler_that_cannot_link(apt: str) -> None:
    """A compiler that starts but makes no program counts as missing."""
    assert_refused(check_machine(CC="false", PATH=apt), "C compiler", "apt-get install -y gcc libc6-dev")


def test_no_python(apt: str, tmp_path: Path) -> None:
    """An interpreter that is too old is answered with the packages of a newer one."""
    python = fake_python(tmp_path, version_ok=False, lacking="")
    assert_refused(check_machine(PYTHON=python, PATH=apt), "Python 3.11", "apt-get install -y python3 ")


@pytest.mark.parametrize(
    ("lacking", "packages"),
    [
        ("venv", "python3.12-venv"),
        ("headers", "python3.12-dev"),
        ("venv\\nheaders", "python3.12-venv python3.12-dev"),
    ],
)
def test_python_without_its_parts(apt: str, tmp_path: Path, lacking: str, packages: str) -> None:
    """The venv module and the headers are packages of their own, of the interpreter's version."""
    python = fake_python(tmp_path, version_ok=True, lacking=lacking)
    assert_refused(check_machine(PYTHON=python, PATH=apt), f"apt-get install -y {packages}\n")


def test_all_that_is_missing_is_one_command(apt: str, tmp_path: Path) -> None:
    """Several missing things are one line to copy."""
    python = fake_python(tmp_path, version_ok=True, lacking="headers")
    run = check_machine(PYTHON=python, CC="false", PATH=apt)
    assert_refused(run, "apt-get install -y python3.12-dev gcc libc6-dev\n")


OTHER_PROCESSOR = "uname() { echo riscv64; }"


def test_a_java_that_neither_is_there_nor_comes(apt: str) -> None:
    """The package that carries one has it for two processors; elsewhere that of the system is asked for, at once."""
    no_java = f"{OTHER_PROCESSOR}; java() {{ return 127; }}"
    run = check_machine(no_java, "test,spark,zookeeper", PATH=apt, JAVA_HOME="")
    assert_refused(run, "missing: Java 17 or newer", "apt-get install -y default-jre-headless\n")
    assert check_machine(no_java, "test", PATH=apt, JAVA_HOME="").returncode == 0
    old = f"{OTHER_PROCESSOR}; java() {{ echo 'openjdk version \"11.0.2\"'; }}"
    assert check_machine(old, "spark", PATH=apt, JAVA_HOME="").returncode == 2
    new = f"{OTHER_PROCESSOR}; java() {{ echo 'openjdk version \"21\"'; }}"
    assert check_machine(new, "spark", PATH=apt, JAVA_HOME="").returncode == 0


def test_no_space() -> None:
    """Too little free space is said with what is needed and what there is."""
    assert_refused(check_machine(before="NEEDED_MIB=999999999"), "needs 999999999 MiB")


LONG = """long() { printf '[ 1/33] Compiled a\\nwarning: b\\n  Downloading c (4 MB)\\n'; return "$1"; }"""


def test_a_long_program_shows_how_far_it_is(tmp_path: Path) -> None:
    """Lines that say so, and the rest is kept in a file; where nobody looks, none before some seconds have passed."""
    log = tmp_path / "log"
    run = run_with_library(f"{LONG}; PROGRESS_SECONDS=0; run_long {log} long 0")
    assert (run.returncode, run.stderr) == (0, "fastlog: [ 1/33] Compiled a\nfastlog: Downloading c (4 MB)\n")
    assert log.read_text() == "[ 1/33] Compiled a\nwarning: b\n  Downloading c (4 MB)\n"
    assert run_with_library(f"{LONG}; run_long {log} long 0").stderr == ""


def test_a_long_program_that_fails_says_all(tmp_path: Path) -> None:
    run = run_with_library(f"{LONG}; run_long {tmp_path / 'log'} long 3")
    assert run.returncode != 0
    assert "warning: b" in run.stderr


@pytest.mark.parametrize(
    ("results", "code"),
    [(["ok", "none"], 0), (["ok", "NOT RUN"], 3), (["NOT RUN", "FAILED"], 1), (["ok", "strange"], 1), ([], 1)],
)
def test_what_was_not_run_is_named(results: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A client that could not be had makes the table incomplete, not good."""
    assert clients.told([clients.Row("c", "all", result, "why") for result in results]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("all")[1].split("why")[0].strip() for line in lines] == results


def test_a_client_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert clients.main(["sarama", "ruby"]) == 2
    assert (
        capsys.readouterr().err
        == "no client is called ruby; there are sarama, franz-go, kafkajs, platformatic, librdkafka\n"
    )


def test_a_program_that_is_missing_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    names = ("sarama", "franz-go", "kafkajs", "platformatic", "librdkafka")
    assert clients.build(tmp_path / "made", names) == {
        "sarama": "go is missing: install it",
        "franz-go": "go is missing: install it",
        "kafkajs": "npm is missing: install it",
        "platformatic": "npm is missing: install it",
        "librdkafka": "cargo is missing: install cargo",
    }
