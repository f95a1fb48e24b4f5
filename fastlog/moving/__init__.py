"""Moving house: a log directory made of a stopped Apache Kafka's, and the way back. ``docs/moving.md`` is the guide."""
