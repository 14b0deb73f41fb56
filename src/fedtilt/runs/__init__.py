"""Runs from start to end: run, resume, tune, export."""
