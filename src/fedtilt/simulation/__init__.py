"""Simulate a federation on one machine or a cluster."""

from fedtilt.simulation.loop import simulate, simulate_prepared
from fedtilt.simulation.round import Round

__all__ = ["Round", "simulate", "simulate_prepared"]
