"""fastlog beside Apache Kafka under the clients that people have: ``python -m perf.beside_kafka``."""
