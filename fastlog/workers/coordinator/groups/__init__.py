"""Consumer groups: the protocol of one group without any I/O, and what makes it last."""
