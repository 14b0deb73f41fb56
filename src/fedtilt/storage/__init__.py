"""Run folders, and the record of settings and environment in them."""
