"""fastlog: the log broker of the Kafka paper and of Kafka 0.7, for people who work in Python and Spark."""

__version__ = "0.1.0"
