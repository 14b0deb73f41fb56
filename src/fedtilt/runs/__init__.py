"""A run from start to end: run, resume, tune, export."""
