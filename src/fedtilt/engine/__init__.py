"""One round of the algorithm: the state that outlives it, the client's half and the server's half."""
