"""The same requests to an Apache Kafka and to fastlog, and every field of their answers that differs."""
