"""The families of ``/metrics`` about requests of today's protocol: which were made, and which errors were answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from fastlog.kafka_codes import Code
from fastlog.log._arena import Arena
from fastlog.workers.exposition import Family, Sample, labels
from fastlog.workers.kafka.kinds import APIS, FETCH, FORWARDED, LIST_OFFSETS, PRODUCE

_BOTH_PROTOCOLS = {PRODUCE: "produce_requests", FETCH: "fetch_requests", LIST_OFFSETS: "offsets_requests"}
"""What Kafka 0.7 has as well is counted for both, under the names of these counters."""
_NAMES = {code.value: code.name for code in Code}
OTHER = "other"


def request_families(total: Mapping[str, int], arena: Arena, processes: Iterable[int]) -> Iterator[Family]:
    """``total``: the counters of all processes added up."""
    asked: Counter[int] = Counter()
    refused: Counter[tuple[str, str]] = Counter()
    for process in processes:
        asked.update(arena.requests(process))
        for what, count in arena.refusals(process).items():
            refused[(OTHER, OTHER) if what is None else (_api_name(what[0]), _error_name(what[1]))] += count
    for key, counter in _BOTH_PROTOCOLS.items():
        asked[key] = total[counter]
    yield Family(
        "kafka_network_requestmetrics_requests_total",
        "counter",
        "Requests by Kafka's names. Produce, Fetch and ListOffsets are of both protocols.",
        [Sample(labels(request=_api_name(key)), asked[key]) for key in sorted({**APIS, **FORWARDED})],
    )
    yield Family(
        "kafka_network_requestmetrics_errors_total",
        "counter",
        "Errors in answers by today's protocol: of requests, and of topics, partitions and groups in them.",
        [Sample(labels(request=api, error=error), count) for (api, error), count in sorted(refused.items())],
    )


def _api_name(key: int) -> str:
    api = APIS.get(key) or FORWARDED.get(key)
    return str(key) if api is None else api.name


def _error_name(code: int) -> str:
    return _NAMES.get(code, str(code))
