"""Runs from start to end: run, resume, export, audit."""
