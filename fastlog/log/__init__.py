"""Storage: segments, the shared segment index, append, flush, recovery, retention."""
