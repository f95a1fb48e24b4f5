"""The table of ``kinds`` for compiled code."""

from fastlog.workers.kafka07 import kinds


cdef class Kinds:
    """The request kinds that are served, as ``kinds.OPERATIONS`` has them when it is made; never changes."""

    def __cinit__(self):
        for kind, operation in kinds.OPERATIONS.items():
            place = kind if kind < ACKED_PRODUCE else kind - ACKED_PRODUCE + KINDS_EACH
            if not 0 <= place < 2 * KINDS_EACH or (kind < ACKED_PRODUCE and place >= KINDS_EACH):
                raise ValueError(f"request kind {kind} has no place")
            self.operations[<int>place] = operation
