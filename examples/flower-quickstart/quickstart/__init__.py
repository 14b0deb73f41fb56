"""A plain Flower app: handwritten digits, a small network, one data partition per client."""
