"""Break what runs depend on, and count what goes wrong: `python -m chaos`, or one part with `--only kills`."""
