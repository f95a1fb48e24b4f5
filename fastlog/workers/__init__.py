"""The processes that the supervisor starts: processors, flusher, keeper."""
