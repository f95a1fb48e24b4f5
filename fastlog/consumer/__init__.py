"""Consumers: of single partitions (``simple``), and of groups (``connector``)."""
