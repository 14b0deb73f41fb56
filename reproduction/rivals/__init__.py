"""All methods under outliers and attacks, with one tuning budget, ranked."""
