"""Digests of what a round leaves, to compare runs bit for bit."""

import hashlib

from fedtilt.simulation import Round


def digest(r: Round) -> str:
    """Of everything that the server and the clients keep."""
    values = [t for method in sorted(r.state.server) for _, t in sorted(r.state.server[method].to_tensors().items())]
    for owner in r.state.client_states.owners():
        values += [t for _, t in sorted(r.state.client_states.get(owner).to_tensors().items())]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in values)).hexdigest()
