"""An access log in a topic becomes a table, and the table answers: top pages, errors by hour, bytes by client.

``fastlog produce --topic logs access.log``, then ``python examples/access_log.py localhost:9092 logs /tmp/a``, again
when there is more: each line is in the table once. The marks ``# %%`` make cells of it in a notebook.
"""

# %% Load what the topic has: each line in columns, under the day of its own time
import sys

from fastlog.spark import session
from fastlog.spark.jobs.load import load
from fastlog.spark.lake import read_table

brokers, topic, table = sys.argv[1:] if len(sys.argv) == 4 else ("localhost:9092", "logs", "/tmp/access")
line = r"""regexp_extract(decode(value, 'ISO-8859-1'), r'^(\S+) \S+ \S+ \[(.+?)\] "\S+ (\S+)[^"]*" (\d+) (\d*)', {})"""
columns = {name: line.format(group) for name, group in {"client": 1, "page": 3, "status": 4, "bytes": 5}.items()}
time = f"try_to_timestamp({line.format(2)}, 'dd/MMM/yyyy:HH:mm:ss Z')"
print(load(topic, table, brokers=brokers, time=time, columns=columns))

# %% Ask the table
read_table(session(), table).createOrReplaceTempView("access")
ask = session().sql
ask("SELECT page, count(*) AS hits FROM access GROUP BY page ORDER BY hits DESC, page LIMIT 10").show(truncate=60)
ask("SELECT hour(timestamp) AS hour, count(*) AS errors FROM access WHERE status >= '400' GROUP BY 1 ORDER BY 1").show(
    24
)
ask("SELECT client, sum(try_cast(bytes AS bigint)) AS bytes FROM access GROUP BY 1 ORDER BY 2 DESC LIMIT 10").show()
