"""One round of the algorithm, whoever runs it: settings, plans, executors, what clients keep."""
