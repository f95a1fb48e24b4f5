"""Measurements of fastlog: each figure is a command, its results are kept with machine, settings and spread."""
