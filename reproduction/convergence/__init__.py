"""Convergence compared with its bounds."""
