"""Mirroring topics of record batches as a client of today's protocol, each record once.

| module | what it owns |
|---|---|
| `position` | how far a partition is, in both logs, as it is kept beside a group's offset |
| `batches` | what was fetched, made into batches that can be appended elsewhere |
| `gaps` | records of batches that were compacted |
| `cluster` | the brokers of one side, by who leads what |
| `place` | a member's place in the group that keeps the positions |
| `lane`, `finding` | one partition, and where it goes on after whatever has happened |
| `worker` | the thread that forwards some of the partitions |
| `mirror` | one source cluster from start to stop; several of them |

**How each record comes once.** A batch is appended with a producer's numbers, as an idempotent producer's, and its
number is that of its first record among all that this mirror has ever appended to the partition. So the broker takes a
batch only where all before it are there, and none twice: what was on its way when a mirror was killed either comes
before its successor's batch, which then is refused, or behind it, and is refused itself. The successor has the same
producer's id and counts on, from what it finds in the target: the last batch there with this id says how many records
have come. What it has to know besides is which record of the source is next then: that stands beside the offset of a
group in the target, written down before the first batch that needs it.

The positions are in the target, and not in the source, since nothing else has to be there; and not in a file of the
mirror's, so that any machine can go on. They need no transactions, which fastlog's broker does not have.
"""

from fastlog.mirror.records.mirror import RecordMirror

__all__ = ["RecordMirror"]
