"""The source and the sink by Spark Connect, with a server of its own: for those who have ``pyspark[connect]``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.programs import environment
from tests.harness.broker import Broker
from tests.harness.spark_jobs import produce

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = """
import json, sys
from fastlog.spark import place_id, session, without_duplicates

brokers, topic, checkpoint = sys.argv[1:]
spark = session("connect")
options = {"brokers": brokers}


def read(name, **more):
    return spark.read.format("fastlog").options(subscribe=name, **options, **more).load()


def values(frame):
    return sorted(int(row.value) for row in frame.select("value").collect())


found = {"session": type(spark).__module__, "read": values(read(topic))}
read(topic).select("value").write.format("fastlog").mode("append").options(topic=topic + "-written", **options).save()
found["written"] = values(read(topic + "-written"))
stream = spark.readStream.format("fastlog").options(subscribe=topic, startingOffsets="earliest", **options).load()
named = stream.withColumn("deduplicationId", place_id()).select("value", "deduplicationId")
sink = named.writeStream.format("fastlog").options(topic=topic + "-streamed", envelope="true", **options)
for number in range(2):  # with a checkpoint of its own each: every message comes twice
    query = sink.option("checkpointLocation", f"{checkpoint}{number}").trigger(availableNow=True).start()
    query.awaitTermination()
made = read(topic + "-streamed", envelope="true", includeEnvelope="true")
found["streamed"], found["once"] = made.count(), values(without_duplicates(made, within="1 hour"))
print(json.dumps(found))
"""


def test_source_and_sink_by_a_server(broker: Broker, topic: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    produce(broker, topic, 0, 0, 50)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"127.0.0.1:{broker.port}", topic, str(tmp_path / "checkpoint")],
        env={**environment(), "SPARK_REMOTE": "local[2]", "SPARK_LOCAL_IP": "127.0.0.1"}
        | {"PYTHONPATH": os.pathsep.join(filter(None, [environment()["PYTHONPATH"], os.environ.get("PYTHONPATH")]))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    numbers = list(range(50))
    assert found == {
        "session": "pyspark.sql.connect.session",
        **{"read": numbers, "written": numbers, "streamed": 100, "once": numbers},
    }
