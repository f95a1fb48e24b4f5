"""Connections of a processor: its loop, its sockets, the memory of each connection, and work off the loop."""
