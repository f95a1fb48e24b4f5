"""What this machine does without fastlog: its disk read back, small writes, flushes under load, and sleeps."""
