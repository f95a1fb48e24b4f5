"""Today's Kafka protocol, as a processor answers it: what many clients ask often, on raw bytes."""
