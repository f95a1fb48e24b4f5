"""fastlog: the log broker of the Kafka paper and of Kafka 0.7, for people who work in Python and Spark.

The public names are imported when they are first used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.platform != "linux":
    raise ImportError(f"fastlog runs on Linux only, clients included; this is {sys.platform}: use a container or a VM")

if TYPE_CHECKING:
    from fastlog import aio, errors, metrics, testing, tracing
    from fastlog.consumer.connector import Consumer
    from fastlog.consumer.database import DatabaseOffsets
    from fastlog.consumer.offsets import FileOffsets
    from fastlog.consumer.partitions import TopicPartition
    from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
    from fastlog.consumer.stream import NoMessage
    from fastlog.errors import ConsumerTimeout, CoordinationError, FastlogError, OwnershipLostError
    from fastlog.loghandler import JsonFormatter, LogHandler, StructlogProcessor
    from fastlog.producer.hooks import ProducerData
    from fastlog.producer.producer import Producer
    from fastlog.producer.sync import SyncProducer
    from fastlog.scanning import scan

__version__ = "0.1.0"

# Public name → the module it is in, or the module that it is.
_MODULES = {
    "Consumer": "fastlog.consumer.connector",
    "ConsumerTimeout": "fastlog.errors",
    "CoordinationError": "fastlog.errors",
    "DatabaseOffsets": "fastlog.consumer.database",
    "EARLIEST": "fastlog.consumer.simple",
    "FastlogError": "fastlog.errors",
    "FileOffsets": "fastlog.consumer.offsets",
    "JsonFormatter": "fastlog.loghandler",
    "LATEST": "fastlog.consumer.simple",
    "LogHandler": "fastlog.loghandler",
    "NoMessage": "fastlog.consumer.stream",
    "OwnershipLostError": "fastlog.errors",
    "Producer": "fastlog.producer.producer",
    "ProducerData": "fastlog.producer.hooks",
    "SimpleConsumer": "fastlog.consumer.simple",
    "StructlogProcessor": "fastlog.loghandler",
    "SyncProducer": "fastlog.producer.sync",
    "TopicPartition": "fastlog.consumer.partitions",
    "aio": "fastlog.aio",
    "errors": "fastlog.errors",
    "metrics": "fastlog.metrics",
    "scan": "fastlog.scanning",
    "testing": "fastlog.testing",
    "tracing": "fastlog.tracing",
}

__all__ = [
    "EARLIEST",
    "LATEST",
    "Consumer",
    "ConsumerTimeout",
    "CoordinationError",
    "DatabaseOffsets",
    "FastlogError",
    "FileOffsets",
    "JsonFormatter",
    "LogHandler",
    "NoMessage",
    "OwnershipLostError",
    "Producer",
    "ProducerData",
    "SimpleConsumer",
    "StructlogProcessor",
    "SyncProducer",
    "TopicPartition",
    "__version__",
    "aio",
    "errors",
    "metrics",
    "scan",
    "testing",
    "tracing",
]


def __getattr__(name: str) -> Any:
    """Import a public name. Raises ``ImportError`` that says what to run when the extensions are not built."""
    path = _MODULES.get(name)
    if path is None:
        raise AttributeError(f"module 'fastlog' has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("fastlog.") and missing.rpartition(".")[2].startswith("_"):
            raise ImportError(
                f"the extension {missing} is not built: run pip install . or, in a checkout,"
                " python setup.py build_ext --inplace"
            ) from error
        raise
    value = module if path.rpartition(".")[2] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, whether or not they have been imported."""
    return sorted({*globals(), *_MODULES})
