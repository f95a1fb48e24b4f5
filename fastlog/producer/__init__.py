"""Producers: ``Producer`` for everyday use, ``SyncProducer`` for 0.7's plain one, and what can be hung into them."""

from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import (
    CallbackHandler,
    DefaultEncoder,
    DefaultEventHandler,
    Delivery,
    Encoder,
    EventHandler,
    ProducerData,
    QueueItem,
    Sender,
    StringEncoder,
)
from fastlog.producer.partitioners import Crc32Partitioner, JavaHashPartitioner, Murmur2Partitioner, Partitioner
from fastlog.producer.producer import Producer, ProducerStats
from fastlog.producer.sync import SyncProducer

__all__ = [
    "CallbackHandler",
    "Crc32Partitioner",
    "DefaultEncoder",
    "DefaultEventHandler",
    "Delivery",
    "Encoder",
    "EventHandler",
    "JavaHashPartitioner",
    "Murmur2Partitioner",
    "Partitioner",
    "Producer",
    "ProducerConfig",
    "ProducerData",
    "ProducerStats",
    "QueueItem",
    "Sender",
    "StringEncoder",
    "SyncProducer",
]
