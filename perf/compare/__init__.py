"""``python -m perf compare``: two result files, series by series."""
