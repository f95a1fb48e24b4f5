"""The C programs that measure the ceiling of today's protocol do the work they claim: all of it, each byte checked."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.batch_codecs import CODEC_NAMES
from fastlog.record_batches import BatchHeader, Record, batches, build, check, records
from perf.ceiling.batches import TOPIC, Ceiling
from tests.harness import raw_batches, raw_records


@pytest.fixture
def ceiling(tmp_path: Path) -> Iterator[Ceiling]:
    with Ceiling(tmp_path) as running:
        yield running


def stored(path: Path) -> list[tuple[BatchHeader, list[Record]]]:
    """What a log holds, every batch checked, offsets from 0 on without a gap."""
    found, offset, data = [], 0, path.read_bytes()
    for header, view in batches(data):
        assert check(view).base_offset == offset
        assert header.leader_epoch == 0
        found.append((header, list(records(view))))
        offset = header.next_offset
    assert sum(header.size_bytes for header, _ in found) == len(data)
    return found


def produce_frame(batch: bytes, correlation: int = 7, acks: int = 1) -> bytes:
    """PRODUCE, version 7, of one batch for partition 0."""
    name = TOPIC.encode()
    body = struct.pack(">hhih", 0, 7, correlation, -1) + struct.pack(">hhi", -1, acks, 1000)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    return struct.pack(">i", len(body)) + body


def receive(client: socket.socket, count: int) -> bytes:
    """So many bytes, fewer when the broker closes."""
    data = b""
    while len(data) < count and (more := client.recv(count - len(data))):
        data += more
    return data


def test_the_log_it_writes_holds_every_record(ceiling: Ceiling) -> None:
    """Read by code of ours and by the slow reading of the tests; the rest of a batch counts, too."""
    figures = ceiling.run("produce", messages=1234, batch_bytes=4096, size=77)
    assert figures["messages"] == 1234
    # it is told to the microsecond, and takes some forty
    assert figures["seconds"] == pytest.approx(1234 / figures["rate"], abs=1e-6)
    assert figures["seconds"] <= figures["visible_seconds"]
    assert figures["latency_ms"]["p50"] <= figures["latency_ms"]["p99"] <= figures["latency_ms"]["max"]
    found = [record for _, inside in stored(ceiling.log()) for record in inside]
    assert len(found) == 1234
    assert {len(record.value or b"") for record in found} == {77}
    assert {(record.key, record.headers) for record in found} == {(None, ())}
    assert len({record.value for record in found}) > 1000, "not one record again and again"
    header, view = next(batches(ceiling.log().read_bytes()))
    plain, _, status = raw_records.decode(bytes(view[61:]), header.record_count, header.base_timestamp)
    assert (status, len(plain)) == (raw_records.OK, header.record_count)
    assert raw_batches.crc32c(bytes(view[21:])) == header.crc


@pytest.mark.parametrize("acks", [-1, 0, 1])
@pytest.mark.parametrize(("partitions", "connections"), [(1, 1), (1, 3), (5, 2), (3, 7)])
@pytest.mark.parametrize("batch_records", [1, 40, 5000])
def test_every_way_to_send_arrives_whole(
    tmp_path: Path, acks: int, partitions: int, connections: int, batch_records: int
) -> None:
    """Single records, which are moved together, and frames larger than the receive buffer."""
    with Ceiling(tmp_path, partitions) as ceiling:
        options = {"batch_records": batch_records, "connections": connections, "acks": acks, "window": 5}
        assert ceiling.run("produce", messages=7_001, **options)["messages"] == 7_001
        for readers in (1, 3):
            found = ceiling.run("fetch", connections=readers, min_messages=7_001 if readers <= partitions else 0)
            assert found["messages"] == 7_001 * (1 if readers <= partitions else readers)
        assert (
            sum(header.record_count for number in range(partitions) for header, _ in stored(ceiling.log(number)))
            == 7001
        )


@pytest.mark.parametrize("max_bytes", [1, 300, 20_000, 1 << 20])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_the_reader_counts_every_record(ceiling: Ceiling, max_bytes: int, prefetch: int) -> None:
    """Also where nearly every answer ends inside a batch, or the first batch is larger than what was asked for."""
    ceiling.run("produce", messages=2000, batch_bytes=9000)
    figures = ceiling.run("fetch", max_bytes=max_bytes, prefetch=prefetch)
    assert figures["messages"] == 2000
    assert figures["bytes"] == ceiling.log().stat().st_size <= figures["received_bytes"]


def test_batches_of_a_file(ceiling: Ceiling, tmp_path: Path) -> None:
    """They are stored as they are, but for offset and epoch, in whole rounds of the file."""
    made = [build([Record(b"k", b"v" * 900, 5)] * 30, codec=codec) for codec in CODEC_NAMES]
    path = tmp_path / "batches"
    path.write_bytes(b"".join(made))
    figures = ceiling.run("produce", messages=301, batch_file=path)
    assert figures["messages"] == 450
    found = list(batches(ceiling.log().read_bytes()))
    assert [bytes(view[16:]) for _, view in found] == [data[16:] for data in made] * 3
    assert ceiling.run("fetch")["messages"] == 450


@pytest.mark.parametrize("damage", ["cut", "flipped", "none"])
def test_a_file_that_holds_no_batches(ceiling: Ceiling, tmp_path: Path, damage: str) -> None:
    data = bytearray(build([Record(b"k", b"v")]))
    data[-1] ^= damage == "flipped"
    path = tmp_path / "batches"
    path.write_bytes({"cut": data[:-1], "flipped": data, "none": b""}[damage])
    with pytest.raises(
        RuntimeError, match={"cut": "no whole batch", "flipped": "wrong checksum", "none": "no batch"}[damage]
    ):
        ceiling.run("produce", batch_file=path)


@pytest.mark.parametrize("place", [7, 16, 17, 30, 60, 500])
def test_the_reader_notices_damage(ceiling: Ceiling, place: int) -> None:
    """In an offset, in the magic, the checksum, a field, the count, a record."""
    ceiling.run("produce", messages=500, batch_bytes=2000)
    with ceiling.log().open("r+b") as file:
        file.seek(2000 + place)
        byte = file.read(1)[0]
        file.seek(2000 + place)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(RuntimeError, match="a batch "):
        ceiling.run("fetch")


def test_the_reader_says_when_something_is_missing(ceiling: Ceiling) -> None:
    ceiling.run("produce", messages=500)
    with pytest.raises(RuntimeError, match="500 messages, at least 501 were expected"):
        ceiling.run("fetch", min_messages=501)


def damaged(**fields: int) -> bytes:
    """A batch with wrong fields; the checksum fits unless it is among them."""
    data = bytearray(build([Record(b"k", b"v"), Record(b"l", b"w")]))
    for name, value in fields.items():
        position, width = raw_batches.FIELDS[name]
        data[position : position + width] = value.to_bytes(width, "big")
    return bytes(data) if "crc" in fields else raw_batches.reseal(bytes(data))


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (damaged(crc=5), "a batch with a wrong checksum"),
        (damaged(magic=1), "a batch of another magic"),
        (damaged(record_count=3), "a batch with a wrong number of records"),
        (damaged(last_offset_delta=5), "a batch with a wrong number of records"),
        (damaged(batch_length=20), "a batch of another size"),
        (damaged(batch_length=2**31 - 1), "a batch of another size"),
        (build([Record(b"k", b"v")]) * 2, "a batch of another size"),
        (build([Record(b"k", b"v")])[:60], "a batch of another size"),
        (b"", "a batch of another size"),
    ],
)
def test_what_is_no_batch_is_refused(ceiling: Ceiling, batch: bytes, reason: str) -> None:
    """The connection is closed without an answer, the one before is stored, and standard error says why."""
    good = build([Record(b"k", b"v")])
    with socket.create_connection(("127.0.0.1", ceiling.port), 10) as client:
        client.sendall(produce_frame(good) + produce_frame(batch))
        assert receive(client, 1000)[4:8] == struct.pack(">i", 7)
    assert bytes(next(batches(ceiling.log().read_bytes()))[1][16:]) == good[16:]
    assert len(stored(ceiling.log())) == 1
    assert reason in ceiling.stop()


def test_requests_split_anywhere(ceiling: Ceiling) -> None:
    """However the bytes arrive, the same log, and each answer once."""
    small, large = build([Record(b"k", b"v")]), build([Record(None, b"x" * 6000)])
    frames = produce_frame(small) + produce_frame(large) + produce_frame(small, acks=0)
    with socket.create_connection(("127.0.0.1", ceiling.port), 10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for turn in range(60):
            client.sendall(frames[: turn * 4])
            client.sendall(frames[turn * 4 :])
            for number in range(2):
                (size,) = struct.unpack(">i", receive(client, 4))
                answer = receive(client, size)
                name = struct.unpack(">h", answer[8:10])[0]
                index, error, base = struct.unpack_from(">ihq", answer, 10 + name + 4)
                assert (index, error, base) == (0, 0, 3 * turn + number)
    assert [header.record_count for header, _ in stored(ceiling.log())] == [1] * 180


def test_it_says_why_it_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No such file or directory"), Ceiling(tmp_path / "gone"):
        pass
