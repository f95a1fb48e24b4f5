"""The replay of the paper's measurements, the 0.7 site's curves, and fastlog's own goals."""
