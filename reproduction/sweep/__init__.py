"""Accuracy and fairness against one tilt."""
