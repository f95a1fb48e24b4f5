"""Bugs that a run has to find: in a broker's process, in the tests' own, and one that only the language forbids."""

from __future__ import annotations

from typing import NamedTuple


class Planted(NamedTuple):
    """``before`` stands once in the source and is replaced; a report of the tests' run then holds ``report``."""

    source: str
    before: str
    after: str
    test: str
    report: str


PLANTED = (
    Planted(
        "fastlog/workers/net/_sockets.pyx",
        """            after = c.next
            conn_free(c, self.files)
            c = after

""",
        """            conn_free(c, self.files)
            c = c.next

""",
        "tests/integration/test_wire.py::test_recorded_frames",
        "heap-use-after-free",
    ),
    Planted(
        "fastlog/_segment.pyx",
        """        left = n - position - LENGTH_BYTES
        if left < 0:
            status = SCAN_TAIL
            break
        entry = p + position
        size = <int32_t>be32(entry)                 # a claim, until the next two tests
""",
        """        left = n - position - LENGTH_BYTES
        if left < -3:
            status = SCAN_TAIL
            break
        entry = p + position
        size = <int32_t>be32(entry)                 # a claim, until the next two tests
""",
        "tests/unit/test_segment.py",
        "heap-buffer-overflow",
    ),
    Planted(
        "fastlog/_segment.pyx",
        "    return (<uint32_t>p[0] << 24) |",
        "    return (p[0] << 24) |",
        "tests/unit/test_segment.py",
        "runtime error: left shift",
    ),
)
