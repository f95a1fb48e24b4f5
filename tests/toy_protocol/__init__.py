"""A protocol that only tests have: it shows that one is added without a change to connections or to Kafka 0.7.

| request | bytes | answer |
|---|---|---|
| write | ``w``, name size (1), name, set size (4), message set | the offset behind it (8), once it is appended |
| read | ``r``, name size (1), name, offset (8) | size (4) and messages from there on, once there are any |

Numbers are big-endian. All of it is about partition 0, which is made where it is missing; what it cannot do ends the
connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness import extension
from tests.harness.checkout import ROOT

if TYPE_CHECKING:
    from fastlog.workers._engine import Engine
    from fastlog.workers._forward import Forward
    from fastlog.workers.net._protocol import Protocol

_SOURCE = Path(__file__).with_name("_toy_protocol.pyx")
_FORWARD = Path(__file__).with_name("_toy_forward.pyx")


def make(engine: Engine) -> Protocol:
    """The protocol for one processor."""
    module: Any = extension.build(_SOURCE, sorted((ROOT / "fastlog").glob("**/*.pxd")))
    made: Protocol = module.Toy(engine)
    return made


def make_forwarding(forward: Forward) -> Protocol:
    """A second one, all of whose requests the coordinator answers: a size (4) and so many bytes."""
    module: Any = extension.build(_FORWARD, sorted((ROOT / "fastlog").glob("**/*.pxd")))
    made: Protocol = module.ToyForward(forward)
    return made
