"""The numbers by which a broker stores each batch of an idempotent producer once, and in order.

A broker takes a batch whose first number follows the last one that it has of the producer in the partition, answers one of the
last five again as it did, and refuses every other. So a batch that is given up may leave a gap, at which everything behind it
is refused and surely not stored: the numbers begin anew then, with the next epoch, which refuses what may still be on its way
with the former one.

Source: Apache Kafka 4.2 (ProducerAppendInfo; KIP-360 for epochs that a producer raises itself).
"""

cimport cython
from libc.stdint cimport int32_t

cdef enum:
    LAST_EPOCH = 32767


@cython.final
cdef class Lane:
    def __init__(self, int limit, int32_t first=0):
        if first < 0:
            raise ValueError(f"a record's number is not negative: {first}")
        self.next = first
        self.limit, self.producer, self.epoch, self.generation = limit, -1, -1, 1

    cdef int renew(self) except -1:
        """Number from 0 again what is written from now on; nothing with the old numbers is stored any more."""
        self.generation += 1
        self.next = 0
        self.is_known = False
        if self.epoch < LAST_EPOCH:
            self.epoch += 1
        else:
            self.producer, self.is_exhausted = -1, True
        return 0

    cdef int room(self) noexcept:
        """How many more batches may be written. A broker that knows nothing of the producer takes any number as the first:
        until it has stored one, the second would be stored where the first was refused."""
        return (self.limit if self.is_known else 1) - self.in_flight
