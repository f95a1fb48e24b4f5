"""The log as the protocols of one processor see it: they know requests, and ask here for all that concerns partitions."""

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_cell_at
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers._bridge cimport Bridge
from fastlog.workers._jobs cimport Jobs
from fastlog.workers._partitions cimport Partitions
from fastlog.workers._reads cimport Reads
from fastlog.workers._reports cimport Reports
from fastlog.workers._writes cimport Writes
from fastlog.workers.net._helper cimport Helper
from fastlog.workers.net._slot_waits cimport SlotWaits


cdef class Engine:
    """Who may use which partition, writes, reads, and work off the loop; for the loop's thread of one processor."""

    def __cinit__(self, Arena arena, SegmentFiles files, Helper helper, int process, services):
        self.arena = arena
        self.files = files
        self.process = process
        self.cell = fl_cell_at(arena.header, process)
        self.counters = self.cell.counters
        self.services = services
        self.authorizer = services.authorizer
        self.reports = Reports(arena, process, services)
        self.partitions = Partitions(arena, services)
        self.jobs = Jobs(helper, self.authorizer, services)
        self.slot_waits = SlotWaits(arena, process)
        self.writes = Writes(arena, files, process, self.reports, self.slot_waits)
        self.reads = Reads(arena, files, self.authorizer, self.partitions, helper, process, self.reports, self.slot_waits)
        self.bridge = Bridge(arena, files, self.partitions, helper, self.reads, services)

    def take_over(self):
        """At start: finish what a predecessor in this place left in the middle of an append, if it did."""
        self.writes.take_over()
