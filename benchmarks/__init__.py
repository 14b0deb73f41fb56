"""Benchmarks of the simulator; run one with `python -m benchmarks.rounds`."""
