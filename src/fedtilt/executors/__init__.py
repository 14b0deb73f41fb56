"""Executors train the local jobs of many clients: in this process, in forked workers, or on a Ray cluster."""
