"""Convergence against its bounds."""
