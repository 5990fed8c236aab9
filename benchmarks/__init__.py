"""Measurements of speed, error and memory: `python benchmarks/run.py --help`."""
