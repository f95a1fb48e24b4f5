"""Measuring brokers and clients: what the perf commands run, the file their figures go to, and how two are compared."""
