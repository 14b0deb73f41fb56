"""How good and how fair models are: counts, metrics, results."""
