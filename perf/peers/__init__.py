"""Other brokers, measured in the same run with the same load, where they are installed."""

from perf.peers.activemq import ActiveMQ
from perf.peers.base import Figures, Peer, PeerFailed
from perf.peers.kafka import Kafka
from perf.peers.rabbitmq import RabbitClassic, RabbitStream

__all__ = ["Figures", "Peer", "PeerFailed", "all_peers"]


def all_peers() -> list[Peer]:
    """One instance of each peer, none of them started."""
    return [RabbitClassic(), RabbitStream(), ActiveMQ(), Kafka()]
