"""Jobs started by Spark's own starter, from their files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastlog.spark import jobs
from tests.fault.programs import environment
from tests.harness.broker import Broker
from tests.harness.lake import rows_of
from tests.harness.spark_driver import as_arguments
from tests.harness.spark_jobs import produce
from tests.harness.spark_start import LOCAL_SETTINGS

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = Path(jobs.__file__).parent


def test_a_load_by_spark_submit(broker: Broker, topic: str, tmp_path: Path) -> None:
    """The master is that of the starter; what the job prints and its exit code come through."""
    produce(broker, topic, 0, 0, 100)
    submit = Path(sys.executable).with_name("spark-submit")
    assert submit.exists(), "it comes with pyspark, beside the interpreter"
    command = [str(submit), "--master", "local[1]"]
    command += [*as_arguments(LOCAL_SETTINGS), str(JOBS / "load.py"), "--brokers", f"127.0.0.1:{broker.port}"]
    command += ["--topic", topic, "--table", str(tmp_path / "table"), "--attempts", "20"]
    done = subprocess.run(
        command,
        env={**environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["job"], summary["rows"], summary["stopped"]) == ("load", 100, 0)
    assert sorted(int(row["value"]) for row in rows_of(tmp_path / "table")) == list(range(100))


@pytest.mark.parametrize("name", ["audit", "counts", "join", "load"])
def test_the_file_of_each_job_is_a_program(name: str, tmp_path: Path) -> None:
    """As the starter runs it: by its path, so that its own directory comes first where modules are looked for."""
    done = subprocess.run(
        [sys.executable, str(JOBS / f"{name}.py"), "--help"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--brokers" in done.stdout
