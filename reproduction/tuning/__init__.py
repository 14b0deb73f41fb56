"""Settings chosen with the same budget for every method."""
