"""Work on a Ray cluster: connecting to it, the workers that train clients, and independent tasks.

Ray is the extra `cluster`, imported only where a cluster is asked for.
"""
