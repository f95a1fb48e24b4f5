"""The main job on real lines: four connections write to four partitions, all of it comes back, the bytes are right."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.data import real_files

CODECS = {raw.NONE: "plain", raw.GZIP: "gzip", raw.SNAPPY: "snappy"}
BATCH = 50
PARTITIONS = 4


def publish(broker: Broker, topic: str, partition: int, sets: list[bytes]) -> None:
    """Sends sets over a connection of its own and closes it right after the last."""
    with broker.connect() as client:
        for messages in sets:
            client.produce(topic, partition, messages)


@pytest.mark.slow
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS, ids=CODECS.values())
def test_lines_over_four_connections(
    broker: Broker, data_lines: tuple[bytes, ...], topic: str, codec: int, magic: int
) -> None:
    """Each line comes back once and in order, and each partition's files hold exactly an independent encoding."""
    shares = [data_lines[partition::PARTITIONS] for partition in range(PARTITIONS)]
    sets = [[raw.message_set(batch, magic, codec) for batch in raw.batches(share, BATCH)] for share in shares]
    threads = [
        threading.Thread(target=publish, args=(broker, topic, partition, sets[partition]), daemon=True)
        for partition in range(PARTITIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with broker.connect() as client:
        for partition in range(PARTITIONS):
            expected = b"".join(sets[partition])
            client.wait_visible(topic, partition, len(expected))
            stored = client.read_all(topic, partition, max_bytes=300_000)
            assert tuple(raw.deep_payloads(stored)) == shares[partition]
            assert stored == expected
            assert broker.stored_bytes(topic, partition) == expected


@pytest.mark.slow
def test_mixed_encodings_in_one_partition(broker: Broker, data_lines: tuple[bytes, ...], topic: str) -> None:
    """Batches of every codec and magic in turn, over one connection, come back as the same lines."""
    kinds = [(codec, magic) for codec in CODECS for magic in (0, 1)]
    sets = []
    for number, batch in enumerate(raw.batches(data_lines, 37)):
        codec, magic = kinds[number % len(kinds)]
        sets.append(raw.message_set(batch, magic, codec))
    publish(broker, topic, 1, sets)
    with broker.connect() as client:
        client.wait_visible(topic, 1, sum(map(len, sets)))
        stored = client.read_all(topic, 1)
    assert tuple(raw.deep_payloads(stored)) == data_lines
    assert stored == b"".join(sets) == broker.stored_bytes(topic, 1)


@pytest.mark.slow
def test_every_file_is_a_topic(tmp_path: Path, data_lines: tuple[bytes, ...]) -> None:
    """All text files at hand, small segments, a clean stop between writing and reading: nothing changes."""
    inputs = {path.stem: path.read_bytes().splitlines() for path in real_files()} or {"generated": list(data_lines)}
    with Broker(tmp_path, settings={"log.file.size": 100_000}) as broker:
        for name, lines in inputs.items():
            publish(broker, name, 0, [raw.message_set(batch) for batch in raw.batches(lines, 100)])
        with broker.connect() as client:
            for name, lines in inputs.items():
                client.wait_visible(name, 0, sum(len(line) + 10 for line in lines))
        broker.restart()
        with broker.connect() as client:
            for name, lines in inputs.items():
                assert raw.deep_payloads(client.read_all(name, 0)) == lines
                assert broker.stored_bytes(name, 0) == raw.message_set(lines)
