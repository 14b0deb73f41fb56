"""Run folders: what a run writes, and what it was."""
