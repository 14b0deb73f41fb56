"""How accurate and how fair models are: counts, metrics, results."""
