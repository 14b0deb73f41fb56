"""One round of the algorithm, for the simulator and Flower alike: plans, server updates, executors, client states."""
