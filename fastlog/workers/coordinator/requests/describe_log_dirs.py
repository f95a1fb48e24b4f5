"""DescribeLogDirs (35), versions 1 to 4: the log directories, and the sizes of partitions in them.

Version 3 added an error of the whole answer, 4 how large a directory's file system is and how much of it is free.

Source: Apache Kafka 4.2 (ReplicaManager.describeLogDirs).
"""

from __future__ import annotations

import functools
import os
from typing import Any

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler, error
from fastlog.workers.coordinator.loop import Step

UNKNOWN_BYTES = -1


def handle(request: Request, context: Context) -> Handler:
    """Sizes come from shared memory; a thread asks the file systems, one of which may hang."""
    arena = context.broker.arena
    if not context.may_on_cluster(Operation.DESCRIBE):
        return {"throttle_time": 0, **error(Code.CLUSTER_AUTHORIZATION_FAILED), "results": []}
    wanted = None
    if request.fields.topics is not None:
        wanted = {topic.topic: set(topic.partitions) for topic in request.fields.topics}
    found: list[dict[str, dict[int, dict[str, Any]]]] = [{} for _ in arena.log_dirs]
    topics = context.broker.topics
    for name in (*topics.names(), *topics.names_of_kafka07()):
        if wanted is not None and name not in wanted:
            continue
        for view in topics.partitions(name) or topics.of_kafka07(name):
            if wanted is not None and view.partition not in wanted[name]:
                continue
            first = arena.segments(view.index)[0]
            found[view.directory].setdefault(name, {})[view.partition] = {
                "partition_index": view.partition,
                "partition_size": max(0, view.log_end - first.start),
                "offset_lag": 0,
                "is_future_key": False,
            }
    results = []
    for directory, held in zip(arena.log_dirs, found, strict=True):
        code, total, usable = yield Step(functools.partial(_room, directory))
        rows = [{"name": name, "partitions": list(each.values())} for name, each in sorted(held.items())]
        results.append(
            {
                "error_code": int(code),
                "log_dir": directory,
                "topics": rows,
                "total_bytes": total,
                "usable_bytes": usable,
            }
        )
    return {"throttle_time": 0, "error_code": int(Code.NONE), "results": results}


def _room(directory: str) -> tuple[Code, int, int]:
    try:
        status = os.statvfs(directory)
    except OSError:
        return Code.KAFKA_STORAGE_ERROR, UNKNOWN_BYTES, UNKNOWN_BYTES
    return Code.NONE, status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
