"""Attacks: clients that work against the others, and screening, which bounds what one of them can do."""
