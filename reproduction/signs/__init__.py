"""The signs of the tilts, one by one."""
