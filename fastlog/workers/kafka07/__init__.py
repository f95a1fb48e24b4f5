"""Kafka 0.7's requests and fastlog's own, as a processor answers them."""
